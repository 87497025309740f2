"""``History``: the values of a training and its restarts over the steps, thinned while they are recorded.

A curve that has too many points is divided into equal ranges of steps, and the smallest and the largest value of each
range are kept, so that no spike is lost. The first and the last value are exact.
"""

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

__all__ = ["MAX_CURVES", "MAX_CURVE_POINTS", "MAX_POINTS", "Attempt", "Curve", "History", "Kind", "thin"]

#: Points that are kept of all curves together.
MAX_POINTS = 40_000
#: Points that are kept of one curve, however few there are.
MAX_CURVE_POINTS = 2_000
#: Curves that are recorded; of further names only the number is known.
MAX_CURVES = 1_000
_MAX_NAME = 300
_MAX_ATTEMPTS = 100


class Kind(str, Enum):
    """What a curve shows, and the heading that it stands under."""

    METRIC = "Metrics"
    THROUGHPUT = "Throughput"
    LEARNING_RATE = "Learning rate"


@dataclass
class Curve:
    """The values of one name over the optimizer steps.

    Args:
        name: The name of the metric.
        kind: What it is.
        steps: The step at each kept point.
        values: The value at each of them; all are finite.
        count: How many finite values were recorded in all.
        last: The value that was recorded last, as it was, finite or not.
        not_finite: How many values were NaN or infinite.
        first_not_finite: The step of the first of them.
    """

    name: str
    kind: Kind = Kind.METRIC
    steps: List[int] = field(default_factory=list)
    values: List[float] = field(default_factory=list)
    count: int = 0
    last: float = math.nan
    not_finite: int = 0
    first_not_finite: Optional[int] = None

    def add(self, step: int, value: float, limit: int) -> None:
        """Record a value, and thin the curve at twice the limit: a point costs the same however many there are."""
        self.last = value
        if not math.isfinite(value):
            self.not_finite += 1
            self.first_not_finite = step if self.first_not_finite is None else self.first_not_finite
            return
        self.count += 1
        self.steps.append(step)
        self.values.append(value)
        if len(self.values) > 2 * limit:
            self.steps, self.values = thin(self.steps, self.values, limit)


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


class History:
    """Records the curves and the attempts of a training, and continues those of the attempt before.

    Example::

        >>> history = History()
        >>> history.add("loss", 10, 0.5)
        >>> continued = History.from_plain(history.to_plain())
        >>> continued.add("loss", 20, 0.25)
        >>> [(curve.name, curve.steps, curve.values) for curve in continued.curves()]
        [('loss', [10, 20], [0.5, 0.25])]
    """

    def __init__(self) -> None:
        self.attempts: List[Attempt] = []
        self._curves: Dict[Tuple[str, str], Curve] = {}
        self._left_out: Set[str] = set()

    @property
    def _limit(self) -> int:
        """How many points of a curve are kept."""
        return max(4, min(MAX_CURVE_POINTS, MAX_POINTS // max(1, len(self._curves))))

    @property
    def num_left_out(self) -> int:
        """How many names were not recorded, because there were more than ``MAX_CURVES`` or they hold no numbers."""
        return len(self._left_out)

    def add(self, name: str, step: int, value: Any, kind: Kind = Kind.METRIC) -> None:
        """Record a number, or a tensor of one element. What is neither is left out."""
        name = str(name)[:_MAX_NAME]
        try:
            number = float(value)
            self._curve(name, kind).add(step, number, self._limit)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several elements
            if len(self._left_out) < MAX_CURVES:
                self._left_out.add(name)

    def _curve(self, name: str, kind: Kind) -> Curve:
        key = (kind._value_, name)  # an Enum is hashed by Python code
        if key not in self._curves:
            if kind is Kind.METRIC and len(self._curves) >= MAX_CURVES:
                raise ValueError("too many curves")
            self._curves[key] = Curve(name, kind)
        return self._curves[key]

    def add_attempt(self, attempt: Attempt) -> None:
        """Note a start of the training; of very many the first and the newest are kept."""
        self.attempts.append(attempt)
        del self.attempts[1 : max(1, len(self.attempts) - _MAX_ATTEMPTS)]

    def curves(self) -> Tuple[Curve, ...]:
        """Return what was recorded, at most ``MAX_POINTS`` points in all."""
        for curve in self._curves.values():
            curve.steps, curve.values = thin(curve.steps, curve.values, self._limit)
        return tuple(self._curves.values())

    def to_plain(self) -> Dict[str, Any]:
        """Return the history as text and numbers, for a checkpoint: at most 0.7 MB, mostly far less."""
        curves = [{**vars(curve), "kind": curve.kind.value} for curve in self.curves()]
        return {"curves": curves, "attempts": [asdict(attempt) for attempt in self.attempts]}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "History":
        """Return the history that :meth:`to_plain` was called on."""
        history = cls()
        for saved in content["curves"]:
            curve = Curve(**{**saved, "kind": Kind(saved["kind"])})
            history._curves[curve.kind.value, curve.name] = curve
        history.attempts = [Attempt(**attempt) for attempt in content["attempts"]]
        return history
