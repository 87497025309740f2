"""Routes MLflow: server, experiment and run name of each ``MLFlowLogger``; one is added where there is none."""

import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from lightning_sm._config.classes import init_parameters
from lightning_sm._config.outputs import class_entry
from lightning_sm._config.routed import RoutedSetting
from lightning_sm._config.settings import RunContext
from lightning_sm._failure.failure_file import redact_patterns
from lightning_sm._observe.mlflow import (
    check_server,
    continue_run,
    experiment_of,
    is_local,
    is_mlflow_class,
    is_open,
    set_in_place,
    settable,
)
from lightning_sm._observe.wandb import continue_wandb_run, is_wandb_class

__all__ = ["complete_loggers", "mlflow_arguments", "mlflow_notes", "route_mlflow"]

_KEY = "trainer.logger"
_OPTION = "sagemaker.mlflow_arn"


def mlflow_arguments(context: RunContext) -> Dict[str, Tuple[str, str]]:
    """Value and source of each argument that an ``MLFlowLogger`` of this job gets where it is open.

    Environment variables, which the user sets: ``MLFLOW_TRACKING_URI``, the server where ``sagemaker.mlflow_arn`` names
    none, and ``MLFLOW_EXPERIMENT_NAME``.
    """
    job, option = context.job, context.options.mlflow_arn
    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")}
    uri, experiment = variables.values()
    name_source = job.sources.get("name", "the job's name")
    wanted: Dict[str, Tuple[str, str]] = {}
    if option or uri:
        wanted["tracking_uri"] = (option, _OPTION) if option else (str(uri), "MLFLOW_TRACKING_URI")
    if experiment:
        wanted["experiment_name"] = experiment, "MLFLOW_EXPERIMENT_NAME"
    elif option and job.name:
        wanted["experiment_name"] = experiment_of(job.name), f"{name_source} without its time"
    if job.name:
        wanted["run_name"] = job.name, name_source
    return wanted


def mlflow_notes(context: RunContext) -> Tuple[str, ...]:
    """Why ``sagemaker.mlflow_arn`` has no effect, where it has none."""
    settings = context.settings
    without: Tuple[Tuple[str, Any], ...] = ((_KEY, False), (_KEY, []), ("trainer.barebones", True))
    reasons = [f"{key} is {str(value).lower()}" for key, value in without if settings.get(key) == value]
    return (f"nothing is logged to MLflow: {reasons[0]}",) if context.options.mlflow_arn and reasons else ()


def route_mlflow(context: RunContext, routed: Sequence[RoutedSetting]) -> Iterator[RoutedSetting]:
    """Yield the settings that are routed already, with those of each ``MLFlowLogger`` that a config names.

    Args:
        context: The run.
        routed: The directories of loggers and callbacks.

    Raises:
        LoggerError: The tracking URI is a malformed ARN, or a package is missing.
    """
    given, wanted = context.settings.get(_KEY), mlflow_arguments(context)
    listed = _listed(given)
    if given in (False, []) or context.settings.get("trainer.barebones") is True or _are_ready_made(listed):
        yield from routed
        return
    whole = next((setting.config for setting in routed if setting.config and setting.config[0] == _KEY), None)
    entries: List[Dict[str, Any]] = [class_entry(item) for item in listed]
    if whole is not None:
        entries = whole[1] if isinstance(whole[1], list) else [whole[1]]
    found = [index for index, entry in enumerate(entries) if _is_mlflow(context, entry)]
    changed: List[RoutedSetting] = []
    value: Any = entries if isinstance(given, list) else entries[0] if entries else None
    for index in found:
        place = f"{_KEY}[{index}]" if isinstance(given, list) else _KEY
        changed += _set_arguments(context, place, entries[index], wanted, (_KEY, value))
        arguments = entries[index]["init_args"]
        if not is_local(arguments.get("tracking_uri")):
            # It would write nothing there.
            arguments.pop("save_dir", None)
            routed = [setting for setting in routed if setting.key != f"{place}.init_args.save_dir"]
    yield from routed
    yield from changed
    if not found and context.options.mlflow_arn:
        yield from _add_logger(context, entries, wanted)


def _set_arguments(
    context: RunContext,
    place: str,
    entry: Dict[str, Any],
    wanted: Mapping[str, Tuple[str, str]],
    whole: Tuple[str, Any],
) -> Iterator[RoutedSetting]:
    settings, arguments = context.settings, entry["init_args"]
    cls = context.find_class(str(entry["class_path"]))
    takes = init_parameters(cls) if cls is not None else {}
    for name, (value, source) in wanted.items():
        old = arguments.get(name)
        explicit = old is not None and settings.is_explicit(f"{place}.{name}")
        if name not in takes or explicit or not is_open(name, old):
            continue
        if name == "tracking_uri":
            check_server(value)
        arguments[name] = value
        provenance = settings.provenance_of(f"{place}.{name}") or settings.provenance_of(f"{_KEY}.class_path")
        before = f"replaces {redact_patterns(str(old))} from {provenance}" if old is not None else None
        yield RoutedSetting(f"{place}.init_args.{name}", redact_patterns(value), source, before, config=whole)


def _add_logger(
    context: RunContext, entries: Sequence[Dict[str, Any]], wanted: Mapping[str, Tuple[str, str]]
) -> Iterator[RoutedSetting]:
    check_server(wanted["tracking_uri"][0])
    arguments = {name: value for name, (value, _) in wanted.items()}
    added = {"class_path": f"{context.namespace.name}.loggers.MLFlowLogger", "init_args": arguments}
    whole = (_KEY, [*entries, added])
    names = ", ".join(str(entry["class_path"]).rpartition(".")[2] for entry in whole[1])
    yield RoutedSetting(_KEY, names, _OPTION, config=whole)
    for name, (value, source) in wanted.items():
        key = f"{_KEY}[{len(entries)}].init_args.{name}"
        yield RoutedSetting(key, redact_patterns(value), source, config=whole)


def complete_loggers(arguments: Dict[str, Any], context: RunContext) -> Tuple[RoutedSetting, ...]:
    """Complete the loggers that a trainer gets: those that a script or the project's CLI has made, and their runs.

    Args:
        arguments: The trainer's arguments, which are changed where a logger is added.
        context: The run.

    Returns:
        What was set on ready-made loggers.

    Raises:
        LoggerError: The tracking URI is a malformed ARN, or a package is missing.
    """
    changed: List[RoutedSetting] = []
    loggers = _listed(arguments.get("logger"))
    wanted = mlflow_arguments(context)
    if _are_ready_made(_listed(context.settings.get(_KEY))):
        for index, logger in enumerate(loggers):
            place = f"{_KEY}[{index}]" if len(loggers) > 1 else _KEY
            if is_mlflow_class(type(logger)):
                changed += _complete_ready_made(logger, place, wanted)
        if context.options.mlflow_arn and not any(is_mlflow_class(type(logger)) for logger in loggers):
            check_server(wanted["tracking_uri"][0])
            logger_class = context.namespace.module("loggers").MLFlowLogger
            added = logger_class(**{name: value for name, (value, _) in wanted.items()})
            arguments["logger"] = loggers = [*loggers, added]
            names = ", ".join(type(logger).__name__ for logger in loggers)
            changed.append(RoutedSetting(_KEY, names, _OPTION))
            changed += [
                RoutedSetting(f"{_KEY}[{len(loggers) - 1}].{name}", redact_patterns(value), source)
                for name, (value, source) in wanted.items()
            ]
    for index, logger in enumerate(loggers):
        if is_mlflow_class(type(logger)):
            continue_run(logger, context.job.name, context.output_dir[0])
        elif is_wandb_class(type(logger)) and context.job.name:
            place = f"{_KEY}[{index}]" if len(loggers) > 1 else _KEY
            source = context.job.sources.get("name", "the job's name")
            named = continue_wandb_run(logger, context.job.name, context.job.hyperparameters.values)
            changed += [RoutedSetting(f"{place}.{name}", value, source) for name, value in named.items()]
    return tuple(changed)


def _complete_ready_made(logger: Any, place: str, wanted: Mapping[str, Tuple[str, str]]) -> Iterator[RoutedSetting]:
    for name, old in settable(logger).items():
        value, source = wanted.get(name, (old, ""))
        if value == old or not is_open(name, old):
            continue
        if name == "tracking_uri":
            check_server(value)
        set_in_place(logger, {name: value})
        before = f"replaces {redact_patterns(old)} from the script" if old is not None else None
        yield RoutedSetting(f"{place}.{name}", redact_patterns(value), source, before)


def _is_mlflow(context: RunContext, entry: Mapping[str, Any]) -> bool:
    return is_mlflow_class(context.find_class(str(entry["class_path"])))


def _listed(given: Any) -> List[Any]:
    return (
        [] if given is None or isinstance(given, bool) else list(given) if isinstance(given, (list, tuple)) else [given]
    )


def _are_ready_made(listed: Sequence[Any]) -> bool:
    """Whether loggers are objects, and not described in a config."""
    return any(not isinstance(item, (str, Mapping)) for item in listed)
