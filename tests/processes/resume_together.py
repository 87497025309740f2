"""Trains three epochs on two hosts, then resumes from what each host is left with, case by case.

Arguments: results folder, namespace.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import lightning_sm
from lightning_sm._checkpoint.candidates import JobIdentity
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import auto_resume, callback_class
from lightning_sm.errors import CheckpointError
from tests.checkpoint.checkpoint_files import damage
from tests.helpers.tiny import loader, tiny_model, weights

_EPOCHS = [f"of-epoch-{epoch}.ckpt" for epoch in range(3)]


def _fit(pl, directory, *, resume="auto", model=None, epochs=3, keep=False, ckpt_path=None, job="this-job"):
    auto_resume._finished_directories.clear()  # as in a new process
    # Launchers over ssh hand the name to the first host only.
    identity = JobIdentity(None if dist.is_initialized() and dist.get_rank() else job)
    own = [callback_class(Namespace(pl.__name__), "AutoResume")(str(directory), resume, identity)]
    if keep:
        own.append(pl.callbacks.ModelCheckpoint(directory, "of-{epoch}", save_top_k=-1, every_n_epochs=1))
        own[-1].CHECKPOINT_EQUALS_CHAR = "-"
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, strategy=lightning_sm.SMDDPStrategy(), callbacks=own, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=keep, num_sanity_val_steps=0,
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
    seen = {"trained": _fit(pl, directory, keep=True)}
    rank = dist.get_rank()
    if rank == 0:
        names = sorted(path.name for path in directory.glob("*.ckpt"))
        assert len(names) == 3, names
        saved.mkdir()
        for name, new in zip(names, _EPOCHS):
            shutil.copy(directory / name, saved / new)
        shutil.copy(directory / "finished.json", saved)
    dist.barrier()

    def prepare(*names):
        shutil.rmtree(directory)
        directory.mkdir()
        for name in names:
            shutil.copy(saved / name, directory)

    def host_two(change):
        if rank == 1:
            change()

    newest = directory / _EPOCHS[2]
    prepare(*_EPOCHS)
    seen["all the same"] = _attempt(pl, directory, epochs=4)
    prepare(*_EPOCHS)
    host_two(newest.unlink)
    seen["not on every host"] = _attempt(pl, directory)
    prepare(*_EPOCHS)
    host_two(lambda: shutil.copy(saved / _EPOCHS[0], newest))
    seen["another version"] = _attempt(pl, directory)
    prepare(*_EPOCHS)
    damage(newest, "flipped bit in a tensor")
    seen["damaged"] = _attempt(pl, directory)
    prepare(_EPOCHS[rank])
    seen["nothing in common"] = _attempt(pl, directory)
    prepare(_EPOCHS[rank])
    seen["require"] = _attempt(pl, directory, resume="require")
    prepare(*_EPOCHS)
    seen["never"] = _attempt(pl, directory, resume="never")
    prepare(*_EPOCHS)
    seen["ckpt_path"] = _attempt(pl, directory, ckpt_path=str(directory / _EPOCHS[0]))
    prepare(*_EPOCHS)
    seen["another job"] = _attempt(pl, directory, job="another-job")
    prepare(*_EPOCHS)
    seen["changed model"] = _attempt(pl, directory, model=_wider(pl))
    # Only rank zero's host has it, as the upload of another host may have lost it.
    prepare(*_EPOCHS)
    if rank == 0:
        finished = json.loads((saved / "finished.json").read_text())
        (directory / "finished.json").write_text(json.dumps({**finished, "checkpoint": _EPOCHS[2]}))
    seen["finished"] = _attempt(pl, directory)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
