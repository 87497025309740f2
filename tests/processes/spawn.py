"""Trains with processes that Lightning spawns, to which it pickles the trainer; and once more, when rank 1 raises."""

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
    for fails in (False, True):
        # Its own, because new processes take each fit for the first one of the program.
        own = {"checkpoint_dir": str(base / f"saves-{fails}")}
        trainer = pl.Trainer(**lightning_sm.trainer_settings(sagemaker=own, **told))
        trainer.fit(Model(fails), loader())
        found = {"model": (base / "model" / "model.pt").exists(), "failure": (base / "output" / "failure").exists()}
        Path(folder, "first.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
