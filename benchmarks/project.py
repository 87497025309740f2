"""The project that the benchmarks train."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Data(pl.LightningDataModule):
    """Random features."""

    def __init__(self, batches: int = 200, batch_size: int = 32) -> None:
        super().__init__()
        self.batches = batches
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(self.batches * self.batch_size, 256, generator=generator)
        return DataLoader(TensorDataset(features), batch_size=self.batch_size)


class Model(pl.LightningModule):
    """A few layers, so that a step has several gradients to reduce."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()
        )
        self.head = torch.nn.Linear(width, 1)

    def training_step(self, batch: "list[torch.Tensor]", batch_idx: int) -> torch.Tensor:
        return self.head(self.layers(batch[0])).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)
