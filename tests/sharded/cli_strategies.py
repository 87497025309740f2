"""Strategies on CPUs that a config file can name, and a callback that writes what a rank has come to."""

import json
import os

import pytorch_lightning as pl

from tests.helpers.sharded import cpu_class

CPUFSDPStrategy = cpu_class(pl.strategies.FSDPStrategy)
CPUDeepSpeedStrategy = cpu_class(pl.strategies.DeepSpeedStrategy)
for _cls in (CPUFSDPStrategy, CPUDeepSpeedStrategy):
    _cls.__module__ = __name__  # the parser imports a class by its own path


class WriteResult(pl.Callback):
    """Write ``rank-N.json`` at the end of training.

    Args:
        folder: Where to.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.losses = []

    def on_train_batch_end(self, trainer, pl_module, outputs, *args):
        """Note the loss of this rank."""
        self.losses.append(float(outputs["loss"]))

    def on_train_end(self, trainer, pl_module):
        """Write the result."""
        found = {
            "strategy": type(trainer.strategy).__name__,
            "world_size": trainer.world_size,
            "losses": self.losses,
            "config": getattr(trainer.strategy, "config", None),
            "policy": str(getattr(trainer.strategy, "kwargs", {}).get("auto_wrap_policy")),
            "sizes": [getattr(trainer.strategy, f"_{name}_parallel_size", None) for name in ("data", "tensor")],
        }
        with open(os.path.join(self.folder, f"rank-{trainer.global_rank}.json"), "w", encoding="utf-8") as file:
            json.dump(found, file, default=str)
