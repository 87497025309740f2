"""``metric_definitions``: the metric definitions by which SageMaker finds logged metrics in a job's log."""

import os
from typing import Any, Dict, Iterable, List, Union

from lightning_sm._logging import log
from lightning_sm._metrics.lines import metric_regex
from lightning_sm._metrics.source_names import logged_names
from lightning_sm.errors import MetricDefinitionError

__all__ = ["metric_definitions"]

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html
_MAX_DEFINITIONS = 40
_MAX_REGEX = 500
_MAX_NAME = 255


def metric_definitions(model_or_names: Union[Any, Iterable[str]], *, first: Iterable[str] = ()) -> List[Dict[str, str]]:
    """Return the metric definitions of logged metrics: SageMaker then shows them, and a tuning job can optimize one.

    Each finds the values of one metric in the lines that :class:`~lightning_sm.callbacks.LogMetrics` writes, and no
    other metric's. Values that are not finite are not found.

    From names, the definitions are exactly those. From a ``LightningModule`` they are those that its source logs for
    loggers in ``fit`` and ``test``, by Lightning's rules: a metric with ``on_step`` and ``on_epoch`` is two,
    ``NAME_step`` and ``NAME_epoch``. It is not run. A warning names the calls whose names cannot be read; the metrics
    of callbacks and of several validation data loaders (``NAME/dataloader_idx_0``) cannot be read either. Give these in
    ``first``. ``lightning-sm metrics --run`` finds all of them by running one batch.

    Args:
        model_or_names: The names as they are logged, or the class or an instance of a model.
        first: Names to define in any case, before the others, such as that of a tuning job's objective.

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
    if isinstance(model_or_names, str):
        names = [model_or_names]
    elif isinstance(model_or_names, type) or hasattr(model_or_names, "log_dict"):
        names = _names_of_model(model_or_names)
    else:
        names = list(model_or_names)
    names = list(dict.fromkeys([*([first] if isinstance(first, str) else first), *names]))
    if not names:
        raise MetricDefinitionError(
            "No metric was found to define." if not isinstance(model_or_names, str) else "The name is empty.",
            hint='Give the names as they are logged: metric_definitions(["val_loss"]).',
        )
    if len(names) > _MAX_DEFINITIONS:
        raise MetricDefinitionError(
            f"There are {len(names)} metrics, and SageMaker takes at most {_MAX_DEFINITIONS} definitions: "
            f"{', '.join(map(str, names))}.",
            hint="Give the names that are to be shown or optimized.",
        )
    return [_definition(name) for name in names]


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


def _names_of_model(model: Any) -> List[str]:
    found = logged_names(model)
    if found.unknown:
        places = "; ".join(os.path.relpath(place) if os.path.isabs(place) else place for place in found.unknown)
        log.warning(
            "These metrics have names that cannot be read from the source: %s. HINT: Give their names in "
            "first=, or run `lightning-sm metrics --config FILE --run`.",
            places,
        )
    return list(found.names)
