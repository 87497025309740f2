"""Trains set-ups of the library on two ranks, each with a seed of its own, and continues each from some of its saves.

Argument: the results folder, where the saves are as well.
"""

import os
from pathlib import Path
from unittest import mock

import lightning_sm  # noqa: F401  (gives Lightning the ranks and ends the groups)
from tests.helpers.accelerator import ranks
from tests.helpers.series import continue_from, outcome, saves_of, train_keeping_all
from tests.helpers.setups import Size

SETUPS = [
    "noisy_data", "early_stopping_on_epoch_mean", "early_stopping_of_each_rank", "metric_objects", "attributes",
    "batch_norm", "changed_arguments", "finetuning", "pruning",
]  # fmt: skip
SIZE = Size(epochs=3, batches=4, ranks=2)


def of_setup(name, folder):
    """How each continued run ended on this rank, and what it has logged, beside the run that nothing interrupted."""
    two = {**ranks(2), "strategy": "ddp", "seed": 7 + int(os.environ["RANK"])}
    # Ranks ask each other after every step.
    with mock.patch("lightning_sm._lightning.collectives.ThrottledAllReduce.next_interval", return_value=1):
        trainer = train_keeping_all(name, SIZE, folder / "whole", **two)
    whole, lines = outcome(trainer), trainer.logger.lines
    ends = []
    saves = saves_of(folder / "whole")
    for number, record in enumerate([*saves[:-1:3], saves[-1]]):
        trainer = continue_from(record, folder / "whole", folder / f"copy-{number}", name, SIZE, **two)
        logged = trainer.logger.lines
        ends.append(
            {
                "save": f"{record['name']} {record['kind']}",
                "outcome": outcome(trainer),
                "logged": logged == lines[len(lines) - len(logged) :],
            }
        )
    return {"whole": whole, "ends": ends}


def main(folder):
    return {name: of_setup(name, Path(folder, name)) for name in SETUPS}
