"""Saves checkpoints, of which one is kept and one replaced, on hosts that see different directories under one path.

Arguments: results folder, kind of strategy, directory of the checkpoints, where both hosts' directories are seen.
"""

import json
import shutil
import time
from pathlib import Path

import pytorch_lightning as pl

from lightning_sm._resume.record import read_manifest
from tests.sharded.save_folders import RANK, Actions, fit, listed


def saved(kind, below, other, **more):
    """Saves two and keeps the newer one, and one name twice.

    Before the second time this host gets the files of the other, as after a restart.
    """
    path, newest, before = Path(below, "last.ckpt"), Path(below, "step=4.ckpt"), {}

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

    saves = pl.callbacks.ModelCheckpoint(below, "{step}", every_n_train_steps=2, save_top_k=1)
    actions = Actions(step2=save, step3=complete, step4=save)
    fit(kind, below, actions, saves, steps=4, **more).strategy.barrier()
    record = read_manifest(str(path))
    return {
        "others": sorted(before),
        "unchanged": sorted(name for name, identity in before.items() if _identity(path / name) == identity),
        "files": listed(path),
        "names": listed(below),
        "shards": listed(newest),
        "manifest": json.loads((newest / "manifest.json").read_text()),
        "problems": list(filter(None, (file.problem(str(path / file.name)) for file in record.files))),
    }


def _identity(path):
    """What changes when a file is written anew or moved here from elsewhere."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def main(folder, kind, directory, hosts):
    found = {}
    for case in ("now", "async"):
        own, other = (str(Path(root, case)) for root in (directory, Path(hosts, f"host-{1 - RANK}")))
        found[case] = saved(kind, own, other, async_save=case == "async")
    return found
