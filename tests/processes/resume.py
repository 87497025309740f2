"""Trains on two ranks, goes on from checkpoints within an epoch and between epochs, and writes what this rank saw.

Some set-ups of the library are trained with another seed on each rank and saved by Lightning's own callbacks.

Argument: the results folder, where the checkpoints are as well.
"""

import json
import os
import sys
from pathlib import Path
from unittest import mock

import lightning_sm  # noqa: F401  (gives Lightning the ranks and ends the groups)
from tests.helpers.forks import pause_before_forks
from tests.helpers.interrupted import (
    ModelCheckpoint,
    Saver,
    path_of,
    same_weights,
    shuffled,
    train,
    train_setup,
    weights_of,
)
from tests.helpers.setups import Size

# Three batches for each rank in an epoch: in the second epoch, and between the first and the second.
MOMENTS = [("on_train_batch_end", 5), ("on_train_epoch_end", 1)]
SETUPS = ["noisy_data", "early_stopping_on_epoch_mean", "metric_objects"]
SIZE = Size(epochs=3, batches=4, ranks=2)


def of_setup(name, folder):
    """Whether runs that go on from within an epoch, and from its end, have the weights and the log of the whole run."""
    rank = int(os.environ["RANK"])
    two = {"devices": 2, "strategy": "ddp", "seed": 7 + rank}
    within = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    at_end = ModelCheckpoint(folder, "end-{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = train_setup(name, SIZE, [within, at_end], **two)
    same = []
    for checkpoint in ("step=6.ckpt", "end-epoch=0.ckpt"):
        resumed = train_setup(name, SIZE, checkpoint=str(Path(folder, checkpoint)), **two)
        logged = resumed.logger.lines
        expected = whole.logger.lines[len(whole.logger.lines) - len(logged) :]
        same.append([weights_of(resumed) == weights_of(whole), logged == expected])
    return same


def of_one_rank(folder):
    """Whether ranks go on together from a checkpoint that rank zero has made without asking the others."""
    two = {"devices": 2, "strategy": "ddp"}
    within = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    with mock.patch("lightning_sm._lightning.train_loop_hooks.saved_by_all_ranks", return_value=False):
        whole = train_setup("epoch_mean", SIZE, [within], **two)
    resumed = train_setup("epoch_mean", SIZE, checkpoint=str(Path(folder, "step=3.ckpt")), **two)
    return weights_of(resumed) == weights_of(whole)


def main(folder):
    pause_before_forks()
    seen = {}
    for workers in (0, 1):
        own = Path(folder, f"workers-{workers}")

        def loader(workers=workers):
            return shuffled(workers=workers)

        two = {"devices": 2, "strategy": "ddp", "max_epochs": 2}
        whole = train(loader, saver=Saver(own, MOMENTS), **two)
        for moment in MOMENTS:
            resumed = train(loader, checkpoint=path_of(own, *moment), **two)
            seen[f"{workers} {moment[0]}"] = {
                "left": len(resumed.seen),
                "same_batches": resumed.seen == whole.seen[-len(resumed.seen) :],
                "same_weights": same_weights(resumed, whole),
                "samples": [indices for *_, indices in resumed.seen],
            }
    seen["setups"] = {name: of_setup(name, Path(folder, name)) for name in SETUPS}
    seen["one rank"] = of_one_rank(Path(folder, "one-rank"))
    Path(folder, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
