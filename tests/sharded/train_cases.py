"""Trains the library of cases with each kind of strategy, by Lightning alone and then with us, and writes the numbers.

Arguments: results folder, kinds, names of cases; the last two with commas.
"""

import json
import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch

from tests.helpers.sharded import cpu_strategy
from tests.helpers.sharded_cases import CASES, EPOCHS, gathered_weights


class Record(pl.Callback):
    """The loss of each batch on this rank, what is logged, and the weights at the end."""

    def __init__(self):
        self.losses, self.logged, self.weights = [], [], {}

    def on_train_batch_end(self, trainer, module, outputs, *_):
        self.losses.append(float(outputs["loss"]))
        self.logged.append({name: float(value) for name, value in trainer.logged_metrics.items()})

    def on_train_epoch_end(self, trainer, *_):
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer, module):
        self.weights = gathered_weights(trainer.strategy, module)


def train(name, kind, settings):
    pl.seed_everything(3)
    made = CASES[name](pl)
    if kind in made.without:
        return None
    record = Record()
    arguments = {
        "accelerator": "cpu",
        "devices": 2,
        "strategy": cpu_strategy(kind, pl.strategies, **made.strategy.get(kind, {})),
        "max_epochs": EPOCHS,
        "logger": False,
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [record],
        **made.arguments,
    }
    trainer = pl.Trainer(**settings(**arguments))
    val = made.loader() if name == "validation" else None
    trainer.fit(made.model, made.loader(), val)
    return {"losses": record.losses, "logged": record.logged, "weights": record.weights, "steps": trainer.global_step}


def main(folder, kinds, names):
    found = {}
    for kind in kinds.split(","):
        for name in names.split(","):
            found.setdefault(kind, {})[name] = {"plain": train(name, kind, dict)}
    assert "lightning_sm" not in sys.modules
    import lightning_sm

    for kind, results in found.items():
        if kind == "ddp":  # only compared with
            continue
        for name, result in results.items():
            # A fit of its own, as each job has one.
            own = {"checkpoint_dir": f"{folder}/{kind}-{name}", "export": False, "report": False}

            def settings(own=own, **arguments):
                # The launcher tells the devices.
                del arguments["devices"], arguments["enable_checkpointing"]
                return lightning_sm.trainer_settings(sagemaker=own, **arguments)

            result["ours"] = train(name, kind, settings)
    Path(folder, f"rank-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    # One thread each: sums come in the same order.
    os.environ["OMP_NUM_THREADS"] = "1"
    main(*sys.argv[1:])
