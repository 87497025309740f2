"""Text as a data module, one byte a token, with two bundled novels for machines without data."""

import gzip
import zlib
from pathlib import Path
from typing import List, Optional, Tuple

import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities import rank_zero_info
from torch.utils.data import DataLoader, Dataset

SAMPLE = Path(__file__).resolve().parent / "sample"
SUFFIXES = (".txt", ".txt.gz")


class TextError(RuntimeError):
    """The text is missing, unreadable or too short."""


class Windows(Dataset):
    """Successive windows of a text, each with the same one byte further on, which is what to predict.

    Args:
        text: The bytes.
        context: Bytes in a window.
    """

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        start = index * self.context
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


class TextDataModule(LightningDataModule):
    """Reads text files, or the bundled novels where no ``data_dir`` is given.

    The last tenth of the text is kept: one half for validation, one for the test.

    Args:
        data_dir: Holds files that end in ``.txt`` or ``.txt.gz``, which are read in the order of their names. May be
            read-only.
        context: Bytes in a window; the model's ``context`` must be at least as long.
        batch_size: Windows per step and process.
        num_workers: Processes that load data, per training process.
    """

    def __init__(
        self, data_dir: Optional[str] = None, context: int = 64, batch_size: int = 32, num_workers: int = 0
    ) -> None:
        super().__init__()
        if context < 1:
            raise ValueError(f"context is {context}. HINT: It is a number of bytes, at least 1.")
        self.save_hyperparameters()
        self.data_dir = data_dir
        self.context = context
        self.batch_size = batch_size
        self.num_workers = num_workers

    def prepare_data(self) -> None:
        """Say so where the bundled text is used."""
        if self.data_dir is None:
            rank_zero_info("data_dir is not set: training on the bundled sample, two novels by Jane Austen.")

    def setup(self, stage: Optional[str] = None) -> None:
        """Read the text and split it."""
        folder = SAMPLE if self.data_dir is None else Path(self.data_dir)
        # A copy, because torch warns of buffers that cannot be written.
        text = torch.frombuffer(bytearray(read_text(folder)), dtype=torch.uint8)
        held = len(text) // 20
        if held <= self.context:
            raise TextError(
                f"The text in {folder} has {len(text)} bytes, and a twentieth of it holds no window of {self.context}. "
                "HINT: Bring more text, or a smaller data.context."
            )
        train, val, test = torch.split(text, [len(text) - 2 * held, held, held])
        self.train_set = Windows(train, self.context)
        self.val_set = Windows(val, self.context)
        self.test_set = Windows(test, self.context)

    def train_dataloader(self) -> DataLoader:
        """Shuffled windows of the first nine tenths."""
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return the windows kept for validation."""
        return self._loader(self.val_set)

    def test_dataloader(self) -> DataLoader:
        """Return the windows kept for the test."""
        return self._loader(self.test_set)

    def predict_dataloader(self) -> DataLoader:
        """Return the windows kept for the test."""
        return self._loader(self.test_set)

    def _loader(self, windows: Windows, shuffle: bool = False) -> DataLoader:
        return DataLoader(
            windows,
            batch_size=self.batch_size,
            shuffle=shuffle,
            # Optimizers that shard need the same number of batches of the same size in each process.
            drop_last=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )


def read_text(folder: Path) -> bytes:
    """Return the bytes of all text files of a folder."""
    try:
        names: List[str] = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise TextError(
            f"data_dir is {folder}, which cannot be listed: {error}. HINT: Set data_dir to a folder of text files."
        ) from error
    chosen = [name for name in names if name.endswith(SUFFIXES)]
    if not chosen:
        listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        raise TextError(
            f"data_dir is {folder} and holds no file that ends in {' or '.join(SUFFIXES)}, but {listed or 'nothing'}. "
            "HINT: Put text files there, or leave data_dir out to train on the sample."
        )
    return b"\n".join(_read(folder / name) for name in chosen)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    # EOFError and zlib.error are how a cut or broken gzip shows itself.
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"{path} cannot be read: {error}. HINT: Copy the file again.") from error
