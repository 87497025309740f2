"""Trains on two ranks, goes on from checkpoints within an epoch and between epochs, and writes what this rank saw.

Argument: the results folder, where the checkpoints are as well.
"""

import json
import os
import sys
from pathlib import Path

import lightning_sm  # noqa: F401  (gives Lightning the ranks and ends the groups)
from tests.helpers.interrupted import Saver, path_of, same_weights, shuffled, train

# Three batches for each rank in an epoch: in the second epoch, and between the first and the second.
MOMENTS = [("on_train_batch_end", 5), ("on_train_epoch_end", 1)]


def main(folder):
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
    Path(folder, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
