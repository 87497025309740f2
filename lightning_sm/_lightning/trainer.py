"""Lightning's ``Trainer`` and ``Callback`` for type checkers, and what Lightning does not declare of a trainer."""

from typing import TYPE_CHECKING, Any, List

from lightning_sm._lightning.namespaces import has_base

if TYPE_CHECKING:
    from pytorch_lightning import Callback, Trainer
else:
    # A mixin gets the ``Callback`` of its namespace when its class is built.
    Callback, Trainer = object, Any

__all__ = ["Callback", "Trainer", "AVERAGING", "callbacks_named", "callbacks_of", "is_fast_dev_run"]

#: Lightning's callbacks that average the weights of the process over steps or epochs.
AVERAGING = ("WeightAveraging", "StochasticWeightAveraging")


def callbacks_of(trainer: Any) -> List[Any]:
    """``trainer.callbacks``."""
    callbacks: List[Any] = trainer.callbacks
    return callbacks


def callbacks_named(trainer: Any, *names: str) -> List[Any]:
    """The trainer's callbacks of Lightning's classes of these names, and of their subclasses."""
    return [each for each in callbacks_of(trainer) if has_base(type(each), *names)]


def is_fast_dev_run(trainer: Any) -> bool:
    """Whether ``trainer.fast_dev_run`` is set."""
    return bool(trainer.fast_dev_run)
