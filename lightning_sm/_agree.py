"""What all ranks decide together, by the strategy's own collectives."""

from typing import Any, TypeVar

from lightning_sm._lightning._shims import strategy_of

__all__ = ["all_true", "any_true", "broadcast"]

_Value = TypeVar("_Value")


def broadcast(trainer: Any, value: _Value) -> _Value:
    """Return rank zero's ``value`` on every rank. Every rank must call it."""
    shared: _Value = strategy_of(trainer).broadcast(value)
    return shared


def any_true(trainer: Any, flag: bool) -> bool:
    """Whether ``flag`` is true on any rank. Every rank must call it.

    It is a sum, because that is the one reduction which every backend has.
    """
    import torch

    strategy = strategy_of(trainer)
    total = strategy.reduce(torch.tensor(float(flag), device=strategy.root_device), reduce_op="sum")
    return bool(total)


def all_true(trainer: Any, flag: bool) -> bool:
    """Whether ``flag`` is true on every rank. Every rank must call it."""
    return not any_true(trainer, not flag)
