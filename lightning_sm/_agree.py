"""What all ranks decide together, by the strategy's own collectives."""

from typing import Any, List, Sequence, TypeVar

from lightning_sm._lightning._shims import strategy_of

__all__ = ["all_true", "any_true", "broadcast", "gather", "sums"]

_Value = TypeVar("_Value")


def broadcast(trainer: Any, value: _Value) -> _Value:
    """Return rank zero's ``value`` on every rank. Every rank must call it."""
    shared: _Value = strategy_of(trainer).broadcast(value)
    return shared


def sums(trainer: Any, values: Sequence[float]) -> List[float]:
    """The sum of each value over all ranks, in single precision. Every rank must call it.

    It is a sum, because that is the one reduction which every backend has.
    """
    import torch

    numbers = [float(value) for value in values]
    if trainer.world_size == 1:
        return numbers
    strategy = strategy_of(trainer)
    total = strategy.reduce(torch.tensor(numbers, device=strategy.root_device), reduce_op="sum")
    return [float(value) for value in total.tolist()]


def gather(trainer: Any, value: Any) -> List[Any]:
    """Return each rank's ``value``, a one-dimensional tensor of bytes of any length. Every rank must call it."""
    import torch

    if trainer.world_size == 1:
        return [value]
    strategy = strategy_of(trainer)
    lengths = strategy.all_gather(torch.tensor([len(value)], device=strategy.root_device)).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=strategy.root_device)
    padded[: len(value)] = value
    rows = strategy.all_gather(padded).reshape(len(lengths), -1).cpu()
    return [row[:length].clone() for row, length in zip(rows, lengths)]


def any_true(trainer: Any, flag: bool) -> bool:
    """Whether ``flag`` is true on any rank. Every rank must call it."""
    return sums(trainer, [flag])[0] > 0


def all_true(trainer: Any, flag: bool) -> bool:
    """Whether ``flag`` is true on every rank. Every rank must call it."""
    return not any_true(trainer, not flag)
