"""Trains three epochs on two hosts, then resumes from what each host is left with, case by case.

Arguments: results folder, namespace.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import lightning_sm
from lightning_sm._lightning import Namespace
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.tiny import loader, tiny_model, weights

# After the first, the second and the last epoch.
FIRST, SECOND, LAST = "step-4", "step-8", "step-12"


def _fit(pl, directory, *, resume="auto", model=None, epochs=3, every=600.0, ckpt_path=None, job="this-job"):
    forget_fits()
    # Launchers over ssh hand the name to the first host only.
    identity = ProgramIdentity(None if dist.is_initialized() and dist.get_rank() else job)
    own = callback_class(Namespace(pl.__name__), "AutoResume")(str(directory), resume, identity, save_every=every)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, strategy=lightning_sm.SMDDPStrategy(), callbacks=[own], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, num_sanity_val_steps=0,
    )  # fmt: skip
    model = model or tiny_model(pl)
    steps, step = [], model.on_train_batch_end
    model.on_train_batch_end = lambda *given, **named: (steps.append(1), step(*given, **named))
    trainer.fit(model, loader(), ckpt_path=ckpt_path)
    return {"steps": len(steps), "weights": weights(model), "global_step": trainer.global_step}


def _wider(pl):
    model = tiny_model(pl)
    model.layers = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    return model


def _attempt(pl, directory, **more):
    try:
        return _fit(pl, directory, **more)
    except CheckpointError as error:
        return {"error": str(error)}


def main(folder, namespace):
    pl = importlib.import_module(namespace)
    directory = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
    saved = Path(folder, "saved")
    directory.mkdir()
    with mock.patch("lightning_sm._resume.series.Series.remove_replaced"):
        seen = {"trained": _fit(pl, directory, every=0.01)}
    rank = dist.get_rank()
    series = directory / ProgramIdentity().series / "fit-0"
    if rank == 0:
        shutil.copytree(series, saved)
    dist.barrier()

    def prepare(*names):
        shutil.rmtree(directory)
        series.mkdir(parents=True)
        for name in names:
            shutil.copy(saved / f"{name}.ckpt", series)
            shutil.copy(saved / f"{name}.json", series)

    prepare(*[FIRST, SECOND][: 2 - rank])
    seen["not on the second host"] = _attempt(pl, directory)
    prepare(*[FIRST, SECOND][: 1 + rank])
    seen["not on the main host"] = _attempt(pl, directory)
    prepare(FIRST, SECOND)
    if rank == 1:
        shutil.copy(saved / f"{FIRST}.ckpt", series / f"{SECOND}.ckpt")
    seen["another version"] = _attempt(pl, directory)
    prepare()
    shutil.copy(saved / f"{FIRST}.ckpt", directory / "given.ckpt")
    seen["ckpt_path"] = _attempt(pl, directory, ckpt_path=str(directory / "given.ckpt"))
    prepare(SECOND)
    seen["changed model"] = _attempt(pl, directory, model=_wider(pl))
    # Only the main host has it, as the upload of another host may have lost it.
    prepare(*[FIRST, SECOND, LAST][: 3 - rank])
    seen["finished"] = _attempt(pl, directory)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
