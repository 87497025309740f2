"""Trains in processes of a pool, and in those that Lightning spawns, where rank 1 raises in the second fit."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.helpers.tiny import loader


class Model(pl.LightningModule):
    """At the top of the module, because it is pickled."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.layer = fails, torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if self.fails and self.global_rank == 1:
            raise KeyError("layers")
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def train(model, **told):
    trainer = pl.Trainer(**lightning_sm.trainer_settings(accelerator="cpu", logger=False, **told))
    trainer.fit(model, loader())
    return trainer.global_step


def fold(number):
    return train(Model(), devices=1, max_epochs=1 + number)


def main(folder):
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        steps = pool.map(fold, range(2), chunksize=1)
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    for fails in (False, True):
        model = Model(fails)
        before = model.layer.weight.tolist()
        train(model, strategy="ddp_spawn", devices=2, max_epochs=1)
        found = {"model": (base / "model" / "model.pt").exists(), "failure": (base / "output" / "failure").exists()}
        seen = {**found, "steps": steps, "has_learned": model.layer.weight.tolist() != before}
        Path(folder, "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
