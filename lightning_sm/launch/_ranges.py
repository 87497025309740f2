"""``ParameterRange``: the values that a hyperparameter may have in a tuning job."""

import json
import math
import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Mapping, Sequence, Tuple

from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import LaunchError

__all__ = ["ParameterRange", "RangeKind", "as_number", "as_range"]

_TYPES = ("integer", "continuous")
_SCALES = {"auto": "Auto", "linear": "Linear", "log": "Logarithmic", "reverse_log": "ReverseLogarithmic"}
# YAML 1.1 takes 1e-3 for text.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class RangeKind(str, Enum):
    """The kinds of ranges, as the API names them."""

    CATEGORICAL = "Categorical"
    CONTINUOUS = "Continuous"
    INTEGER = "Integer"


@dataclass(frozen=True)
class ParameterRange:
    """The values that a hyperparameter may have in a tuning job.

    Args:
        name: The hyperparameter.
        kind: The kind of the range.
        values: The values of a categorical one, as JSON.
        minimum: The least value of the others.
        maximum: The greatest value of the others.
        scale: ``auto``, ``linear``, ``log`` or ``reverse_log``.
    """

    name: str
    kind: RangeKind
    values: Tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = 1.0
    scale: str = "auto"

    def as_request(self) -> Dict[str, Any]:
        """The range as the API takes it."""
        if self.kind is RangeKind.CATEGORICAL:
            return {"Name": self.name, "Values": list(self.values)}
        ends = {"MinValue": str(self.minimum), "MaxValue": str(self.maximum)}
        return {"Name": self.name, **ends, "ScalingType": _SCALES[self.scale]}

    def draw(self, numbers: random.Random) -> str:
        """A value of the range as a training job gets it. The scale ``auto`` is taken for ``linear``."""
        if self.kind is RangeKind.CATEGORICAL:
            return numbers.choice(self.values)
        low, high = self.minimum, self.maximum
        if self.scale == "log":
            value = math.exp(numbers.uniform(math.log(low), math.log(high)))
        elif self.scale == "reverse_log":
            value = 1 - math.exp(numbers.uniform(math.log(1 - high), math.log(1 - low)))
        else:
            value = numbers.uniform(low, high)
        value = min(high, max(low, value))
        return str(round(value)) if self.kind is RangeKind.INTEGER else str(value)


def as_number(value: Any) -> Any:
    """Return the number that a text such as ``1e-3`` means, and any other value as it is.

    Example::

        >>> as_number("1e-3"), as_number("adam"), as_number(3)
        (0.001, 'adam', 3)
    """
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def as_range(name: str, given: Any) -> ParameterRange:
    """Return a range from a list of values, or from a mapping with its ends.

    Args:
        name: The hyperparameter.
        given: The values, or ``min``, ``max``, ``scale`` and ``type``.

    Raises:
        LaunchError: It is no range, or no training job could have a hyperparameter of that name.

    Example::

        >>> as_range("model.lr", {"min": "1e-5", "max": 0.1, "scale": "log"}).as_request()
        {'Name': 'model.lr', 'MinValue': '1e-05', 'MaxValue': '0.1', 'ScalingType': 'Logarithmic'}
        >>> as_range("model.optimizer", ["adam", "sgd"]).values
        ('"adam"', '"sgd"')
    """
    if not re.fullmatch(r"[^\s=-][^\s=]*", name) or name.endswith("+") or is_reserved(name):
        raise LaunchError(
            f"--range has the name {name!r}, which no hyperparameter of a training job can have.",
            hint="Name a key such as model.lr; names of SageMaker's own (sagemaker_*) are taken.",
        )
    if isinstance(given, list):
        return _categorical(name, given)
    unknown = sorted(set(given) - {"min", "max", "scale", "type"}) if isinstance(given, Mapping) else [given]
    if unknown or not {"min", "max"} <= set(given):
        raise LaunchError(
            f"--range {name} is {given!r}.", hint="Give a list of values, or {min: …, max: …, scale: …, type: …}."
        )
    low, high = (_end(name, given[end]) for end in ("min", "max"))
    scale, kind = given.get("scale", "auto"), given.get("type")
    if kind not in (None, *_TYPES) or scale not in _SCALES:
        raise LaunchError(
            f"--range {name} is {dict(given)!r}.", hint=f"type: {', '.join(_TYPES)}; scale: {', '.join(_SCALES)}."
        )
    whole = isinstance(low, int) and isinstance(high, int)
    if kind is None and whole:
        raise LaunchError(f"--range {name} from {low} to {high} has no type.", hint="Give integer or continuous.")
    if kind == "integer" and not whole:
        raise LaunchError(f"--range {name} of type integer is from {low} to {high}.", hint="Give integers.")
    if low >= high:
        raise LaunchError(
            f"--range {name}: min {low} is not below max {high}.", hint="A single value is a hyperparameter, no range."
        )
    if scale == "log" and low <= 0:
        raise LaunchError(f"--range {name}: scale log from {low}.", hint="Begin above 0, or use scale linear.")
    if scale == "reverse_log" and (low < 0 or high >= 1 or kind == "integer"):
        raise LaunchError(
            f"--range {name}: scale reverse_log from {low} to {high}.", hint="It is for numbers from 0 to below 1."
        )
    return ParameterRange(name, RangeKind.INTEGER if kind == "integer" else RangeKind.CONTINUOUS, (), low, high, scale)


def _categorical(name: str, given: Sequence[Any]) -> ParameterRange:
    try:
        values = tuple(dict.fromkeys(json.dumps(as_number(each)) for each in given))
    except TypeError as error:
        raise LaunchError(f"--range {name}: {error}.", hint="Give text, numbers, true, false or null.") from error
    if len(values) < 2:
        raise LaunchError(
            f"--range {name} has fewer than two values: {list(given)!r}.",
            hint="A single value is a hyperparameter, no range.",
        )
    return ParameterRange(name, RangeKind.CATEGORICAL, values)


def _end(name: str, value: Any) -> Any:
    number = as_number(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise LaunchError(f"--range {name} has the end {value!r}.", hint="Give numbers.")
    return number
