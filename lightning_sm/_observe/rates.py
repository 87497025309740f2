"""``Rates``: how fast batches go; ``Counter`` counts them, and ``BatchSize`` reads how many samples one holds."""

import math
import time
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any, Callable, Mapping, Optional, Sequence

__all__ = ["BatchSize", "Counter", "Rates"]

# A batch is searched for its first tensor this deep, among this many entries of a collection.
_DEPTH = 4
_ENTRIES = 8


@dataclass(frozen=True)
class Rates:
    """How fast a number of batches went. Validation does not count in a training, saving checkpoints does.

    Args:
        seconds: The time that passed.
        batches: The batches of this process.
        samples: The samples of all processes, if this process has as many as each other one; NaN if the size of a batch
            is unknown.
        waited: The seconds of ``seconds`` in which the loop waited for the data loader.

    Example::

        >>> rates = Rates(seconds=2.0, batches=8, samples=64, waited=0.5)
        >>> rates.step_time, rates.samples_per_second, rates.data_wait
        (0.25, 32.0, 0.25)
    """

    seconds: float = 0.0
    batches: int = 0
    samples: float = 0
    waited: float = 0.0

    def __sub__(self, before: "Rates") -> "Rates":
        return Rates(
            self.seconds - before.seconds,
            self.batches - before.batches,
            self.samples - before.samples,
            self.waited - before.waited,
        )

    @property
    def step_time(self) -> float:
        """Seconds for a batch; there must be one, as for the other rates."""
        return self.seconds / self.batches

    @property
    def samples_per_second(self) -> float:
        """Samples of all processes in a second; NaN if their number is unknown."""
        return self.samples / self.seconds

    @property
    def data_wait(self) -> float:
        """The share of the time in which the loop waited for the data loader, from 0 to 1."""
        return min(self.waited / self.seconds, 1.0)


class Counter:
    """Counts the batches, samples and seconds of one stage in this process.

    Args:
        clock: Returns seconds; it must not go backwards.

    Example::

        >>> seconds = iter(range(100))
        >>> counter = Counter(clock=lambda: next(seconds))
        >>> for _ in range(3):
        ...     counter.count(samples=8)
        >>> counter.total.samples_per_second
        8.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        #: The time at the end of the latest batch, or of a validation after it.
        self.latest = self.started = clock()
        #: Seconds in which something else went on, such as a validation.
        self.paused_for = 0.0
        self._batches, self._samples, self._waited = 0, 0.0, 0.0
        self._fetching: Optional[float] = None
        self._paused: Optional[float] = None

    def fetch_started(self) -> None:
        """Note that the loop asks for a batch."""
        self._fetching = self.clock()

    def fetch_ended(self) -> None:
        """Note that the loop has got a batch, or that there are no more."""
        if self._fetching is not None:
            self._waited += self.clock() - self._fetching
            self._fetching = None

    def pause(self) -> None:
        """Note that something else begins."""
        self._paused = self.clock()

    def resume(self) -> None:
        """Note that it goes on."""
        if self._paused is not None:
            self.latest = self.clock()
            self.paused_for += self.latest - self._paused
            self._paused = None

    def count(self, samples: Optional[int]) -> None:
        """Count a batch.

        Args:
            samples: Its samples in all processes; ``None`` if unknown.
        """
        self._batches += 1
        self._samples += math.nan if samples is None else samples
        self.latest = self.clock()

    @property
    def total(self) -> Rates:
        """The rates from the start to the end of the latest batch."""
        return Rates(self.latest - self.started - self.paused_for, self._batches, self._samples, self._waited)


class BatchSize:
    """Reads the number of samples of each batch.

    It is the length of the first tensor in the batch, as in Lightning's ``extract_batch_size``, unless the first batch
    shows that this is not what the data loader calls a batch: a list of images, for example, whose first tensor has as
    many rows as an image has channels. Then each batch counts as many samples as the data loader says.

    Args:
        loaders: The data loaders whose batches come together; one in most cases.

    Example::

        >>> import torch
        >>> sizes = BatchSize([torch.utils.data.DataLoader(range(16), batch_size=8)])
        >>> sizes.read((torch.zeros(8, 3), torch.zeros(8))), sizes.read((torch.zeros(5, 3), torch.zeros(5)))
        (8, 5)
    """

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._expected = _batch_size_of(loaders[0]) if len(loaders) == 1 else None
        self._reads_tensors: Optional[bool] = None

    def read(self, batch: Any) -> Optional[int]:
        """Return the number of samples of a batch; ``None`` if it is unknown. It never raises."""
        if self._reads_tensors is False:
            return self._expected
        try:
            found = _first_length(batch, _DEPTH)
        except Exception:  # an object of the user's, whose `shape` is a method or raises
            found = None
        if self._reads_tensors is None:
            self._reads_tensors = self._expected in (None, found)
        return found if self._reads_tensors else self._expected


def _batch_size_of(loader: Any) -> Optional[int]:
    try:
        size = int(loader.batch_size or loader.batch_sampler.batch_size)
        # A sampler of an endless data set has no length.
        return max(min(size, length_hint(loader.sampler, size)), 1)
    except Exception:  # no torch.utils.data.DataLoader, or one of the user's that does anything
        return None


def _first_length(batch: Any, depth: int) -> Optional[int]:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth == 0 or not isinstance(batch, (list, tuple, Mapping)):
        return None
    for entry in islice(batch.values() if isinstance(batch, Mapping) else batch, _ENTRIES):
        length = _first_length(entry, depth - 1)
        if length is not None:
            return length
    return None
