"""A fit under torchrun whose median step is printed."""

import statistics
import sys
import time
from typing import Any, Callable, Dict, List

import pytorch_lightning as pl
import torch.distributed
from project import Data, Model

__all__ = ["launch", "print_step_time"]


class _Clock(pl.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: List[float] = []

    def on_train_batch_end(self, *args: object) -> None:
        self.ends.append(time.perf_counter())


def launch(script: str) -> List[str]:
    """Return the command that runs a script in two processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script]


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
    # Without it a finished gloo job aborts now and then: Lightning ends NCCL's groups only.
    time.sleep(0.2)  # gloo's threads must be through
    torch.distributed.destroy_process_group()
