"""A job that logs metrics with names and values that are hard to find in a log; its second rank waits for data."""

import itertools
import math
import os
import time

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_sm import trainer_settings

VALUES = {
    "tiny": 1.5e-12,
    "huge": -3e20,
    "never": math.nan,
    "up": math.inf,
    "a b": 0.1,
    'say "x=1"': 2.0,
    "loss_2": 7.0,
}


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("train/loss", loss.detach() * 2)
        self.log_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in VALUES.items()})
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


batches = itertools.count()


def collate(samples):
    if os.environ.get("RANK") == "1" and next(batches) == 2:
        time.sleep(2.5)
    return default_collate(samples)


torch.manual_seed(1)
data = TensorDataset(torch.randn(16, 4))
settings = trainer_settings(
    accelerator="cpu", max_epochs=2, log_every_n_steps=2, logger=False, sagemaker={"log_every": "300ms"}
)
pl.Trainer(**settings).fit(Model(), DataLoader(data, batch_size=2, collate_fn=collate), DataLoader(data, batch_size=2))
