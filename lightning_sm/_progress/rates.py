"""``StepRates``: how fast this process trains, measured from the hooks of a callback.

:class:`RecordsRates` is the callback's part that measures. Each callback that inherits from it has a
:class:`StepRates` in ``self.rates``, so that one that shows progress and one that reports work without each other, and
beside a progress bar of the user's own. A callback whose class sets ``shares_rates`` measures nothing itself where
another one does::

    class ReportMixin(RecordsRates, _Base):
        def on_fit_end(self, trainer, pl_module):
            for point in self.rates.history:
                point.seconds, point.step, point.samples_per_second, point.step_time, point.data_wait

Hooks that are overridden must call ``super()``.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Union

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.train_progress import around_fetches, replicas_of, train_loaders
from lightning_sm._lightning.trainer import callbacks_of
from lightning_sm._lightning.trainer_hooks import skip_hooks
from lightning_sm._progress.batches import BatchSize

__all__ = ["RatePoint", "Rates", "RecordsRates", "StepRates"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

# At least this many seconds lie between two points of the history, and twice as many each time it is full.
_RESOLUTION = 1.0
_MAX_POINTS = 1000


@dataclass(frozen=True)
class Rates:
    """How fast a number of batches was trained. Validation does not count, saving checkpoints does.

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
class RatePoint:
    """The rates of the batches since the point before it.

    Args:
        seconds: Since the start of ``fit`` in this process, by a monotonic clock, validation included.
        step: The global step.
        rates: The rates.
    """

    seconds: float
    step: int
    rates: Rates

    @property
    def samples_per_second(self) -> Optional[float]:
        """Samples of all processes in a second."""
        return self.rates.samples_per_second

    @property
    def step_time(self) -> Optional[float]:
        """Seconds for a batch."""
        return self.rates.step_time

    @property
    def data_wait(self) -> Optional[float]:
        """The share of the time in which the loop waited for the data loader, from 0 to 1."""
        return self.rates.data_wait


@dataclass(frozen=True)
class Mark:
    """A moment of a :class:`StepRates`, from which rates can be counted. All values count from the start of ``fit``."""

    seconds: float
    batches: int
    samples: int
    unsized: int
    waited: float


class StepRates:
    """Counts batches, samples and seconds of one ``fit`` in this process, and keeps a bounded history of the rates.

    Args:
        clock: Returns seconds; it must not go backwards.
        max_points: The largest length of :attr:`history`. When it is reached, each two points become one.

    Example::

        >>> seconds = iter(range(100))
        >>> rates = StepRates(clock=lambda: next(seconds))
        >>> rates.start()
        >>> for step in range(1, 4):
        ...     _ = rates.batch_trained(samples=8, step=step)
        >>> rates.total.samples_per_second, [point.step for point in rates.history]
        (8.0, [1, 2, 3])
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_points: int = _MAX_POINTS) -> None:
        self._clock, self._max_points = clock, max_points
        self.measures_fetches = False
        self.start()

    def start(self) -> None:
        """Begin to count anew."""
        self._started = self._latest = self._clock()
        self._batches = self._samples = self._unsized = 0
        self._waited = self._paused_for = 0.0
        self._fetching: Optional[float] = None
        self._paused: Optional[float] = None
        self._history: List[RatePoint] = []
        self._resolution = _RESOLUTION
        self._point = Mark(0.0, 0, 0, 0, 0.0)

    def fetch_started(self) -> None:
        """Note that the loop asks for a batch."""
        self.measures_fetches = True
        self._fetching = self._clock()

    def fetch_ended(self) -> None:
        """Note that the loop has got a batch, or that there are no more."""
        if self._fetching is not None:
            self._waited += self._clock() - self._fetching
            self._fetching = None

    @property
    def is_fetching(self) -> bool:
        """Whether the loop waits for a batch now."""
        return self._fetching is not None

    def pause(self) -> None:
        """Note that something else than training begins, such as a validation."""
        if self._paused is None:
            self._paused = self._clock()

    def resume(self) -> None:
        """Note that training goes on."""
        if self._paused is not None:
            self._latest = self._clock()
            self._paused_for += self._latest - self._paused
            self._paused = None

    def batch_trained(self, samples: Optional[int], step: Union[int, Callable[[], int]]) -> float:
        """Count a batch.

        Args:
            samples: Its samples in all processes; ``None`` if unknown.
            step: The global step, or a function that returns it where that takes longer; it is mostly not called.

        Returns:
            The time now.
        """
        self._batches += 1
        if samples is None:
            self._unsized += 1
        else:
            self._samples += samples
        self._fetching = None  # of an iterator that was exhausted, in Lightning 1.6 and earlier
        self._latest = now = self._clock()
        if now - self._started - self._paused_for - self._point.seconds >= self._resolution:
            self._add_point(step if isinstance(step, int) else step())
        return now

    @property
    def latest(self) -> float:
        """The time at the end of the latest batch, or of a validation after it."""
        return self._latest

    def mark(self) -> Mark:
        """Return this moment, the end of the latest batch."""
        seconds = max(self._latest - self._started - self._paused_for, 0.0)
        return Mark(seconds, self._batches, self._samples, self._unsized, self._waited)

    def since(self, mark: Mark) -> Rates:
        """Return the rates from a moment to the end of the latest batch."""
        now = self.mark()
        samples = now.samples - mark.samples if now.unsized == mark.unsized else None
        waited = max(now.waited - mark.waited, 0.0) if self.measures_fetches else None
        return Rates(max(now.seconds - mark.seconds, 0.0), now.batches - mark.batches, samples, waited)

    @property
    def total(self) -> Rates:
        """The rates from the start to the end of the latest batch."""
        return self.since(Mark(0.0, 0, 0, 0, 0.0))

    @property
    def validated_for(self) -> float:
        """The seconds that did not count as training."""
        return self._paused_for

    @property
    def history(self) -> Sequence[RatePoint]:
        """The rates over the time, oldest first: at most ``max_points``, at first a second apart."""
        return tuple(self._history)

    def _add_point(self, step: int) -> None:
        self._history.append(RatePoint(self._latest - self._started, step, self.since(self._point)))
        self._point = self.mark()
        if len(self._history) >= self._max_points:
            pairs = zip(self._history[::2], self._history[1::2])
            self._history = [RatePoint(second.seconds, second.step, _sum(first, second)) for first, second in pairs]
            self._resolution *= 2


def _sum(first: RatePoint, second: RatePoint) -> Rates:
    one, two = first.rates, second.rates
    samples = None if one.samples is None or two.samples is None else one.samples + two.samples
    waited = None if one.waited is None or two.waited is None else one.waited + two.waited
    return Rates(one.seconds + two.seconds, one.batches + two.batches, samples, waited)


class RecordsRates(_Base):
    """Base of callbacks that measure how fast ``fit`` trains, in ``self.rates``. See the module."""

    namespace: Namespace
    #: Whether the rates of another callback of the trainer are used if there is one, which halves the time per step.
    shares_rates = False

    def __init__(self) -> None:
        super().__init__()
        self.rates = StepRates()
        self._own_rates = self.rates
        self._batch_size = BatchSize()
        self._replicas: Optional[int] = None
        self._stop_measuring: Optional[Callable[[], None]] = None

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer."""
        return {**vars(self), "_stop_measuring": None}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count. A resumed run counts what this process trains."""
        super().on_train_start(trainer, pl_module)
        others = [each for each in callbacks_of(trainer) if isinstance(each, RecordsRates) and not each.shares_rates]
        self.rates = others[0].rates if self.shares_rates and others else self._own_rates
        is_shared = self.rates is not self._own_rates
        if type(self).on_train_batch_end is RecordsRates.on_train_batch_end:
            skip_hooks(self.namespace, self, ("on_train_batch_end",), skip=is_shared)
        if is_shared:
            return
        self._replicas = None
        with suppress(Exception):  # of a strategy of the user's; the number of samples is then unknown
            self._replicas = replicas_of(trainer)
        self.rates.start()
        self._begin_epoch(trainer)  # an epoch that is continued has no hook of its start

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Learn the size of the batches, which may differ from epoch to epoch."""
        super().on_train_epoch_start(trainer, pl_module)
        if self.rates is self._own_rates:
            self._begin_epoch(trainer)

    def _begin_epoch(self, trainer: Any) -> None:
        self._measure_fetches(trainer)  # Lightning 1.5 has made the fetcher by the epoch's start, newer versions before
        self._batch_size = BatchSize()
        with suppress(Exception):  # of a loader of the user's
            self._batch_size = BatchSize.of(train_loaders(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *args: Any) -> None:
        """Count a batch."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, *args)
        if self.rates is not self._own_rates:
            return
        size = self._batch_size.read(batch)
        samples = None if size is None or self._replicas is None else size * self._replicas
        self.rates.batch_trained(samples, lambda: int(trainer.global_step))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Do not count the time of a validation."""
        super().on_validation_start(trainer, pl_module)
        if self.rates is self._own_rates:
            self.rates.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Count the time again."""
        super().on_validation_end(trainer, pl_module)
        if self.rates is self._own_rates:
            self.rates.resume()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the measurement."""
        super().on_exception(trainer, pl_module, exception)
        self._end_measuring()

    def teardown(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """End the measurement."""
        super().teardown(trainer, pl_module, stage)
        self._end_measuring()

    def _measure_fetches(self, trainer: Any) -> None:
        self._end_measuring()
        started, ended = self.rates.fetch_started, self.rates.fetch_ended
        with suppress(Exception):  # of a loop of the user's; the share of waiting is then unknown
            self._stop_measuring = around_fetches(self.namespace, trainer, started, ended)

    def _end_measuring(self) -> None:
        if self._stop_measuring is not None:
            self._stop_measuring()
            self._stop_measuring = None
