"""``Progress``: a progress line of a job's log, as a value.

The form is fixed, so that lines can be searched for and parsed::

    progress STAGE: NAME=VALUE NAME=VALUE ... | METRIC=VALUE, METRIC=VALUE, ...
    progress STAGE end: ...
"""

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._lightning.train_progress import TrainPosition
from lightning_sm._progress.rates import Rates

__all__ = ["Event", "Progress", "Stage", "estimate", "format_metrics", "format_seconds"]

_MAX_METRICS = 20
_MAX_NAME = 80
_MAX_TEXT = 40


class Stage(str, Enum):
    """What runs."""

    FIT = "fit"
    TRAIN = "train"
    SANITY = "sanity check"
    VALIDATION = "validation"
    TEST = "test"
    PREDICT = "predict"


class Event(str, Enum):
    """What a line says about its stage."""

    RUNNING = ""
    END = "end"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Progress:
    """A line. What is ``None`` is unknown and left out.

    Args:
        stage: What runs.
        event: Whether it goes on.
        epoch: Counted from 0, as in Lightning's progress bar and names of checkpoints.
        epochs: The number of epochs.
        batch: The batches so far; of the epoch, in training.
        batches: The number of them.
        step: The optimizer steps so far.
        rates: Since the line before, or at an end of the whole stage in this process.
        gpu_memory: Bytes that torch has reserved on the GPU of this process, and those that it has.
        seconds: How long the stage took, at its end.
        epoch_eta: Seconds to the end of the epoch.
        fit_eta: Seconds to the end of ``fit``.
        reason: What interrupted it.
        metrics: Values by their names.

    Example::

        >>> print(Progress(Stage.TRAIN, epoch=0, epochs=3, batch=7, batches=14, step=7,
        ...                rates=Rates(0.5, 5, 40, 0.1), epoch_eta=0.7, metrics={"loss": 0.25}))
        progress train: epoch=0/2 batch=7/14 percent=50 step=7 samples/s=80 step_time=100ms data_wait=20% \
eta_epoch=0:00:01 | loss=0.25
    """

    stage: Stage
    event: Event = Event.RUNNING
    epoch: Optional[int] = None
    epochs: Optional[int] = None
    batch: int = 0
    batches: Optional[int] = None
    step: Optional[int] = None
    rates: Rates = field(default_factory=lambda: Rates(0.0, 0))
    gpu_memory: Optional[Tuple[int, int]] = None
    seconds: Optional[float] = None
    epoch_eta: Optional[float] = None
    fit_eta: Optional[float] = None
    reason: Optional[str] = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        head = " ".join(word.value for word in (self.stage, self.event) if word.value)
        metrics = format_metrics(self.metrics)
        return f"progress {head}: {' '.join(self._words())}{f' | {metrics}' if metrics else ''}"

    def _words(self) -> Iterator[str]:
        rates, is_running = self.rates, self.event == Event.RUNNING
        if self.epoch is not None:
            last = None if self.epochs is None else max(self.epochs - 1, self.epoch)
            yield f"epoch={_of(self.epoch, last)}"
        yield f"batch={_of(self.batch, self.batches)}"
        if self.batches and is_running:
            yield f"percent={min(100 * self.batch // self.batches, 100)}"
        if self.step is not None:
            yield f"step={self.step}"
        if self.event != Event.RUNNING and rates.samples is not None:
            yield f"samples={rates.samples}"
        if rates.samples_per_second is not None:
            yield f"samples/s={_number(rates.samples_per_second)}"
        elif rates.batches_per_second is not None:
            yield f"batches/s={_number(rates.batches_per_second)}"
        if rates.step_time is not None:
            yield f"step_time={_number(rates.step_time * 1000)}ms"
        if rates.data_wait is not None:
            yield f"data_wait={round(rates.data_wait * 100)}%"
        if self.gpu_memory is not None:
            used, total = (number / 2**30 for number in self.gpu_memory)
            yield f"gpu_memory={used:.1f}/{total:.1f}GiB"
        for name, seconds in (("time", self.seconds), ("eta_epoch", self.epoch_eta), ("eta_fit", self.fit_eta)):
            if seconds is not None and math.isfinite(seconds):
                yield f"{name}={format_seconds(seconds)}"
        if self.reason is not None:
            yield f"reason={self.reason}"


def _of(number: int, total: Optional[int]) -> str:
    return str(number) if total is None else f"{number}/{total}"


def _number(value: float) -> str:
    """At least three digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"


def format_seconds(seconds: float) -> str:
    """Return hours, minutes and seconds.

    Example::

        >>> format_seconds(3725.4), format_seconds(90000)
        ('1:02:05', '25:00:00')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def format_metrics(metrics: Mapping[str, Any], limit: int = _MAX_METRICS) -> str:
    """Return metrics as text of bounded length, whatever they are.

    Args:
        metrics: Numbers, tensors, texts, or mappings of them.
        limit: How many are shown; the rest is counted.

    Example::

        >>> format_metrics({"loss": 0.123456789, "acc": {"top1": 0.5}, "n": 3}, limit=2)
        'loss=0.12346, acc.top1=0.5, and 1 more'
    """
    entries = _flat(metrics, "")
    words: List[str] = [f"{_one_line(name, _MAX_NAME)}={_value(value)}" for name, value in islice(entries, limit)]
    more = sum(1 for _ in entries)
    return ", ".join([*words, f"and {more} more"] if more else words)


def _flat(metrics: Mapping[Any, Any], prefix: str) -> Iterator[Tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(value: Any) -> str:
    try:
        if hasattr(value, "numel") and value.numel() != 1:
            return f"[{value.numel()} values]"
        number = value.item() if hasattr(value, "item") else value
        return f"{number:.5g}" if isinstance(number, float) else _one_line(str(number), _MAX_TEXT)
    except Exception as error:  # of a metric of the user's
        return type(error).__name__


def _one_line(text: str, length: int) -> str:
    text = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def estimate(
    now: TrainPosition, start: TrainPosition, total: Rates, other_seconds: float
) -> Tuple[Optional[float], Optional[float]]:
    """Estimate the seconds to the end of the epoch and of ``fit``.

    Args:
        now: The position.
        start: The position in which this process began to train.
        total: The rates of this process.
        other_seconds: The seconds that this process has spent on validation. They are taken to go on with each batch.

    Example::

        >>> start = TrainPosition(epoch=0, epochs=2, batch=0, batches=10)
        >>> now = TrainPosition(epoch=0, epochs=2, batch=5, batches=10, step=5)
        >>> estimate(now, start, Rates(seconds=5.0, batches=5), other_seconds=0.0)
        (5.0, 15.0)
    """
    if total.step_time is None:
        return None, now.seconds_left
    left_in_epoch = None if now.batches is None else max(now.batches - now.batch, 0)
    left: List[float] = []
    if now.epochs is not None and now.batches is not None and left_in_epoch is not None:
        left.append(max(now.epochs - now.epoch - 1, 0) * now.batches + left_in_epoch)
    steps_of_batch = (now.step - start.step) / total.batches
    if now.steps is not None and steps_of_batch > 0:
        left.append(max(now.steps - now.step, 0) / steps_of_batch)
    seconds = [batches * (total.step_time + other_seconds / total.batches) for batches in left]
    if now.seconds_left is not None:
        seconds.append(now.seconds_left)
    fit = min(seconds, default=None)
    epoch = None if left_in_epoch is None else min([left_in_epoch, *left]) * total.step_time
    return epoch if epoch is None or fit is None else min(epoch, fit), fit
