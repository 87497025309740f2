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

import ctypes
import json
import math
import numbers
import re
from collections import defaultdict
from decimal import Decimal
from typing import Any, DefaultDict, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from lightning_sm._logging import log
from lightning_sm._observe.harmless import is_of_signal_handler
from lightning_sm.errors import MetricDefinitionError

__all__ = ["MetricLog", "metric_definitions", "metric_lines", "metric_names", "metric_regex", "plain_number"]

# In bytes. A write of at most 4096 bytes into a pipe is not mixed with those of other processes; handlers add prefixes.
_MAX_LINE = 3500
# Scalars that were logged together. More are a table, and not something to be watched in a log.
_MAX_SCALARS = 1000
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_MetricDefinition.html
_MAX_NAME = 255
# The names of so many metrics stand in a warning.
_MAX_SHOWN = 10
# Of so many names it is known that they were logged; a project may log under a new name each time.
_MAX_SEEN = 1000

_BARE = re.compile(r"[!#-<>-\[\]-~]+")
_VALUE = r"(-?[0-9][-+.0-9e]*)"
_LINE = re.compile(r"metrics at step -?[0-9]+, epoch [0-9]+:(.*)")
_PAIR = re.compile(rf' (?:({_BARE.pattern})|("(?:[^"\\]|\\.)*"))=')
_METACHARACTERS = re.compile(r"[\\.^$*+?{}\[\]()|]")


def metric_lines(
    metrics: Mapping[str, Any], step: int, epoch: int, *, first: Optional[str] = None
) -> Tuple[List[str], Dict[str, List[str]]]:
    """Format the metrics that were logged together.

    Args:
        metrics: Numbers by name, in the order in which they are written.
        step: The step that loggers get.
        epoch: The index of the epoch, from 0.
        first: The name of a metric that is written before all others, if it is there.

    Returns:
        The lines, of at most 3500 bytes each, and what is not in them: a description with the names of the metrics.

    Example::

        >>> metric_lines({"loss": 0.5, "train/acc": 1, "f 1": float("nan")}, step=20, epoch=1)
        (['metrics at step 20, epoch 1: loss=0.5 train/acc=1 "f 1"=nan'], {})
        >>> metric_lines({"note": "text"}, step=20, epoch=1)
        ([], {'values that are no numbers': ['note']})
    """
    prefix = f"metrics at step {step}, epoch {epoch}:"
    lines: List[str] = []
    left_out: DefaultDict[str, List[str]] = defaultdict(list)
    count = 0
    for name in sorted(metrics, key=lambda name: name != first):
        text = _value(metrics[name])
        if text is None:
            left_out["values that are no numbers"].append(name)
        elif len(name) > _MAX_NAME:
            left_out[f"names of more than {_MAX_NAME} characters"].append(name)
        elif count == _MAX_SCALARS:
            left_out[f"more than {_MAX_SCALARS} scalars at once"].append(name)
        else:
            count += 1
            pair = f" {_quoted(name)}={text}"
            if lines and len(lines[-1]) + len(pair) <= _MAX_LINE:
                lines[-1] += pair
            else:
                lines.append(prefix + pair)
    return lines, dict(left_out)


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


def plain_number(value: Any) -> Any:
    """Return the number of a tensor of one element, and what is none as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except Exception as error:  # of a tensor of several elements
        if is_of_signal_handler(error):
            raise
        return value


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name).replace("=", "\\u003d")


def _value(value: Any) -> Optional[str]:
    if not isinstance(value, (numbers.Real, Decimal)):
        return None
    if isinstance(value, numbers.Integral) and abs(int(value)) <= 2**53:
        return str(int(value))  # of a bool, too
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    for digits in (6, 7, 8, 9):
        text = f"{number:.{digits}g}"
        # Most metrics are of single precision, and 0.1 would read 0.10000000149011612.
        if number in (float(text), ctypes.c_float(float(text)).value):
            return text
    return repr(number)


class MetricLog:
    """Writes what is handed to loggers, one line for each hand-over, and knows what was logged.

    Args:
        objective: The name of the metric that a tuning job optimizes, which is written first.
    """

    def __init__(self, objective: Optional[str] = None) -> None:
        self.objective = objective
        self._seen: Dict[str, None] = {}
        self._has_found_objective = self._has_warned = False

    def write(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        """Write metrics.

        Args:
            metrics: Numbers by name.
            step: The step that loggers get.
            epoch: The index of the epoch, from 0.
        """
        lines, left_out = metric_lines(metrics, step, epoch, first=self.objective)
        for line in lines:
            log.info("%s", line)
        if left_out and not self._has_warned:
            self._has_warned = True
            reasons = "; ".join(f"{reason} ({_some(names)})" for reason, names in left_out.items())
            log.warning("Left out of the metric lines, here and from now on: %s.", reasons)
        if len(self._seen) < _MAX_SEEN:
            self._seen.update(dict.fromkeys(metrics))
        if self.objective is not None and not self._has_found_objective:
            regex = metric_regex(self.objective)
            self._has_found_objective = any(re.search(regex, line) for line in lines)

    def check_objective(self) -> None:
        """Warn if the objective of a tuning job was not logged as a finite number."""
        if self.objective is not None and not self._has_found_objective:
            log.warning(
                "The objective %r of the tuning job was never logged as a finite number, and SageMaker takes no other. "
                "Logged were: %s. HINT: Log it with self.log in the model, name a metric that is logged as the "
                "objective, or look for the cause of its NaN.",
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
        MetricDefinitionError: There is no name, or one that CloudWatch does not take: others than printable ASCII.

    Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_MetricDefinition.html

    Example::

        >>> from lightning_sm import metric_definitions
        >>> metric_definitions(["val_loss"])
        [{'Name': 'val_loss', 'Regex': 'metrics at step -?[0-9]+, epoch [0-9]+:.* val_loss=(-?[0-9][-+.0-9e]*)'}]
    """
    listed = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if not listed:
        hint = 'Give the names that are to be shown or optimized: metric_definitions(["val_loss"]).'
        raise MetricDefinitionError("No metric was found to define.", hint=hint)
    for name in listed:
        if not (name.isascii() and name.isprintable()):
            problem = f"The metric {name!r} is not of printable ASCII characters."
            raise MetricDefinitionError(problem, hint="Log it under another name.")
    return [{"Name": name, "Regex": metric_regex(name)} for name in listed]
