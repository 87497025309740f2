"""Saves checkpoints with sharded strategies in several ways, and notes what was there at each time.

Arguments: results folder, kinds of strategies with commas.
"""

import hashlib
import json
import os
import resource
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytorch_lightning as pl
import torch

from lightning_sm._lightning import Namespace
from lightning_sm._resume import sharded
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, read_manifest
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.accelerator import ACCELERATOR
from tests.helpers.sharded import save_after, sharded_model, strategy_of
from tests.helpers.tiny import loader

PL = Namespace("pytorch_lightning")
RANK = int(os.environ.get("RANK", 0))


def watched(directory):
    """Note each visible checkpoint that is not whole, until the function that is returned is called."""
    looks, broken, is_over = [], [], threading.Event()

    def look():
        while not is_over.wait(0.002):
            for path in (*Path(directory).glob("*.ckpt"), *Path(directory).glob("job/*/fit-0/*.ckpt")):
                problem = problem_of(path)
                looks.append(1)
                if problem:
                    broken.append(f"{path.name}: {problem}")

    thread = threading.Thread(target=look)
    thread.start()

    def stop():
        is_over.set()
        thread.join()
        return {"looks": len(looks), "broken": broken}

    return stop


def problem_of(path):
    """Why a visible checkpoint is not whole. It may be removed or replaced as a whole at any time."""
    try:
        record = read_manifest(str(path))
        if record is None:
            return "it has no record" if path.exists() else None
        problem = record.problem(str(path))
        is_same = read_manifest(str(path)) == record
    except (OSError, ValueError) as error:
        return None if not path.exists() else str(error)
    return problem if is_same else None


def listed(directory):
    return sorted(path.name for path in Path(directory).iterdir() if path.name != "job")


class Actions(pl.Callback):
    """Runs functions after given steps."""

    def __init__(self, **actions):
        self.actions = {int(name[4:]): action for name, action in actions.items()}

    def on_train_batch_end(self, trainer, *_):
        action = self.actions.pop(trainer.global_step, None)
        if action is not None:
            action(trainer)


class Falls(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.log("falls", torch.tensor(1.0 / trainer.global_step))


def fit(kind, directory, *callbacks, steps=6, async_save=False, saved_after=()):
    """Train, with the job's own series of saves in the folder ``job``."""
    forget_fits()
    resume = callback_class(PL, "AutoResume")(os.path.join(directory, "job"), "never", async_save=async_save)
    save_after(*saved_after)
    trainer = pl.Trainer(
        accelerator=ACCELERATOR, devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=steps, strategy=strategy_of(kind, pl.strategies), callbacks=[resume, *callbacks], logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(sharded_model(pl), loader())
    return trainer


def saved_in_each_way(kind, directory):
    """By steps with a metric, overwritten last, by time, by the job's series, and by a callback's own call."""
    best = pl.callbacks.ModelCheckpoint(
        directory, "best-{step}", monitor="falls", every_n_train_steps=2, save_last=True
    )
    by_time = pl.callbacks.ModelCheckpoint(
        directory, "time-{step}", train_time_interval=timedelta(microseconds=1), save_top_k=1
    )
    own = Actions(step3=lambda trainer: trainer.save_checkpoint(os.path.join(directory, "own.ckpt")))
    # From the process that renames nothing: a thread of the other would look only where that one pauses.
    stop = watched(directory) if RANK == 1 else dict
    fit(kind, directory, Falls(), best, by_time, own, steps=10, saved_after=range(10))
    found = {"watched": stop(), "names": listed(directory)}
    found["best"] = os.path.basename(best.best_model_path)
    folders = [*Path(directory).glob("*.ckpt"), *Path(directory).glob("job/*/fit-0/*.ckpt")]
    found["problems"] = {path.name: problem_of(path) for path in folders}
    found["manifests"] = {path.name: json.loads((path / MANIFEST).read_text()) for path in folders}
    (series,) = Path(directory).glob("job/*/fit-0")
    found["series"] = listed(series)
    found["records"] = [json.loads(path.read_text()) for path in series.glob("step-*.json")]
    found["intact"] = [CheckpointRecord.from_json(each).problem(str(series)) is None for each in found["records"]]
    return found


def limited(_):
    """From now on rank 1 cannot write files of more than a few bytes, as on a disk that is full."""
    if RANK == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def failing(kind, directory):
    """The error of a save that fails after another has succeeded, and what is left."""
    error = None
    try:
        keep_all = pl.callbacks.ModelCheckpoint(directory, "{step}", every_n_train_steps=2, save_top_k=-1)
        fit(kind, directory, Actions(step3=limited), keep_all)
    except CheckpointError as caught:
        error = str(caught)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    names = listed(directory)
    return {"error": error, "names": names, "problem": problem_of(Path(directory) / "step=2.ckpt")}


def in_background(kind, directory):
    """Steps trained while the thread of the first checkpoint waits, and what is there at the end."""
    steps, seen = [], {}
    originals = {name: getattr(sharded, name) for name in ("copytree", "save_dcp")}

    def slow(name, *arguments, **options):
        while len(steps) < 5 and not seen:
            time.sleep(0.01)
        seen.setdefault("steps", len(steps))
        seen.setdefault("visible", listed(directory))
        originals[name](*arguments, **options)

    class Steps(pl.Callback):
        def on_train_batch_end(self, *_):
            steps.append(1)

    with mock.patch.dict(vars(sharded), {name: partial(slow, name) for name in originals}):
        saves = pl.callbacks.ModelCheckpoint(directory, "{step}", every_n_train_steps=3, save_top_k=1)
        fit(kind, directory, saves, Steps(), steps=9, async_save=True)
    found = {"seen": seen, "names": listed(directory), "problem": problem_of(Path(directory) / "step=9.ckpt")}
    # Other jobs of this machine have folders beside it.
    memory = Path(sharded.MEMORY, f".lightning-sm-{hashlib.sha256(directory.encode()).hexdigest()[:16]}")
    return {**found, "memory": listed(memory) if memory.exists() else []}


def in_each_way(kind, folder):
    where = {name: str(folder / name) for name in ("ways", "one_rank", "async")}
    for directory in where.values():
        os.makedirs(directory, exist_ok=True)
    return {
        "ways": saved_in_each_way(kind, where["ways"]),
        "one_rank": failing(kind, where["one_rank"]),
        "async": in_background(kind, where["async"]),
    }


def main(folder, kinds):
    torch.use_deterministic_algorithms(True)
    return {kind: in_each_way(kind, Path(folder, kind)) for kind in kinds.split(",")}
