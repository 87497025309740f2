"""``Rates``: how fast batches go; ``Counter`` counts them, and ``BatchSize`` reads how many samples one holds."""

import time
from dataclasses import dataclass
from itertools import islice
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
        samples: The samples of all processes, if this process has as many as each other one; ``None`` if the size of a
            batch is unknown.
        waited: The seconds of ``seconds`` in which the loop waited for the data loader; ``None`` if unknown.

    Example::

        >>> rates = Rates(seconds=2.0, batches=8, samples=64, waited=0.5)
        >>> rates.step_time, rates.batches_per_second, rates.samples_per_second, rates.data_wait
        (0.25, 4.0, 32.0, 0.25)
    """

    seconds: float
    batches: int
    samples: Optional[int] = None
    waited: Optional[float] = None

    @property
    def step_time(self) -> Optional[float]:
        """Seconds for a batch."""
        return self.seconds / self.batches if self.batches else None

    @property
    def batches_per_second(self) -> Optional[float]:
        """Batches of this process in a second."""
        return self.batches / self.seconds if self.batches and self.seconds > 0 else None

    @property
    def samples_per_second(self) -> Optional[float]:
        """Samples of all processes in a second."""
        return self.samples / self.seconds if self.samples and self.seconds > 0 else None

    @property
    def data_wait(self) -> Optional[float]:
        """The share of the time in which the loop waited for the data loader, from 0 to 1."""
        return min(self.waited / self.seconds, 1.0) if self.waited is not None and self.seconds > 0 else None


@dataclass(frozen=True)
class Mark:
    """A moment of a :class:`Counter`. All values count from its start."""

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    unsized: int = 0
    waited: float = 0.0


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
        self.latest = self._started = clock()
        #: Seconds in which something else went on, such as a validation.
        self.paused_for = 0.0
        self._batches = self._samples = self._unsized = 0
        self._waited = 0.0
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
        if samples is None:
            self._unsized += 1
        else:
            self._samples += samples
        self.latest = self.clock()

    def mark(self) -> Mark:
        """Return this moment, the end of the latest batch."""
        seconds = max(self.latest - self._started - self.paused_for, 0.0)
        return Mark(seconds, self._batches, self._samples, self._unsized, self._waited)

    def since(self, mark: Mark) -> Rates:
        """Return the rates from a moment to the end of the latest batch."""
        now = self.mark()
        samples = now.samples - mark.samples if now.unsized == mark.unsized else None
        waited = max(now.waited - mark.waited, 0.0)
        return Rates(max(now.seconds - mark.seconds, 0.0), now.batches - mark.batches, samples, waited)

    @property
    def total(self) -> Rates:
        """The rates from the start to the end of the latest batch."""
        return self.since(Mark())


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

    def __init__(self, loaders: Sequence[Any] = ()) -> None:
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
            self._reads_tensors = self._expected is None or found == self._expected
            return found if self._reads_tensors else self._expected
        return found


def _batch_size_of(loader: Any) -> Optional[int]:
    try:
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
    except Exception:  # of a loader of the user's
        return None
    if not isinstance(size, int) or size < 1:
        return None
    try:
        return max(min(size, len(loader.sampler)), 1)
    except Exception:  # without a length, or anything else that a user's sampler does
        return size


def _first_length(batch: Any, depth: int) -> Optional[int]:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth == 0 or isinstance(batch, (str, bytes)):
        return None
    if not isinstance(batch, (list, tuple, Mapping)):
        # Data classes, and batches of graphs, whose first tensor may be anything: a count of their own is the best.
        graphs = getattr(batch, "num_graphs", None)
        return graphs if isinstance(graphs, int) else None
    for entry in islice(batch.values() if isinstance(batch, Mapping) else batch, _ENTRIES):
        length = _first_length(entry, depth - 1)
        if length is not None:
            return length
    return None
