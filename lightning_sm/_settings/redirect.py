"""``redirect``: loggers and ``ModelCheckpoint`` callbacks write to the job's directories.

Entries of a config are redirected before they are made, because a logger such as ``CSVLogger`` cannot be made without a
directory, and ready-made objects of a script in place. MLflow's and W&B's loggers continue the runs of the job.
"""

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm._lightning import FABRICS, SupportLevel, has_base, support_level
from lightning_sm._logging import log
from lightning_sm._observe.mlflow import (
    check_server,
    continue_run,
    experiment_of,
    is_local,
    is_open,
    settable,
)
from lightning_sm._observe.names import numbered
from lightning_sm._observe.upload import check_packages
from lightning_sm._observe.wandb import continue_wandb_run
from lightning_sm._resume.storage import is_remote
from lightning_sm._settings.classes import init_parameters
from lightning_sm._settings.given import Given, RunContext, as_list, is_several
from lightning_sm._settings.line import SCRIPT
from lightning_sm._settings.routed import RoutedSetting, is_within, may_replace

__all__ = ["CALLBACKS", "LOGGER", "CheckpointRoutes", "complete_loggers", "redirect"]

LOGGER, CALLBACKS = "trainer.logger", "trainer.callbacks"
_OPTION = "sagemaker.mlflow_arn"
# What each directory below a checkpoint directory stands for, in all trainers of this process.
_sources: Dict[str, Dict[str, str]] = {}


@dataclass(frozen=True)
class _Place:
    """Where a logger or callback writes.

    Args:
        directory: The directory, or a URL that it writes to by itself.
        source: What decides it.
        url: Where the files of the directory are uploaded to while the job runs.
        version: The name of the run's own directory, for files that are uploaded; ``None`` leaves it to the logger.
    """

    directory: str
    source: str
    url: Optional[str] = None
    version: Optional[str] = None


def redirect(entries: Any, key: str, context: RunContext) -> Iterator[RoutedSetting]:
    """Send loggers to the output directory, and ``ModelCheckpoint`` callbacks below the checkpoint directory.

    What was set for this run stays, as do URLs and directories that SageMaker keeps. A callback without a directory
    gets one with its first fit, by ``CheckpointPlaces``. A ``TensorBoardLogger`` with a remote ``save_dir`` gets a
    local directory, whose files are uploaded while the job runs. A ready-made logger that cannot be redirected is named
    in the log, because SageMaker does not keep what it writes.

    Args:
        entries: One or several, as a parser's values or as objects, which are changed.
        key: ``trainer.logger``, ``trainer.callbacks`` or ``fabric.loggers``.
        context: The run.

    Raises:
        LoggerError: Files are to be uploaded, and a package for that is missing.
    """
    argument = "dirpath" if key == CALLBACKS else "save_dir"
    listed = as_list(entries)
    olds = [_argument(entry, argument) for entry in listed]
    routes = CheckpointRoutes(context.checkpoint_dir[0], olds if key == CALLBACKS else ())
    chosen = {os.path.realpath(path) for path in context.given.explicit_texts(argument)}
    for index, (entry, old) in enumerate(zip(listed, olds)):
        at = f"{key}[{index}]" if is_several(entries) else key
        at += ".init_args" if _is_described(entry) else ""
        if key == LOGGER and _is_described(entry) and has_base(_class_of(entry, context), "MLFlowLogger"):
            # MLflow from 3.17 on refuses to be constructed with its default, a local directory.
            yield from _complete_mlflow(entry, at, _mlflow_arguments(context), context.given)
        place = _place_of(entry, old, key, routes, context)
        is_kept = not may_replace(old, context.job) or (bool(old) and os.path.realpath(str(old)) in chosen)
        if place is None or str(old) == place.directory or (is_kept and not (place.url and is_remote(old))):
            continue
        version = _set_place(entry, argument, place, context)
        if _argument(entry, argument) == place.directory:
            source = context.given.source_in(key, argument, str(old)) or SCRIPT
            before = f"replaces {redact_patterns(str(old))} from {source}" if old else None
            yield RoutedSetting(f"{at}.{argument}", place.directory, place.source, before, old, upload=place.url)
            if version is not None:
                by = f"the job's name, {context.job.sources.get('name', 'TRAINING_JOB_NAME')}"
                yield RoutedSetting(f"{at}.version", version, by)
        elif not _sends(entry) and place.url is None:
            log.warning(
                "%s writes to %s, which SageMaker does not keep. HINT: Give it a directory below %s.",
                type(entry).__name__,
                old,
                place.directory,
            )


def _is_described(entry: Any) -> bool:
    """Whether an entry is a parser's description of an object."""
    return hasattr(entry, "as_dict")


def _class_of(entry: Any, context: RunContext) -> Optional[type]:
    if not _is_described(entry):
        return type(entry)
    path = entry.get("class_path")
    return context.find_class(path) if path else None


def _argument(entry: Any, name: str) -> Any:
    if _is_described(entry):
        return (entry.get("init_args") or {}).get(name)  # a dict before jsonargparse has read all of it
    if name == "save_dir" and not hasattr(entry, name):
        name = "root_dir"  # as Fabric's loggers call it
    return getattr(entry, name, None)


def _place_of(entry: Any, old: Any, key: str, routes: "CheckpointRoutes", context: RunContext) -> Optional[_Place]:
    """Where an entry is to write; ``None`` for one that writes to no directory."""
    cls = _class_of(entry, context)
    if cls is None:
        return None
    if key == CALLBACKS:
        is_checkpoint = old is not None and has_base(cls, "ModelCheckpoint")
        return _Place(routes.place(old), context.checkpoint_dir[1]) if is_checkpoint else None
    if old is None and ("save_dir" not in init_parameters(cls) or not _is_described(entry)):
        return None
    if has_base(cls, "MLFlowLogger") and _is_described(entry) and not is_local(_argument(entry, "tracking_uri")):
        return None  # it writes nothing there
    return _log_place(context, cls, old)


def _log_place(context: RunContext, cls: type, save_dir: Any) -> _Place:
    directory, source = context.output_dir
    job = context.job
    if not has_base(cls, "TensorBoardLogger"):
        return _Place(directory, source)
    url = os.fspath(save_dir) if is_remote(save_dir) else None
    if url is None and job.tensorboard_dir is not None:
        return _Place(job.tensorboard_dir, job.sources["tensorboard_dir"])
    url = directory if url is None and is_remote(directory) else url
    has_upload = context.namespace not in FABRICS and support_level(context.namespace) is not SupportLevel.CORE
    if url is None or not has_upload:
        return _Place(directory, source)
    check_packages(url)
    # Without user and password.
    rest = re.sub(r"^[^/]*@", "", url.split("://", 1)[1])
    parts = [part for part in rest.split("/") if part not in ("", ".", "..")]
    local = str(job.output_data_dir) if is_remote(directory) else directory
    return _Place(os.path.join(local, "tensorboard", *parts), f"uploaded to {redact_patterns(url)}", url, job.name)


def _set_place(entry: Any, argument: str, place: _Place, context: RunContext) -> Optional[str]:
    """Set a directory where that is possible; returns the version of a logger whose files are uploaded."""
    if _is_described(entry):
        entry["init_args"] = arguments = entry.get("init_args") or {}
        arguments[argument] = place.directory
        if place.version is None or arguments.get("version") is not None:
            return None
        name = arguments.get("name", "lightning_logs")
        arguments["version"] = version = numbered(place.version, place.directory, name, arguments.get("sub_dir"))
        return version
    if argument == "dirpath":
        entry.dirpath = place.directory
        return None
    loggers = context.namespace.module("loggers")
    if isinstance(entry, (loggers.CSVLogger, loggers.TensorBoardLogger)) and entry._experiment is None:
        # Lightning's versions keep it under one of these names, or both.
        for name in {"_save_dir", "_root_dir"} & vars(entry).keys():
            setattr(entry, name, place.directory)
        if place.url is not None:
            entry._fs = importlib.import_module("fsspec").filesystem("file")
            if entry._version is None and place.version is not None:
                entry._version = version = numbered(place.version, place.directory, entry.name, entry.sub_dir)
                return version
    return None


def _sends(logger: Any) -> bool:
    """Whether a logger's output leaves the host by itself, so that its directory is a buffer only."""
    services = ("WandbLogger", "CometLogger", "NeptuneLogger", "LitLogger")
    return any(has_base(type(logger), name) for name in services) and not getattr(logger, "_offline", False)


def complete_loggers(arguments: Dict[str, Any], context: RunContext) -> Tuple[RoutedSetting, ...]:
    """Complete the loggers that a trainer of a job gets: their directories, MLflow's server and their runs.

    Args:
        arguments: The trainer's arguments, which are changed where a logger is added.
        context: The run.

    Raises:
        LoggerError: MLflow or an upload of logs cannot be used as it is set, or lacks a package.
    """
    given = arguments.get("logger")
    is_empty = given is False or (is_several(given) and not given)
    if arguments.get("barebones") or is_empty:  # such a trainer refuses every logger
        if context.options.mlflow_arn:
            log.warning("nothing is logged to MLflow: the trainer is to have no loggers. HINT: Set trainer.logger.")
        return ()
    loggers = as_list(None if given is True else given)
    several = is_several(given)
    wanted = _mlflow_arguments(context)
    changed: List[RoutedSetting] = []
    if not loggers:
        installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
        name = "TensorBoardLogger" if installed else "CSVLogger"
        loggers = [getattr(context.namespace.module("loggers"), name)("")]  # redirect() gives it a directory
    for index, logger in enumerate(loggers):
        if has_base(type(logger), "MLFlowLogger"):
            changed += _complete_mlflow(logger, f"{LOGGER}[{index}]" if several else LOGGER, wanted, context.given)
    changed += redirect(loggers if several else loggers[0], LOGGER, context)
    if context.options.mlflow_arn and not any(has_base(type(logger), "MLFlowLogger") for logger in loggers):
        check_server(wanted["tracking_uri"][0])
        logger_class = context.namespace.module("loggers").MLFlowLogger
        loggers.append(logger_class(**{name: value for name, (value, _) in wanted.items()}))
        names = ", ".join(type(logger).__name__ for logger in loggers)
        changed.append(RoutedSetting(LOGGER, names, _OPTION))
        changed += [
            RoutedSetting(f"{LOGGER}[{len(loggers) - 1}].{name}", redact_patterns(value), source)
            for name, (value, source) in wanted.items()
        ]
    for index, logger in enumerate(loggers):
        if has_base(type(logger), "MLFlowLogger"):
            continue_run(logger, context.job.name, context.output_dir[0])
        elif has_base(type(logger), "WandbLogger") and context.job.name:
            place = f"{LOGGER}[{index}]" if len(loggers) > 1 else LOGGER
            source = context.job.sources.get("name", "the job's name")
            named = continue_wandb_run(logger, context.job.name, context.job.hyperparameters.values)
            changed += [RoutedSetting(f"{place}.{name}", value, source) for name, value in named.items()]
    arguments["logger"] = loggers if several or len(loggers) > 1 else loggers[0]
    return tuple(changed)


def _mlflow_arguments(context: RunContext) -> Dict[str, Tuple[str, str]]:
    """Value and source of each argument that an ``MLFlowLogger`` of this job gets where it is open.

    Environment variables, which the user sets: ``MLFLOW_TRACKING_URI``, the server where ``sagemaker.mlflow_arn`` names
    none, and ``MLFLOW_EXPERIMENT_NAME``.
    """
    job, option = context.job, context.options.mlflow_arn
    uri, experiment = (os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"))
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


def _complete_mlflow(
    logger: Any, place: str, wanted: Mapping[str, Tuple[str, str]], given: Given
) -> Iterator[RoutedSetting]:
    olds: Mapping[str, Any]
    if _is_described(logger):
        logger["init_args"] = arguments = logger.get("init_args") or {}
        # The rest is set in place.
        olds = {} if arguments.get("run_id") else {"tracking_uri": arguments.get("tracking_uri")}
    else:
        olds = settable(logger)
    for name, old in olds.items():
        value, source = wanted.get(name, (old, ""))
        if value == old or not is_open(name, old) or old in given.explicit_texts(name):
            continue
        if name == "tracking_uri":
            check_server(value)
        if _is_described(logger):
            arguments[name] = value
        else:
            setattr(logger, f"_{name}", value)
        setter = given.source_in(LOGGER, name, str(old)) or SCRIPT
        before = f"replaces {redact_patterns(old)} from {setter}" if old is not None else None
        yield RoutedSetting(f"{place}.{name}", redact_patterns(value), source, before)


class CheckpointRoutes:
    """Where the ``ModelCheckpoint`` callbacks of one trainer save instead of where they were told to.

    A directory keeps its path: relative to the working directory, or all of it where it is outside of that. So two
    directories stay two, also those of fits with trainers of their own, and each restart finds the same ones.

    Args:
        directory: The job's checkpoint directory, or a URL.
        given: The ``dirpath`` of each callback.

    Example::

        >>> routes = CheckpointRoutes("/opt/ml/checkpoints", ["checkpoints/fold0", "/data/fold0"])
        >>> routes.place("checkpoints/fold0"), routes.place("/data/fold0"), routes.place(".")
        ('/opt/ml/checkpoints/checkpoints/fold0', '/opt/ml/checkpoints/data/fold0', '/opt/ml/checkpoints')
    """

    def __init__(self, directory: str, given: Iterable[Any]) -> None:
        self.directory = directory
        self._sources = _sources.setdefault(directory, {})
        for path in (_real(each) for each in given if each is not None and is_within(each, directory)):
            self._sources.setdefault(path, path)

    def place(self, dirpath: Any) -> str:
        """Return the directory for a local ``dirpath``; the job's own for the working directory."""
        path, here = _real(dirpath), _real(".")
        if path == here:
            return self.directory
        if path in self._sources:
            return path
        name = os.path.relpath(path, here) if is_within(path, here) else path.lstrip("/")
        first = place = os.path.join(self.directory, name)
        number = 1
        while self._sources.setdefault(place, path) != path:  # data/x and /data/x
            number += 1
            place = f"{first}-{number}"
        return place


def _real(path: Any) -> str:
    return os.path.realpath(os.path.expanduser(str(path)))
