"""The grammar of metric lines: how logged scalars are written into a log, and the regular expression that finds one.

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
from typing import Any, Dict, List, Mapping, Optional, Tuple

__all__ = ["MAX_NAME", "MetricLines", "is_finite", "metric_lines", "metric_names", "metric_regex"]

# In bytes. A write of at most 4096 bytes into a pipe is not mixed with those of other processes; handlers add prefixes.
_MAX_LINE = 3500
# Scalars that were logged together. More are a table, and not something to be watched in a log.
_MAX_SCALARS = 1000
# In characters; SageMaker allows 255 for the name in a definition.
MAX_NAME = 255

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
        elif len(name) > MAX_NAME:
            leave_out(f"names of more than {MAX_NAME} characters", name)
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
