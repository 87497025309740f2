"""What all ranks decide together, by the strategy's own collectives.

How all ranks find out together, every now and then, that one of them has a reason to do something.

Broadcasts objects as tensors, for backends whose object collectives are undocumented.

Ends process groups before the interpreter goes away.
"""

import atexit
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Tuple, TypeVar

from lightning_sm._lightning.compat_strategies import strategy_of

if TYPE_CHECKING:
    import torch

__all__ = [
    "all_true",
    "any_true",
    "broadcast",
    "gather",
    "sums",
    "Rhythm",
    "SharedLook",
    "broadcast_object",
    "destroy_at_exit",
]

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


_INTERVAL = 0.25
_MOST_STEPS = 64


class Rhythm:
    """How many steps pass between two looks: a quarter of a second's, at most 64, at most twice as many as before.

    An agreement makes a GPU wait for its queue, so it is not for each step; and steps may become slower at any time, so
    it is not for hundreds of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._steps = 1

    def next(self) -> int:
        """After how many steps to look again, now that the last number of steps is over."""
        now = self._clock()
        seconds_per_step = max(now - self._last, 1e-6) / self._steps
        self._steps = max(1, min(int(_INTERVAL / seconds_per_step), 2 * self._steps, _MOST_STEPS))
        self._last = now
        return self._steps


class SharedLook:
    """Asks all ranks at the same step whether one of them has a reason to do something."""

    def __init__(self) -> None:
        self._rhythm = Rhythm()
        self._left = 1

    def look(self, trainer: Any, reasons: Sequence[bool]) -> Tuple[bool, ...]:
        """Which of the reasons any rank has. Every rank calls it at each step, and learns of it at the same one.

        A single process has nobody to wait for and looks at each step.
        Rank zero's clock says when the next look is, in the same sum.
        """
        if trainer.world_size == 1:
            return tuple(reasons)
        self._left -= 1
        if self._left > 0:
            return tuple(False for _ in reasons)
        then = self._rhythm.next() if trainer.is_global_zero else 0
        *found, self._left = (int(value) for value in sums(trainer, [*reasons, then]))
        return tuple(value > 0 for value in found)


def broadcast_object(obj: Any, src: int, rank: int, device: "torch.device") -> Any:
    """Return the object of rank ``src`` on every rank of the default group.

    Args:
        obj: What rank ``src`` has to say.
        src: The rank that speaks.
        rank: This process's rank.
        device: Where the backend's tensors live.
    """
    import torch
    import torch.distributed as dist

    payload = bytearray(pickle.dumps(obj)) if rank == src else bytearray()
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    dist.broadcast(size, src)
    content = torch.zeros(int(size.item()), dtype=torch.uint8)
    if rank == src:
        content = torch.frombuffer(payload, dtype=torch.uint8)
    content = content.to(device)
    dist.broadcast(content, src)
    return obj if rank == src else pickle.loads(content.cpu().numpy().tobytes())


# Gloo's threads drop the tensors of the last collective a moment after it is over, and need the interpreter for that.
# Destroying a group holds the interpreter and waits for these threads, so that each can wait for the other for good;
# seen with torch 2.0.1 in one finished job of twenty, and with 2.4.1. A moment of sleep lets the threads finish first.
_QUIET_SECONDS = 0.2

_registered = False


def destroy_at_exit() -> None:
    """Destroy the default process group when the program ends, if there is one by then.

    Lightning does so for NCCL only. Without it about one finished gloo job in ten ends with "terminate called without
    an active exception", which torchrun takes for a failure: gloo's threads meet a half-dismantled interpreter.
    Nothing is registered as long as torch has not been loaded.
    """
    global _registered
    if "torch.distributed" in sys.modules and not _registered:
        atexit.register(_destroy)
        _registered = True


def _destroy() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        time.sleep(_QUIET_SECONDS)
        dist.destroy_process_group()
