"""A callback that prints how old the process was at the end of each phase of its start."""

import json
import os
import time
from typing import Any

import pytorch_lightning as pl

__all__ = ["Phases"]


def _age() -> float:
    """Seconds since this process was started, from what Linux knows of it."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_IMPORTED = _age()


class Phases(pl.Callback):
    """Prints a line of JSON from global rank 0 after the first step."""

    def __init__(self) -> None:
        self.ends = [_IMPORTED, _age()]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """The process group is there."""
        self.ends.append(_age())

    def on_train_batch_start(self, *args: Any) -> None:
        """The first batch has been read."""
        if len(self.ends) == 3:
            self.ends.append(_age())

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """The optimizer has stepped."""
        if len(self.ends) == 4:
            self.ends.append(_age())
            if trainer.is_global_zero:
                print(json.dumps({"phases": [round(each, 3) for each in self.ends]}), flush=True)
