"""Metric lines: how logged scalars are written into a log, when, and the regular expressions that find them there.

A line holds the scalars that were logged together::

    metrics at step 120, epoch 3: train/loss=0.25 "my metric"=1.5e-07 val_loss=nan

Each is a space, the name, ``=`` and the value. A name of printable ASCII characters without spaces, ``=``, ``"`` and
backslashes stands as it is, and each other name as a JSON string, in which ``=`` is written as an escape. Thus a space,
a name and ``=`` stand in a line only where a scalar of exactly that name stands.

Values are decimal numbers that give the logged number back: of single precision where it was one, else of double
precision. Values that are not finite are ``nan``, ``inf`` and ``-inf``, which the regular expression does not find:
CloudWatch, which SageMaker sends metrics to, takes none of them.

Source: ``Value`` in https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html
"""

import json
import math
import numbers
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from lightning_sm._logging import log
from lightning_sm.errors import MetricDefinitionError

__all__ = [
    "MetricLines",
    "MetricLog",
    "is_finite",
    "metric_definitions",
    "metric_lines",
    "metric_names",
    "metric_regex",
]

# In bytes. A write of at most 4096 bytes into a pipe is not mixed with those of other processes; handlers add prefixes.
_MAX_LINE = 3500
# Scalars that were logged together. More are a table, and not something to be watched in a log.
_MAX_SCALARS = 1000
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_MetricDefinition.html
_MAX_NAME = 255
_MAX_REGEX = 500
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html
_MAX_DEFINITIONS = 40
# The names of so many metrics stand in a warning.
_MAX_SHOWN = 10
# Of so many names it is known that they were logged; a project may log under a new name each time.
_MAX_SEEN = 1000

_BARE = re.compile(r"[!#-<>-\[\]-~]+")
_VALUE = r"(-?[0-9][-+.0-9e]*)"
_LINE = re.compile(r"metrics at step -?[0-9]+, epoch [0-9]+:(.*)")
_PAIR = re.compile(rf' (?:({_BARE.pattern})|("(?:[^"\\]|\\.)*"))=')
_METACHARACTERS = re.compile(r"[\\.^$*+?{}\[\]()|]")


@dataclass(frozen=True)
class MetricLines:
    """What is written of the metrics of one hand-over.

    Args:
        lines: The lines, of at most 3500 bytes each.
        left_out: What is not in them, as a description and the names of the metrics.
    """

    lines: Tuple[str, ...]
    left_out: Mapping[str, Tuple[str, ...]]


def metric_lines(metrics: Mapping[str, Any], step: int, epoch: int, *, first: Optional[str] = None) -> MetricLines:
    """Format the metrics that were logged together.

    Args:
        metrics: Numbers by name, in the order in which they are written.
        step: The step that loggers get.
        epoch: The index of the epoch, from 0.
        first: The name of a metric that is written before all others, if it is there.

    Example::

        >>> metric_lines({"loss": 0.5, "train/acc": 1, "f 1": float("nan")}, step=20, epoch=1).lines
        ('metrics at step 20, epoch 1: loss=0.5 train/acc=1 "f 1"=nan',)
        >>> metric_lines({"note": "text"}, step=20, epoch=1)
        MetricLines(lines=(), left_out={'values that are no numbers': ('note',)})
    """
    pairs: List[str] = []
    left_out: Dict[str, List[str]] = {}

    def leave_out(reason: str, name: str) -> None:
        left_out.setdefault(reason, []).append(name)

    names = list(metrics)
    if first is not None and first in metrics:
        names = [first, *(name for name in names if name != first)]
    for name in names:
        text = _value(metrics[name])
        if text is None:
            leave_out("values that are no numbers", name)
        elif len(name) > _MAX_NAME:
            leave_out(f"names of more than {_MAX_NAME} characters", name)
        elif len(pairs) == _MAX_SCALARS:
            leave_out(f"more than {_MAX_SCALARS} scalars at once", name)
        else:
            pairs.append(f" {_quoted(name)}={text}")
    lines = tuple(_joined(f"metrics at step {step}, epoch {epoch}:", pairs))
    return MetricLines(lines, {reason: tuple(names) for reason, names in left_out.items()})


def _joined(prefix: str, pairs: List[str]) -> List[str]:
    lines: List[str] = []
    for pair in pairs:
        if lines and len(lines[-1]) + len(pair) <= _MAX_LINE:
            lines[-1] += pair
        else:
            lines.append(prefix + pair)
    return lines


def metric_regex(name: str) -> str:
    """Return the regular expression whose only group is the value of a metric in a metric line.

    It uses what Java, Python and RE2 have in common.

    Example::

        >>> import re
        >>> regex = metric_regex("loss")
        >>> regex
        'metrics at step -?[0-9]+, epoch [0-9]+:.* loss=(-?[0-9][-+.0-9e]*)'
        >>> re.findall(regex, "INFO metrics at step 20, epoch 1: val_loss=0.5 loss=1e-05 loss_step=2")
        ['1e-05']
    """
    escaped = _METACHARACTERS.sub(r"\\\g<0>", _quoted(name))
    return f"metrics at step -?[0-9]+, epoch [0-9]+:.* {escaped}={_VALUE}"


def metric_names(text: str) -> List[str]:
    """Return the names in all metric lines of a log.

    Example::

        >>> metric_names('INFO metrics at step 20, epoch 1: loss=0.5 "f 1"=nan')
        ['loss', 'f 1']
    """
    pairs = (pair for line in _LINE.finditer(text) for pair in _PAIR.finditer(line.group(1)))
    names = (json.loads(pair.group(2)) if pair.group(2) else pair.group(1) for pair in pairs)
    return list(dict.fromkeys(names))


def is_finite(value: Any) -> bool:
    """Whether a value is a number that the regular expression finds."""
    text = _value(value)
    return text is not None and text[-1].isdigit()


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name).replace("=", "\\u003d")


def _value(value: Any) -> Optional[str]:
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):  # a bool, too
        return str(int(value)) if abs(value) <= 2**53 else _float(_as_float(value))
    if isinstance(value, (numbers.Real, Decimal)):
        return _float(_as_float(value))
    return None


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _float(value: float) -> str:
    if value != value or math.isinf(value):
        return str(float(value))
    text = f"{value:.6g}"
    if float(text) == value:
        return text
    # Most metrics are of single precision, and 0.1 would read 0.10000000149011612.
    for digits in (6, 7, 8, 9):
        text = f"{value:.{digits}g}"
        if _single(float(text)) == value:
            return text
    return repr(float(value))


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


class MetricLog:
    """Writes what is handed to loggers, one line for each hand-over, and knows what was logged.

    Args:
        objective: The name of the metric that a tuning job optimizes, which is written first.
    """

    def __init__(self, objective: Optional[str] = None) -> None:
        self.objective = objective
        self._seen: Dict[str, bool] = {}  # whether a value of the objective was finite
        self._has_warned = False
        self._held: Dict[str, Any] = {}
        self._held_at = (0, 0)  # step and epoch

    def hold(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        """Keep what is handed over before the metrics of a step, such as a learning rate, for the line of that step."""
        self._write_held_unless(metrics, step, epoch)
        self._held_at = (step, epoch)
        self._held.update(metrics)

    def write(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        """Write metrics, with what is held for the same step.

        Args:
            metrics: Numbers by name.
            step: The step that loggers get.
            epoch: The index of the epoch, from 0.
        """
        self._write_held_unless(metrics, step, epoch)
        metrics, self._held = {**metrics, **self._held}, {}
        written = metric_lines(metrics, step, epoch, first=self.objective)
        for line in written.lines:
            log.info("%s", line)
        if written.left_out and not self._has_warned:
            self._has_warned = True
            reasons = "; ".join(f"{reason} ({_some(names)})" for reason, names in written.left_out.items())
            log.warning("Left out of the metric lines, here and from now on: %s.", reasons)
        for name in metrics if len(self._seen) < _MAX_SEEN else ():
            self._seen.setdefault(name, False)
        if self.objective in metrics:
            self._seen[self.objective] = self._seen.get(self.objective, False) or is_finite(metrics[self.objective])

    def flush(self) -> None:
        """Write what is held."""
        held, self._held = self._held, {}
        if held:
            self.write(held, *self._held_at)

    def _write_held_unless(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        """Write what is held, unless these metrics can stand on one line with it."""
        differ = any(name in metrics and metrics[name] != value for name, value in self._held.items())
        if self._held_at != (step, epoch) or differ:
            self.flush()

    def check_objective(self) -> None:
        """Warn if the objective of a tuning job was not logged."""
        if self.objective is None or self._seen.get(self.objective):
            return
        if self.objective in self._seen:
            log.warning(
                "The objective %r of the tuning job was logged, but never as a finite number, and SageMaker takes no "
                "other. HINT: Look for the cause of the NaN.",
                self.objective,
            )
            return
        log.warning(
            "The objective %r of the tuning job was not logged. Logged were: %s. HINT: Log it with self.log in the "
            "model, or name a metric that is logged as the objective.",
            self.objective,
            _some(self._seen) or "no metrics",
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in listed[:_MAX_SHOWN]]
    more = len(listed) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def metric_definitions(names: Union[str, Iterable[str]]) -> List[Dict[str, str]]:
    """Return the metric definitions of logged metrics: SageMaker then shows them, and a tuning job can optimize one.

    Each finds the values of one metric in the metric lines of a job's log, and no other metric's. Values that are not
    finite are not found. ``lightning-sm metrics --run`` finds the names by running one batch.

    Args:
        names: The names as they are logged: a metric with ``on_step`` and ``on_epoch`` is two, ``NAME_step`` and
            ``NAME_epoch``.

    Returns:
        A list of dicts with ``Name`` and ``Regex``: ``metric_definitions`` of an SDK v2 estimator or tuner, and
        ``AlgorithmSpecification.MetricDefinitions`` of ``CreateTrainingJob``. For SDK v3 make
        ``MetricDefinition(name=each["Name"], regex=each["Regex"])`` of each.

    Raises:
        MetricDefinitionError: There is no name, or SageMaker does not accept the definitions: it takes at most 40,
            with names of at most 255 characters and regular expressions of at most 500.

    Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_MetricDefinition.html

    Example::

        >>> from lightning_sm import metric_definitions
        >>> metric_definitions(["val_loss"])
        [{'Name': 'val_loss', 'Regex': 'metrics at step -?[0-9]+, epoch [0-9]+:.* val_loss=(-?[0-9][-+.0-9e]*)'}]
    """
    listed = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    listed = list(dict.fromkeys(listed))
    hint = 'Give the names that are to be shown or optimized: metric_definitions(["val_loss"]).'
    if not listed:
        raise MetricDefinitionError("No metric was found to define.", hint=hint)
    if len(listed) > _MAX_DEFINITIONS:
        raise MetricDefinitionError(
            f"There are {len(listed)} metrics, and SageMaker takes at most {_MAX_DEFINITIONS} definitions: "
            f"{', '.join(map(str, listed))}.",
            hint=hint,
        )
    return [_definition(name) for name in listed]


def _definition(name: Any) -> Dict[str, str]:
    hint = "Log it under another name."
    if not isinstance(name, str) or not name:
        raise MetricDefinitionError(f"{name!r} is not the name of a metric.", hint="Give names as strings.")
    if not (name.isascii() and name.isprintable()):
        # CloudWatch takes ASCII names only.
        raise MetricDefinitionError(f"The metric {name!r} is not of printable ASCII characters.", hint=hint)
    regex = metric_regex(name)
    if len(name) > _MAX_NAME or len(regex) > _MAX_REGEX:
        raise MetricDefinitionError(
            f"The metric {name!r} has a name of {len(name)} and a regular expression of {len(regex)} characters, and "
            f"SageMaker takes {_MAX_NAME} and {_MAX_REGEX}.",
            hint=hint,
        )
    return {"Name": name, "Regex": regex}
