"""Trains as a job that is started again would, and notes each step of each attempt; for the tests of elastic jobs.

Argument: the results folder. Variables: ``KILL_AT``, the step after which rank 1 is killed in the first attempt; the
next one goes on, and then trains the same from the beginning in the folder ``whole``. ``CHECKPOINTS``, a directory.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm
from lightning_sm._resume.fits import forget_fits
from tests.helpers.sharded import save_after, sharded_model

SAMPLES, BATCH = 32, 2
RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True), torch.arange(SAMPLES))


def traced_model(folder):
    class Traced(type(sharded_model(pl))):
        def training_step(self, batch, batch_index):
            inputs, targets, samples = batch
            loss = super().training_step((inputs, targets), batch_index)
            (rate,) = (group["lr"] for group in self.trainer.optimizers[0].param_groups)
            seen = {
                "attempt": ATTEMPT,
                "epoch": self.current_epoch,
                "step": self.global_step,
                "loss": float(loss.detach()),
                "rate": rate,
                "samples": samples.tolist(),
            }
            with open(folder / f"steps-{RANK}.jsonl", "a") as file:
                file.write(json.dumps(seen) + "\n")
            return loss

        def on_train_batch_end(self, *_):
            if (ATTEMPT, RANK, str(self.global_step)) == (0, 1, os.environ.get("KILL_AT")):
                os.kill(os.getpid(), signal.SIGKILL)

        def validation_step(self, batch, batch_index):
            super().validation_step(batch[:2], batch_index)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            steps = int(self.trainer.estimated_stepping_batches)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Traced()


def fit(folder, checkpoints=None):
    folder.mkdir(exist_ok=True)
    settings = lightning_sm.trainer_settings(
        accelerator="cpu",
        strategy="ddp",
        max_epochs=2,
        logger=pl.loggers.CSVLogger(str(folder)),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        sagemaker={"checkpoint_dir": checkpoints, "export": False},
    )
    save_after(3, 6, 9, 12)
    trainer = pl.Trainer(**settings)
    pl.seed_everything(3)
    loader = DataLoader(data(), BATCH, shuffle=True)
    trainer.fit(traced_model(folder), loader, DataLoader(data(), BATCH))
    return trainer.global_step


def main(folder):
    steps = [fit(Path(folder), os.environ.get("CHECKPOINTS"))]
    forget_fits()  # as in a new process
    steps.append(fit(Path(folder, "whole"), f"{folder}/whole/checkpoints"))
    Path(folder, f"rank-{RANK}.json").write_text(json.dumps({"steps": steps}))


if __name__ == "__main__":
    # The results folder is another one in a restart, and no argument of the program.
    arguments, sys.argv[1:] = sys.argv[1:], []
    main(*arguments)
