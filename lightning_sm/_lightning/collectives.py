"""Collectives of a trainer's strategy, at once and throttled, what ranks compare, and the end of process groups."""

import atexit
import pickle
import sys
import time
import zlib
from typing import Any, Callable, List, Mapping, Sequence, Tuple, TypeVar

from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.trainer import Trainer

__all__ = [
    "RanksOfThread",
    "ThrottledAllReduce",
    "all_true",
    "any_true",
    "broadcast",
    "destroy_at_exit",
    "digest_of",
    "gather",
    "gather_objects",
    "gather_on_main",
    "rounded_up",
    "sums",
]

_Value = TypeVar("_Value")


def broadcast(trainer: Trainer, value: _Value, src: int = 0) -> _Value:
    """Return the ``value`` of global rank ``src`` on every rank. Collective: every rank must call it."""
    shared: _Value = strategy_of(trainer).broadcast(value, *([src] if src else []))
    return shared


def sums(trainer: Trainer, values: Sequence[float]) -> List[float]:
    """All-reduce: the sum of each value over all ranks, in single precision. Collective: every rank must call it.

    A sum is the one reduction that every backend has.
    """
    import torch

    numbers = [float(value) for value in values]
    if trainer.world_size == 1:
        return numbers
    strategy = strategy_of(trainer)
    total = strategy.reduce(torch.tensor(numbers, device=strategy.root_device), reduce_op="sum")
    return [float(value) for value in total.tolist()]


def rounded_up(length: int) -> int:
    """The next power of two. A NeuronCore compiles each collective anew for each length of its tensors.

    >>> [rounded_up(length) for length in (0, 1, 5, 8)]
    [1, 1, 8, 8]
    """
    return int(2 ** max(length - 1, 0).bit_length())


def gather(trainer: Trainer, value: Any) -> List[Any]:
    """All-gather one-dimensional ``uint8`` tensors of different lengths. Collective: every rank must call it."""
    import torch

    if trainer.world_size == 1:
        return [value]
    strategy = strategy_of(trainer)
    lengths = strategy.all_gather(torch.tensor([len(value)], device=strategy.root_device)).flatten().tolist()
    padded = torch.zeros(rounded_up(max(lengths)), dtype=torch.uint8, device=strategy.root_device)
    padded[: len(value)] = value
    rows = strategy.all_gather(padded).reshape(len(lengths), -1).cpu()
    return [row[:length].clone() for row, length in zip(rows, lengths)]


def gather_objects(trainer: Trainer, value: _Value) -> List[_Value]:
    """All-gather objects of any kind, which are pickled. Collective: every rank must call it."""
    import torch

    if trainer.world_size == 1:
        return [value]
    content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    return [pickle.loads(part.numpy().tobytes()) for part in gather(trainer, content)]


def gather_on_main(trainer: Trainer, value: _Value) -> List[_Value]:
    """The objects of all ranks, in the memory of global rank 0 only. Collective: every rank must call it.

    They are sent one after another, as each may be as large as the model.
    """
    parts: List[_Value] = []
    for rank in range(trainer.world_size):
        part = broadcast(trainer, value if rank == trainer.global_rank else None, rank)
        if trainer.is_global_zero:
            parts.append(part)  # type: ignore[arg-type]
    return parts


class RanksOfThread:
    """A trainer's ranks with a process group of their own, for :func:`gather_objects` in a thread.

    The collectives of two threads in one group would meet each other in another order on each rank. Collective: every
    rank must make one, and call collectives from one thread.

    Args:
        trainer: The trainer, whose process group exists.
    """

    def __init__(self, trainer: Trainer) -> None:
        import torch.distributed

        self.world_size, self.global_rank = int(trainer.world_size), int(trainer.global_rank)
        self.root_device = torch.device("cpu")
        self.strategy = self
        #: The group; ``None`` in a single process.
        self.group: Any = None
        if self.world_size > 1:
            self._default = torch.distributed.group.WORLD
            self.group = torch.distributed.new_group(backend="gloo")

    @property
    def is_usable(self) -> bool:
        """Whether the process group is still the one that the trainer uses."""
        import torch.distributed as dist

        return self.world_size == 1 or dist.group.WORLD is self._default

    def all_gather(self, tensor: Any) -> Any:
        """The tensors of all ranks, in a new first dimension."""
        import torch.distributed

        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, tensor, group=self.group)
        return torch.stack(parts)


def any_true(trainer: Trainer, flag: bool) -> bool:
    """Whether ``flag`` is true on any rank. Collective: every rank must call it."""
    return sums(trainer, [flag])[0] > 0


def all_true(trainer: Trainer, flag: bool) -> bool:
    """Whether ``flag`` is true on every rank. Collective: every rank must call it."""
    return not any_true(trainer, not flag)


_INTERVAL_SECONDS = 0.25
_MAX_STEPS = 64


class ThrottledAllReduce:
    """Throttled all-reduce of per-rank flags, at the same steps on all ranks.

    An all-reduce synchronizes a GPU's stream, so it must not run at each step; and steps may become slower at any time,
    so hundreds of them must not pass without one. So between two are 0.25 seconds' worth of steps, at most 64, and at
    most twice the last number.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._steps = self._remaining = 1

    def next_interval(self) -> int:
        """Return the number of steps until the next all-reduce. Called at each of them."""
        now = time.monotonic()
        seconds_per_step = max(now - self._last, 1e-6) / self._steps
        self._steps = max(1, min(int(_INTERVAL_SECONDS / seconds_per_step), 2 * self._steps, _MAX_STEPS))
        self._last = now
        return self._steps

    def any_true(self, trainer: Trainer, flags: Sequence[Callable[[], bool]], *, now: bool = False) -> Tuple[bool, ...]:
        """Return for each flag whether it is true on any rank. Every rank must call it at each step.

        At steps without an all-reduce all of them are false. A single process needs none and returns its flags at each
        step. Global rank 0's clock determines the next step with one, which is sent in the same all-reduce.

        Args:
            trainer: The trainer.
            flags: Return this rank's flags. They are called at steps with an all-reduce only.
            now: Whether to reduce at this step in any case; the same on all ranks.
        """
        if trainer.world_size == 1:
            return tuple(flag() for flag in flags)
        self._remaining -= 1
        if self._remaining > 0 and not now:
            return tuple(False for _ in flags)
        interval = self.next_interval() if trainer.is_global_zero else 0
        *found, self._remaining = (int(value) for value in sums(trainer, [*(flag() for flag in flags), interval]))
        return tuple(value > 0 for value in found)


# Gloo's threads release the tensors of the last collective shortly after it has returned, and take the GIL for that.
# destroy_process_group holds the GIL while it joins these threads, which can deadlock; seen with torch 2.0.1 in one
# finished job of twenty, and with 2.4.1. Sleeping releases the GIL first.
_SLEEP_SECONDS = 0.2

_registered = False


def destroy_at_exit() -> None:
    """Destroy the default process group when the interpreter exits, if there is one by then.

    Lightning does so for NCCL only. Without it about one finished gloo job in ten ends with "terminate called without
    an active exception", which torchrun reports as a failure: gloo's threads outlive the interpreter.
    Nothing is registered before ``torch.distributed`` is imported.
    """
    global _registered
    if "torch.distributed" in sys.modules and not _registered:
        atexit.register(_destroy)
        _registered = True


def _destroy() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        time.sleep(_SLEEP_SECONDS)
        dist.destroy_process_group()


def digest_of(value: Any, digest: int = 0) -> int:
    """The CRC of the shapes and bytes of all tensors in nested containers, by which ranks see whether they differ."""
    import torch

    if isinstance(value, torch.Tensor):
        own = value.to_local() if hasattr(value, "to_local") else value
        digest = zlib.crc32(f"{own.dtype} {tuple(own.shape)}".encode(), digest)
        if own.layout is torch.strided and own.device.type != "meta":  # others have no bytes to look at
            content: Any = own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            digest = zlib.crc32(content, digest)
        return digest
    if isinstance(value, Mapping):
        value = list(value.values())
    for each in value if isinstance(value, (list, tuple)) else ():
        digest = digest_of(each, digest)
    return digest
