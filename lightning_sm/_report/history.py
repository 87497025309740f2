"""``History``: the logged values of a training and its restarts, thinned while they are recorded.

A curve that has too many points is divided into equal ranges of steps, and the smallest and the largest value of each
range are kept, so that no spike is lost. The first and the last value are exact.
"""

import base64
import json
import math
import zlib
from array import array
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

__all__ = ["MAX_CURVES", "MAX_CURVE_POINTS", "MAX_POINTS", "Attempt", "Curve", "History", "Kind", "thin"]

#: Points that are kept of all curves together; a point takes 16 bytes in memory.
MAX_POINTS = 40_000
#: Points that are kept of one curve, however few there are.
MAX_CURVE_POINTS = 2_000
#: Curves that are recorded; of further names only the number is known.
MAX_CURVES = 1_000
_MAX_NAME = 300
_MAX_ATTEMPTS = 100
_VERSION = 1


class Kind(str, Enum):
    """What a curve shows, and the heading that it stands under."""

    METRIC = "Metrics"
    THROUGHPUT = "Throughput"
    LEARNING_RATE = "Learning rate"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Curve:
    """The values of one name over the optimizer steps.

    Args:
        name: The name of the metric.
        kind: What it is.
        steps: The number of optimizer steps at each kept point.
        values: The value at each of them; all are finite.
        count: How many finite values were recorded in all.
        last: The value that was recorded last, as it was, finite or not.
        not_finite: How many values were NaN or infinite.
        first_not_finite: The step of the first of them.
    """

    name: str
    kind: Kind = Kind.METRIC
    steps: Tuple[int, ...] = ()
    values: Tuple[float, ...] = ()
    count: int = 0
    last: float = math.nan
    not_finite: int = 0
    first_not_finite: Optional[int] = None


@dataclass(frozen=True)
class Attempt:
    """One start of the training job, which SageMaker restarts after an interruption.

    Args:
        started: When the fit started, in seconds since 1970 (UTC).
        checkpoint: The checkpoint that it resumed from; ``None`` for a training from scratch.
        step: The optimizer step that it started at.
        epoch: The index of the epoch that it started in.
    """

    started: float
    checkpoint: Optional[str] = None
    step: int = 0
    epoch: int = 0


def thin(steps: Sequence[int], values: Sequence[float], limit: int) -> Tuple[List[int], List[float]]:
    """Return at most ``limit`` points, but at least 4: the ends, and the extremes of equal ranges of the steps.

    Args:
        steps: The steps.
        values: Their values, all of them finite.
        limit: The number of points to keep.

    Example::

        >>> thin([0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 9, 0, 0, 1, 0, 0], limit=6)
        ([0, 2, 4, 5, 7], [0, 9, 0, 1, 0])
    """
    if len(values) <= max(4, limit):
        return list(steps), list(values)
    first = min(steps)
    width = max(steps) - first + 1
    groups = max(1, limit // 2 - 1)
    lowest: Dict[int, int] = {}
    highest: Dict[int, int] = {}
    for index, value in enumerate(values):
        group = (steps[index] - first) * groups // width
        if group not in lowest:
            lowest[group] = highest[group] = index
        elif value < values[lowest[group]]:
            lowest[group] = index
        elif value > values[highest[group]]:
            highest[group] = index
    kept = sorted({0, *lowest.values(), *highest.values(), len(values) - 1})
    return [steps[index] for index in kept], [values[index] for index in kept]


class _Recorder:
    """A curve while it is recorded."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.steps, self.values = array("q"), array("d")
        self.count = self.not_finite = 0
        self.last = math.nan
        self.first_not_finite: Optional[int] = None

    def add(self, step: int, value: float, limit: int) -> None:
        self.last = value
        if not math.isfinite(value):
            self.not_finite += 1
            self.first_not_finite = step if self.first_not_finite is None else self.first_not_finite
            return
        self.count += 1
        self.steps.append(step)
        self.values.append(value)
        # Only at twice the limit, so that a point costs the same however many there are.
        if len(self.values) > 2 * limit:
            self.shorten(limit)

    def shorten(self, limit: int) -> None:
        steps, values = thin(self.steps, self.values, limit)
        self.steps, self.values = array("q", steps), array("d", values)


class History:
    """Records the curves and the attempts of a training, and continues those of the attempt before.

    Example::

        >>> history = History()
        >>> history.add("loss", 10, 0.5)
        >>> continued = History.from_plain(history.to_plain())
        >>> continued.add("loss", 20, 0.25)
        >>> [(curve.name, curve.steps, curve.values) for curve in continued.curves()]
        [('loss', (10, 20), (0.5, 0.25))]
    """

    def __init__(self) -> None:
        self.attempts: List[Attempt] = []
        self._recorders: Dict[Any, _Recorder] = {}
        self._left_out: Set[str] = set()
        self._limit = MAX_CURVE_POINTS

    @property
    def num_left_out(self) -> int:
        """How many names were not recorded, because there were more than ``MAX_CURVES`` or they hold no numbers."""
        return len(self._left_out)

    def add(self, name: str, step: int, value: Any, kind: Kind = Kind.METRIC) -> None:
        """Record a value. What is no number is left out.

        Args:
            name: The name of the metric.
            step: The number of optimizer steps.
            value: A number, or a tensor of one element.
            kind: What it is.
        """
        # An Enum is hashed by Python code, which takes as long as the rest of this method.
        recorder = self._recorders.get(name if kind is Kind.METRIC else (kind.name, name))
        try:
            number = float(value)
            if recorder is None:
                recorder = self._recorder(kind, str(name)[:_MAX_NAME])
            recorder.add(step, number, self._limit)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several elements
            if len(self._left_out) < MAX_CURVES:
                self._left_out.add(str(name)[:_MAX_NAME])

    def _recorder(self, kind: Kind, name: str) -> _Recorder:
        key = name if kind is Kind.METRIC else (kind.name, name)
        if key not in self._recorders:
            if kind is Kind.METRIC and len(self._recorders) >= MAX_CURVES:
                raise ValueError("too many curves")
            self._recorders[key] = _Recorder(name, kind)
            self._limit = max(4, min(MAX_CURVE_POINTS, MAX_POINTS // len(self._recorders)))
        return self._recorders[key]

    def add_attempt(self, attempt: Attempt) -> None:
        """Note a start of the training; of very many the first and the newest are kept."""
        self.attempts.append(attempt)
        del self.attempts[1 : max(1, len(self.attempts) - _MAX_ATTEMPTS)]

    def curves(self) -> Tuple[Curve, ...]:
        """Return what was recorded, at most ``MAX_POINTS`` points in all."""
        curves = []
        for recorder in self._recorders.values():
            recorder.shorten(self._limit)
            steps, values = tuple(recorder.steps), tuple(recorder.values)
            counts = (recorder.count, recorder.last, recorder.not_finite, recorder.first_not_finite)
            curves.append(Curve(recorder.name, recorder.kind, steps, values, *counts))
        return tuple(curves)

    def to_plain(self) -> Dict[str, Any]:
        """Return the history as text and numbers, for a checkpoint: at most 0.7 MB, mostly far less."""
        curves = self.curves()
        numbers = array("q"), array("d")
        for curve in curves:
            numbers[0].extend(curve.steps)
            numbers[1].extend(curve.values)
        rows = [
            [curve.name, curve.kind.value, len(curve.steps), curve.count, curve.not_finite, curve.first_not_finite]
            for curve in curves
        ]
        header = {"curves": rows, "last": [repr(curve.last) for curve in curves]}
        points = zlib.compress(numbers[0].tobytes() + numbers[1].tobytes(), 1)
        return {
            "version": _VERSION,
            "header": json.dumps({**header, "attempts": [asdict(attempt) for attempt in self.attempts]}),
            "points": base64.b64encode(points).decode("ascii"),
        }

    @classmethod
    def from_plain(cls, content: Any) -> "History":
        """Return the history that :meth:`to_plain` was called on; an empty one if ``content`` is something else."""
        history = cls()
        try:
            if content["version"] != _VERSION:
                return history
            header = json.loads(content["header"])
            data = zlib.decompress(base64.b64decode(content["points"]))
            steps, values = array("q", data[: len(data) // 2]), array("d", data[len(data) // 2 :])
            start = 0
            for row, last in zip(header["curves"], header["last"]):
                name, kind, size, count, not_finite, first_not_finite = row
                recorder = history._recorder(Kind(kind), str(name))
                recorder.steps, recorder.values = steps[start : start + size], values[start : start + size]
                recorder.count, recorder.not_finite = int(count), int(not_finite)
                recorder.first_not_finite, recorder.last = first_not_finite, float(last)
                start += size
            history.attempts = [Attempt(**attempt) for attempt in header["attempts"]]
        except (KeyError, TypeError, ValueError, zlib.error):
            return cls()
        return history
