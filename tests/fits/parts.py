"""What these programs share: a small model, its data, what they read after a fit, and the moments at which they die."""

import functools
import json
import os
import random
import re
import signal
import time

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm
from tests.helpers.accelerator import ACCELERATOR
from tools.faults.damage import digest

__all__ = ["Model", "Moments", "Numbers", "at", "finish", "fit", "loaders", "read", "trainer"]

SAMPLES = 60


class Model(pl.LightningModule):
    """Has dropout, statistics and a schedule, so that little goes unnoticed.

    The variable ``PAUSE`` holds the seconds of each training batch.
    """

    def __init__(self, width=8, lr=0.02, batch_size=5):
        super().__init__()
        self.save_hyperparameters("width", "lr", "batch_size")
        self.lr, self.batch_size = lr, batch_size
        self.encoder = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU())
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))

    def forward(self, inputs):
        return self.head(self.encoder(inputs))

    def _loss(self, batch):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def training_step(self, batch, batch_index):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        loss = self._loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def loaders(fold=0, batch_size=5, folds=3):
    """Those of a fold: 40 samples for training, shuffled, and 20 for validation; after the last fold all and none."""
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    targets = inputs.square().sum(1, keepdim=True)
    held_out = torch.arange(SAMPLES) % folds == fold
    return (
        DataLoader(TensorDataset(inputs[~held_out], targets[~held_out]), batch_size, shuffle=True),
        DataLoader(TensorDataset(inputs[held_out], targets[held_out]), 20),
    )


class Numbers(pl.LightningDataModule):
    """The data of a fold, in batches whose size a search may change."""

    def __init__(self, batch_size=5):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return loaders(batch_size=self.batch_size)[0]

    def val_dataloader(self):
        return loaders()[1]


def trainer(max_epochs, *callbacks, folder=None):
    """A trainer with the options of the test.

    Args:
        max_epochs: The limit.
        callbacks: Those of the program.
        folder: The checkpoint directory, below the job's, of a fit that has one of its own.
    """
    options = json.loads(os.environ["OPTIONS"])
    if folder is not None:
        options["checkpoint_dir"] = os.path.join(lightning_sm.job().checkpoint_dir, folder)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    logging = {"logger": pl.loggers.CSVLogger("logs"), "log_every_n_steps": 1}
    given = {"accelerator": ACCELERATOR, "max_epochs": max_epochs, "callbacks": list(callbacks), **quiet, **logging}
    return pl.Trainer(**lightning_sm.trainer_settings(sagemaker=options, **given))


def fit(name, model, data, *callbacks, max_epochs=2, folder=None, ckpt_path=None):
    """Train with a new trainer, under a name by which tests speak of the fit, and return the trainer."""
    made = trainer(max_epochs, Moments(name), *callbacks, folder=folder)
    made.fit(model, *data, ckpt_path=ckpt_path)
    return made


def at(moment):
    """Die here, if this is the moment that the test has chosen."""
    if os.environ.get("DIE_AT") != moment:
        return
    os.kill(os.getpid(), signal.SIGTERM if os.environ["DIE_BY"] == "term" else signal.SIGKILL)


class Moments(pl.Callback):
    """Tells which steps a fit takes and which hooks it calls.

    The moments at which the program can die are ``FIT:STEP`` after a step, ``FIT:validation`` after the first
    validation, and ``FIT:HOOK``.

    Args:
        fit: The name of the fit.
    """

    def __init__(self, fit):
        self.fit = fit
        for hook in ("on_train_start", "on_train_end", "on_fit_end"):
            setattr(self, hook, functools.partial(self._hook, hook))

    def _tell(self, trainer, **what):
        if trainer.is_global_zero:
            with open(os.environ["TOLD"], "a") as told:
                told.write(json.dumps({"fit": self.fit, **what}) + "\n")

    def _hook(self, hook, trainer, *_):
        self._tell(trainer, hook=hook)
        at(f"{self.fit}:{hook}")

    def on_train_batch_start(self, trainer, *_):
        self._tell(trainer, step=trainer.global_step)

    def on_train_batch_end(self, trainer, *_):
        at(f"{self.fit}:{trainer.global_step}")

    def on_validation_end(self, trainer, *_):
        if not trainer.sanity_checking:
            at(f"{self.fit}:validation")


def read(trainer, *, best_stays=True):
    """What a program can read after a fit, and its next random numbers.

    Args:
        trainer: The trainer.
        best_stays: Whether the best checkpoint is still there when a later fit has found a better one.
    """
    best, logged = trainer.checkpoint_callback, f"{trainer.logger.log_dir}/metrics.csv"
    found = {
        "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "weights": digest(trainer.lightning_module.state_dict()),
        "random": [float(torch.rand(())), random.random()],
    }
    if trainer.is_global_zero:
        with open(logged) as file:
            found["logged"] = file.read()
    if best is not None and best.best_model_path:
        # What lies there decides whether a version is appended to a name.
        found["best"] = re.sub(r"-v\d+(?=\.ckpt)", "", best.best_model_path)
        if best_stays:
            found["best weights"] = digest(torch.load(best.best_model_path, weights_only=False)["state_dict"])
        found["best score"] = None if best.best_model_score is None else float(best.best_model_score)
    return found


def finish(**result):
    """End a program: print what it has found, from one of its processes."""
    at("end")
    if int(os.environ.get("RANK", "0")) == 0:
        print("RESULT", json.dumps(result), flush=True)
