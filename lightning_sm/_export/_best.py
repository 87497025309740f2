"""``BestCheckpoint``: which checkpoint holds the best weights."""

import os
from dataclasses import dataclass
from typing import Any, Optional

from lightning_sm._logging import log

__all__ = ["BestCheckpoint", "find_best", "why_not_best"]


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint.

    Args:
        path: Its file.
        score: The value of the metric.
        monitor: The name of the metric.
    """

    path: str
    score: float
    monitor: str


def find_best(trainer: Any) -> Optional[BestCheckpoint]:
    """The best checkpoint by the first callback that monitors a metric; ``None`` where none does."""
    for callback in trainer.checkpoint_callbacks:
        path, score = getattr(callback, "best_model_path", ""), getattr(callback, "best_model_score", None)
        # What monitors the step keeps the newest, of which the weights that training ended with are newer still.
        if not path or score is None or getattr(callback, "monitor", None) in (None, "step"):
            continue
        if os.path.isfile(path):
            return BestCheckpoint(str(path), float(score), str(callback.monitor))
        # A sharded checkpoint is a folder, which only its strategy can read; the gathered weights stand in for it.
        kind = "is a folder" if os.path.isdir(path) else "is not there any more"
        log.warning("The best checkpoint %s %s. The weights that training ended with are exported.", path, kind)
    return None


def why_not_best(trainer: Any, weights: str) -> str:
    """Why there is no best checkpoint to export, in a few words.

    Args:
        trainer: The trainer.
        weights: ``best`` or ``last``, as it was asked for.
    """
    if weights != "best":
        return "sagemaker.export_weights is last"
    monitored = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
    for monitor in monitored:
        if monitor not in (None, "step"):
            return f"no checkpoint with the best {monitor} can be read"
    return "no ModelCheckpoint monitors a metric"
