"""Routes SageMaker's output directories: to the trainer's root, its loggers and its ``ModelCheckpoint`` callbacks.

A ``TensorBoardLogger`` with a remote ``save_dir`` gets a local directory, whose files are uploaded while the job runs.
"""

import importlib.util
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._config.classes import init_parameters
from lightning_sm._config.routed import CheckpointRoutes, RoutedSetting, may_replace
from lightning_sm._config.settings import RunContext
from lightning_sm._observe.upload import check_packages
from lightning_sm._resume.storage import is_remote

__all__ = [
    "LogPlace",
    "class_entry",
    "default_logger",
    "is_tensorboard_logger",
    "log_place",
    "numbered",
    "route_outputs",
]


@dataclass(frozen=True)
class LogPlace:
    """Where a logger writes.

    Args:
        directory: The directory, or a URL that the logger writes to by itself.
        source: What decides it.
        url: Where the files of the directory are uploaded to while the job runs.
        version: The name of the run's own directory, for files that are uploaded; ``None`` leaves it to the logger.
    """

    directory: str
    source: str
    url: Optional[str] = None
    version: Optional[str] = None


def route_outputs(context: RunContext) -> Iterator[RoutedSetting]:
    """Yield the trainer's root directory, its loggers and the directories of its ``ModelCheckpoint`` callbacks.

    Raises:
        LoggerError: Files are to be uploaded, and a package for that is missing.
    """
    settings = context.settings
    directory, source = context.output_dir
    root = "trainer.default_root_dir"
    if not settings.is_explicit(root) and may_replace(settings.get(root), context.job):
        yield RoutedSetting(root, directory, source, settings.replaced_by_routing(root))
    yield from _route_loggers(context)
    yield from _route_checkpoints(context)


def default_logger(namespace: str) -> str:
    """The class path of the logger that a job gets when nobody names one."""
    installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
    return f"{namespace}.loggers.{'TensorBoardLogger' if installed else 'CSVLogger'}"


def is_tensorboard_logger(cls: Optional[type]) -> bool:
    """Whether a class is Lightning's ``TensorBoardLogger`` or a subclass of it."""
    return cls is not None and any(base.__name__ == "TensorBoardLogger" for base in cls.__mro__)


def log_place(context: RunContext, cls: type, save_dir: Any = None) -> LogPlace:
    """Return where a logger that takes a ``save_dir`` writes, if nothing keeps the one that it has.

    Args:
        context: The run.
        cls: The logger's class.
        save_dir: What was given as its ``save_dir``.

    Raises:
        LoggerError: Files are to be uploaded, and a package for that is missing.
    """
    directory, source = context.output_dir
    job = context.job
    if not is_tensorboard_logger(cls):
        return LogPlace(directory, source)
    given = os.fspath(save_dir) if isinstance(save_dir, (str, os.PathLike)) else ""
    url = given if "://" in given else None
    if url is None and job.tensorboard_dir is not None:
        return LogPlace(job.tensorboard_dir, job.sources["tensorboard_dir"])
    if url is None and "://" in directory:
        url = directory
    if url is None:
        return LogPlace(directory, source)
    check_packages(url)
    parts = [part for part in url.split("://", 1)[1].split("/") if part not in ("", ".", "..")]
    local = str(job.output_data_dir) if "://" in directory else directory
    return LogPlace(os.path.join(local, "tensorboard", *parts), f"uploaded to {url}", url, job.name)


def _route_loggers(context: RunContext) -> Iterator[RoutedSetting]:
    key = "trainer.logger"
    given = context.settings.get(key)
    if context.settings.get("trainer.barebones") is True:
        return  # such a trainer refuses every logger
    if given is None or given is True:
        class_path = default_logger(context.namespace.name)
        cls = context.find_class(class_path)
        place = LogPlace(*context.output_dir) if cls is None else log_place(context, cls)
        arguments = {"save_dir": place.directory, **({"version": place.version} if place.version else {})}
        whole = (key, {"class_path": class_path, "init_args": arguments})
        directory = f"{key}.init_args.save_dir"
        yield RoutedSetting(directory, place.directory, place.source, config=whole, upload=place.url)
        if place.version is not None:
            yield RoutedSetting(f"{key}.init_args.version", place.version, _job_name(context), config=whole)
    elif given is not False:
        yield from _route_entries(context, key, "save_dir", lambda cls, old: _logger_place(context, cls, old))


def _logger_place(context: RunContext, cls: Optional[type], save_dir: Any) -> Optional[LogPlace]:
    return log_place(context, cls, save_dir) if cls is not None and "save_dir" in init_parameters(cls) else None


def _job_name(context: RunContext) -> str:
    return f"the job's name, {context.job.sources.get('name', 'TRAINING_JOB_NAME')}"


def _route_checkpoints(context: RunContext) -> Iterator[RoutedSetting]:
    key, (directory, source) = "trainer.callbacks", context.checkpoint_dir
    routes = CheckpointRoutes(
        directory, [entry["init_args"].get("dirpath") for entry in _entries(context.settings.get(key))]
    )

    def place_of(cls: Optional[type], dirpath: Any) -> Optional[LogPlace]:
        return LogPlace(routes.place(dirpath), source) if _is_model_checkpoint(cls) else None

    yield from _route_entries(context, key, "dirpath", place_of)


def _route_entries(
    context: RunContext, key: str, argument: str, place_of: Callable[[Optional[type], Any], Optional[LogPlace]]
) -> Iterator[RoutedSetting]:
    """Set one argument of each class that a key lists and that has a place."""
    settings = context.settings
    given = settings.get(key)
    if given is None:
        return
    entries = _entries(given)
    whole = (key, entries if isinstance(given, list) else entries[0])
    versions: Counter[Tuple[Any, ...]] = Counter()
    for index, entry in enumerate(entries):
        arguments = entry["init_args"]
        old = arguments.get(argument)
        at = f"{key}[{index}]" if isinstance(given, list) else key
        place = place_of(context.find_class(str(entry["class_path"])), old)
        explicit = old is not None and settings.is_explicit(f"{at}.{argument}")
        stays = explicit or not may_replace(old, context.job)
        if place is None or (stays and not (place.url is not None and is_remote(old))):
            continue
        arguments[argument] = place.directory
        provenance = settings.provenance_of(f"{at}.{argument}") or settings.provenance_of(f"{key}.class_path")
        before = f"replaces {old} from {provenance}" if old is not None else None
        yield RoutedSetting(
            f"{at}.init_args.{argument}", place.directory, place.source, before, config=whole, upload=place.url
        )
        if place.version is not None and arguments.get("version") is None:
            name = arguments.get("name", "lightning_logs")
            version = numbered(place.version, versions, place.directory, name, arguments.get("sub_dir"))
            arguments["version"] = version
            yield RoutedSetting(f"{at}.init_args.version", version, _job_name(context), config=whole)


def numbered(version: str, seen: "Counter[Tuple[Any, ...]]", *place: Any) -> str:
    """Return a version with a number from the second logger of a place on, whose curves would otherwise be one.

    Args:
        version: The version of the first.
        seen: How many loggers each place has; this one is added.
        *place: What the loggers of one directory have in common.

    >>> seen = Counter()
    >>> numbered("job", seen, "s3://b"), numbered("job", seen, "s3://b"), numbered("job", seen, "s3://c")
    ('job', 'job-2', 'job')
    """
    seen[place] += 1
    return version if seen[place] == 1 else f"{version}-{seen[place]}"


def _entries(given: Any) -> List[Dict[str, Any]]:
    """The classes that a key lists, or its only one."""
    return [] if given is None else [class_entry(item) for item in (given if isinstance(given, list) else [given])]


def class_entry(item: Any) -> Dict[str, Any]:
    """Return what a config says of one logger or callback, its arguments below ``init_args``."""
    if not isinstance(item, Mapping):
        return {"class_path": str(item), "init_args": {}}
    known = ("class_path", "init_args", "dict_kwargs")
    arguments = {**(item.get("init_args") or {}), **{name: item[name] for name in item if name not in known}}
    entry: Dict[str, Any] = {"class_path": item.get("class_path"), "init_args": arguments}
    if "dict_kwargs" in item:
        entry["dict_kwargs"] = item["dict_kwargs"]
    return entry


def _is_model_checkpoint(cls: Optional[type]) -> bool:
    return cls is not None and any(base.__name__ == "ModelCheckpoint" for base in cls.__mro__)
