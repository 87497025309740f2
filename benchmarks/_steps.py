"""A fit under torchrun whose median step is printed."""

import statistics
import time
from typing import Any, Callable, Dict, List

import pytorch_lightning as pl
from _two_processes import end_process_group
from project import Data, Model

__all__ = ["print_step_time"]


class _Clock(pl.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: List[float] = []

    def on_train_batch_end(self, *args: object) -> None:
        self.ends.append(time.perf_counter())


def print_step_time(complete: Callable[..., Dict[str, Any]] = dict, *, steps: int = 400, **arguments: Any) -> None:
    """Train, and print the median seconds of a step from global rank 0, the first ones left out.

    Args:
        complete: Completes the arguments of the ``Trainer``.
        steps: How many are trained.
        **arguments: Arguments of the ``Trainer`` that are not the same in each benchmark.
    """
    clock = _Clock()
    settings = complete(
        accelerator="cpu",
        devices=2,
        max_steps=steps,
        callbacks=[clock],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer = pl.Trainer(**settings)
    trainer.fit(Model(), Data())
    if trainer.is_global_zero:
        seconds = [after - before for before, after in zip(clock.ends[20:], clock.ends[21:])]
        print(statistics.median(seconds), flush=True)
    end_process_group()
