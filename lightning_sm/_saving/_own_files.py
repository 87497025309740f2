"""What is done with the files of the callbacks from ``_periodic`` when a run goes on from one of them."""

import os
import re
from contextlib import suppress
from typing import Any

from lightning_sm._agree import broadcast
from lightning_sm._saving._periodic import BY_EPOCH, BY_TIME

__all__ = ["remove_outlived", "take_over_last"]

_STEP = re.compile(r"resume-epoch=\d+-step=(\d+)(-v\d+)?\.ckpt")


def remove_outlived(trainer: Any) -> None:
    """Remove the checkpoints by time that are older than those which the run that goes on would keep.

    Since 2.1 Lightning leaves the one that a run went on from where it is, so each interruption would leave one more.
    """
    for callback in trainer.checkpoint_callbacks:
        kept = {os.path.basename(path) for path in getattr(callback, "best_k_models", {})}
        steps = [int(match.group(1)) for match in map(_STEP.fullmatch, kept) if match is not None]
        if getattr(callback, "filename", None) != BY_TIME or not steps or not os.path.isdir(callback.dirpath):
            continue
        resumed = os.path.basename(str(getattr(trainer, "ckpt_path", None)))
        for name in set(os.listdir(callback.dirpath)) - kept - {resumed}:
            match = _STEP.fullmatch(name)
            if match is not None and int(match.group(1)) < min(steps):
                with suppress(OSError):
                    os.unlink(os.path.join(callback.dirpath, name))


def take_over_last(trainer: Any) -> None:
    """Let a run that goes on write over a ``last.ckpt`` that its checkpoint does not know. Every rank must call it.

    It went on from a checkpoint of the first epoch, and Lightning would write ``last-v1.ckpt`` beside it. A run that
    starts afresh does so still.
    """
    if trainer.global_step == 0:
        return
    for callback in trainer.checkpoint_callbacks:
        if (
            getattr(callback, "filename", None) in BY_EPOCH
            and callback.monitor is None
            and not callback.best_model_path
        ):
            path = os.path.join(callback.dirpath, f"{callback.filename}{callback.FILE_EXTENSION}")
            if broadcast(trainer, os.path.isfile(path)):
                callback.best_model_path = path
