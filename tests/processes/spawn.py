"""Trains two models in processes that Lightning spawns, which get the trainer pickled, and one whose rank 1 raises."""

import json
import os
import sys
from pathlib import Path

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


def main(folder):
    told = {"accelerator": "cpu", "strategy": "ddp_spawn", "devices": 2, "max_epochs": 1, "logger": False}
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    weights = []
    for fails in (False, False, True):
        pl.seed_everything(1)
        trainer, model = pl.Trainer(**lightning_sm.trainer_settings(**told)), Model(fails)
        weights.append(model.layer.weight.tolist())
        trainer.fit(model, loader())
        weights.append(model.layer.weight.tolist())
        found = {"model": (base / "model" / "model.pt").exists(), "failure": (base / "output" / "failure").exists()}
        Path(folder, "seen.json").write_text(json.dumps({**found, "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
