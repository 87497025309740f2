"""Saves two checkpoints and keeps the newer one, on hosts that see different directories under one path.

Arguments: results folder, kind of strategy, directory of the checkpoints.
"""

import json
import os
import sys
from pathlib import Path

import pytorch_lightning as pl

from tests.sharded.save_folders import RANK, fit, listed


def main(folder, kind, directory):
    found = {}
    for case in ("now", "async"):
        below = os.path.join(directory, case)
        saves = pl.callbacks.ModelCheckpoint(below, "{step}", every_n_train_steps=2, save_top_k=1)
        trainer, _ = fit(kind, below, saves, steps=4, async_save=case == "async")
        trainer.strategy.barrier()
        path = Path(below, "step=4.ckpt")
        manifest = json.loads((path / "manifest.json").read_text())
        found[case] = {"names": listed(below), "files": listed(path), "manifest": manifest}
    Path(folder, f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
