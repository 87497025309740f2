"""The project that the benchmarks train: the language model of the examples, smaller, on the text beside it."""

import sys
from pathlib import Path
from typing import List

from torch.utils.data import DataLoader, Subset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "transformer"))

from data import TextDataModule
from model import LitGPT


class Data(TextDataModule):
    """The bundled text in short windows, four a step and process."""

    def __init__(self, batches: int = 200) -> None:
        super().__init__(batch_size=4)
        self.batches = batches

    def train_dataloader(self) -> DataLoader:
        windows = range(self.batches * 4)
        return DataLoader(Subset(self.train_set, windows), batch_size=4)

    def val_dataloader(self) -> List[DataLoader]:
        return []


class Model(LitGPT):
    """The model with two blocks."""

    def __init__(self) -> None:
        super().__init__(layers=2, width=64)
