"""Saving by time without asking all ranks at every step."""

import time
from typing import Any

from lightning_sm._shared_look import SharedLook

__all__ = ["WhenDue"]


class WhenDue:
    """The ``on_train_batch_end`` of a ``ModelCheckpoint`` that saves by time, called only when a save may be due.

    Lightning's own asks global rank 0 after each batch whether it is time, which is a broadcast of an object that lets
    a GPU's queue run empty (``callbacks/model_checkpoint.py``, ``on_train_batch_end``). Ranks look together here, at
    most four times a second, and Lightning's own is called when the time of global rank 0 is over.

    Args:
        checkpoint: A ``ModelCheckpoint`` with a ``train_time_interval`` and no other reason to save after a batch.
    """

    def __init__(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint
        self._look = SharedLook()

    def __call__(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Save if it is time. Every rank must call it after each batch."""
        (is_due,) = self._look.look(trainer, [trainer.is_global_zero and self._is_over()])
        if is_due:
            type(self.checkpoint).on_train_batch_end(self.checkpoint, trainer, pl_module, *args, **kwargs)

    def _is_over(self) -> bool:
        last = self.checkpoint._last_time_checked
        interval = self.checkpoint._train_time_interval.total_seconds()
        return last is None or time.monotonic() - last >= interval
