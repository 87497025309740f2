"""Lightning's ``Trainer`` and ``Callback`` for type checkers, and what Lightning does not declare of a trainer."""

from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from pytorch_lightning import Callback, Trainer
else:
    # A mixin gets the ``Callback`` of its namespace when its class is built.
    Callback, Trainer = object, Any

__all__ = ["Callback", "Trainer", "callbacks_of", "is_fast_dev_run"]


def callbacks_of(trainer: Any) -> List[Any]:
    """``trainer.callbacks``."""
    callbacks: List[Any] = trainer.callbacks
    return callbacks


def is_fast_dev_run(trainer: Any) -> bool:
    """Whether ``trainer.fast_dev_run`` is set."""
    return bool(trainer.fast_dev_run)
