"""Trains as a job that is started again would, and then the same from the beginning in the folder ``whole``.

Argument: the results folder. Variables: ``KILL_AT``, the step after which rank 1 is killed in the first attempt, of
which the next one goes on; ``CHECKPOINTS``, a directory.
"""

import os
import signal

import pytorch_lightning as pl
import torch

import lightning_sm
from lightning_sm._resume.fits import forget_fits
from tests.helpers.sharded import save_after, sharded_model
from tests.helpers.tiny import loader, weights

RANK = int(os.environ["RANK"])


class Model(type(sharded_model(pl))):
    def on_train_start(self):
        # An attribute would be restored.
        os.environ["FIRST_STEP"] = str(self.global_step)

    def on_train_batch_end(self, *_):
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if (attempt, RANK, str(self.global_step)) == ("0", 1, os.environ.get("KILL_AT")):
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(folder, checkpoints=None):
    forget_fits()  # as in a new process
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
    trainer, model = pl.Trainer(**settings), Model()
    pl.seed_everything(3)
    trainer.fit(model, loader(32, shuffle=True), loader(32))
    return {"first": int(os.environ["FIRST_STEP"]), "last": trainer.global_step, "weights": weights(model)}


def main(folder):
    return [fit(folder, os.environ.get("CHECKPOINTS")), fit(f"{folder}/whole", f"{folder}/whole/checkpoints")]
