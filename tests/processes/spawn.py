"""Trains with processes that Lightning spawns, to which it pickles the trainer. With ``--fail`` rank 1 raises."""

import argparse

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.helpers.tiny import loader


class Model(pl.LightningModule):
    """At the top of the module, because it is pickled."""

    def __init__(self, fails):
        super().__init__()
        self.fails, self.layer = fails, torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if self.fails and self.global_rank == 1:
            raise KeyError("layers")
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()
    told = {"accelerator": "cpu", "strategy": "ddp_spawn", "devices": 2, "max_epochs": 1, "logger": False}
    trainer = pl.Trainer(**lightning_sm.trainer_settings(**told))
    trainer.fit(Model(options.fail), loader())


if __name__ == "__main__":
    main()
