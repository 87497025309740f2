"""Trains set-ups with their series of saves, keeps all of them, and continues from each as a new process would."""

import json
import os
import shutil
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.accelerator import ranks
from tests.helpers.interrupted import NAMESPACE, Logged, pl
from tests.helpers.setups import SETUPS as LIBRARY

__all__ = ["LIBRARY", "continue_from", "outcome", "saves_of", "train_fit", "train_keeping_all"]


def train_fit(setup, size, directory, seed=7, save_every=0.01, resumed=False, ckpt_path=None, **more):
    """Train a set-up, or one of the library by its name, in a directory of saves, and return its trainer."""
    forget_fits()
    pl.seed_everything(seed)
    made = LIBRARY.get(setup, setup)(pl, size)
    arguments = {"max_epochs": size.epochs, **ranks(), **made.arguments, **more}
    resume = callback_class(NAMESPACE, "AutoResume")(str(directory), save_every=save_every)
    trainer = pl.Trainer(
        logger=Logged(str(directory)),
        log_every_n_steps=1,
        num_sanity_val_steps=1 if made.val is not None else 0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(directory),
        callbacks=[*arguments.pop("callbacks", []), resume, callback_class(NAMESPACE, "FinetuningState")()],
        **arguments,
    )
    # Something that a resumed run has drawn more of than the run before it.
    torch.rand(3 if resumed else 2)
    trainer.fit(made.model, made.train, made.val, ckpt_path=ckpt_path)
    return trainer


def train_keeping_all(setup, size, directory, **more):
    """The same, with all saves kept."""
    with mock.patch("lightning_sm._resume.series.Series.remove_but"):
        return train_fit(setup, size, directory, **more)


def saves_of(directory, fit="0"):
    """The records of a directory of saves, of its programs' first or other fits, in their order."""
    records = [json.loads(path.read_text()) for path in Path(directory).glob(f"*/fit-{fit}/step-*.json")]
    return sorted(records, key=lambda record: record["number"])


def continue_from(record, directory, copy, setup, size, save_every=600.0, **more):
    """Continue a fit from one of its saves, in a directory that has no other, and return the trainer."""
    if os.environ.get("RANK", "0") == "0":
        (series,) = Path(directory).glob("*/fit-0")
        target = Path(copy, series.parent.name, "fit-0")
        target.mkdir(parents=True)
        stem = record["name"][: -len(".ckpt")]
        shutil.copy(series / record["name"], target)
        shutil.copy(series / f"{stem}.json", target)
    if dist.is_initialized():
        dist.barrier()
    with mock.patch("lightning_sm._resume.series.Series.remove_but"):
        return train_fit(setup, size, copy, resumed=True, save_every=save_every, **more)


def outcome(trainer):
    """What must be the same: weights, metrics, counters, learning rates and the next random numbers."""
    return {
        "weights": {name: value.tolist() for name, value in trainer.lightning_module.state_dict().items()},
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "counters": (trainer.global_step, trainer.current_epoch),
        "rates": [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups],
        "random": float(torch.rand(())),
        "random of the device": float(torch.rand((), device=strategy_of(trainer).root_device)),
    }
