"""``Trainer`` for type checkers, which is Lightning's, and what Lightning does not declare of it."""

from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from pytorch_lightning import Trainer
else:
    Trainer = Any

__all__ = ["Trainer", "callbacks_of", "is_fast_dev_run"]


def callbacks_of(trainer: Any) -> List[Any]:
    """``trainer.callbacks``."""
    callbacks: List[Any] = trainer.callbacks
    return callbacks


def is_fast_dev_run(trainer: Any) -> bool:
    """Whether ``trainer.fast_dev_run`` is set."""
    return bool(trainer.fast_dev_run)
