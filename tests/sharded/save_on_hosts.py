"""Saves two checkpoints and keeps the newer one, on hosts that see different directories under one path.

Arguments: results folder, kind of strategy, directory of the checkpoints, where both hosts' directories are seen.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytorch_lightning as pl

from lightning_sm._resume.record import read_manifest
from tests.sharded.save_folders import RANK, Actions, fit, listed


def replaced(kind, below, other, **more):
    """Saves one name twice. Before the second time this host gets the files of the other, as after a restart."""
    path, before = Path(below, "last.ckpt"), {}

    def save(trainer):
        trainer.save_checkpoint(str(path))
        trainer.strategy.barrier()

    def complete(trainer):
        while not (path.exists() and Path(other, path.name).exists()):  # a thread may still copy it
            time.sleep(0.01)
        trainer.strategy.barrier()
        for source in [each for each in Path(other, path.name).iterdir() if not (path / each.name).exists()]:
            shutil.copy(source, path / source.name)
            before[source.name] = _identity(path / source.name)
        trainer.strategy.barrier()

    fit(kind, below, Actions(step2=save, step3=complete, step4=save), steps=4, **more)
    record = read_manifest(str(path))
    return {
        "others": sorted(before),
        "unchanged": sorted(name for name, identity in before.items() if _identity(path / name) == identity),
        "files": listed(path),
        "problems": list(filter(None, (file.problem(str(path / file.name)) for file in record.files))),
    }


def _identity(path):
    """What changes when a file is written anew or moved here from elsewhere."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def main(folder, kind, directory, hosts):
    found = {}
    for case in ("replaced", "replaced async"):
        own, other = (str(Path(root, case)) for root in (directory, Path(hosts, f"host-{1 - RANK}")))
        found[case] = replaced(kind, own, other, async_save=case != "replaced")
    for case in ("now", "async"):
        below = os.path.join(directory, case)
        saves = pl.callbacks.ModelCheckpoint(below, "{step}", every_n_train_steps=2, save_top_k=1)
        trainer = fit(kind, below, saves, steps=4, async_save=case == "async")
        trainer.strategy.barrier()
        path = Path(below, "step=4.ckpt")
        manifest = json.loads((path / "manifest.json").read_text())
        found[case] = {"names": listed(below), "files": listed(path), "manifest": manifest}
    return found
