"""Routes SageMaker's directories into loggers and checkpoints."""

import importlib.util
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.routed import RoutedSetting, may_replace, said
from lightning_sm._config.settings import Settings
from lightning_sm._config.signatures import init_parameters
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["FindClass", "checkpoint_dir", "default_logger", "directories", "output_dir", "route_outputs"]

# Finds a class by the name that a config gives it, or returns None.
FindClass = Callable[[str], Optional[type]]


def output_dir(job: TrainingJob, options: SageMakerOptions) -> Tuple[str, str]:
    """Where logs go, and who says so."""
    if options.output_dir:
        return options.output_dir, "sagemaker.output_dir"
    return str(job.output_data_dir), job.sources.get("output_data_dir", "SageMaker's layout")


def directories(job: TrainingJob, options: SageMakerOptions) -> Tuple[str, ...]:
    """Where callbacks write that no setting names, one line each."""
    checkpoints, source = checkpoint_dir(job, options)
    model = options.model_dir or str(job.model_dir)
    named = "sagemaker.model_dir" if options.model_dir else job.sources.get("model_dir", "SageMaker's layout")
    trained = (f"trained model in {model} ← {named}",) if options.export else ()
    return (f"checkpoints in {checkpoints} ← {source}", *trained)


def route_outputs(
    job: TrainingJob, settings: Settings, options: SageMakerOptions, find_class: FindClass, namespace: str
) -> Iterator[RoutedSetting]:
    """Yield the trainer's root directory, its loggers and the directories of its ``ModelCheckpoint`` callbacks."""
    directory, source = output_dir(job, options)
    root = "trainer.default_root_dir"
    if not settings.is_explicit(root) and may_replace(settings.get(root), job):
        yield RoutedSetting(root, directory, source, said(settings, root))
    yield from _route_loggers(job, settings, directory, source, find_class, namespace)
    yield from _route_checkpoints(job, settings, options, find_class)


def default_logger(namespace: str) -> str:
    """The class path of the logger that a job gets when nobody names one."""
    installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
    return f"{namespace}.loggers.{'TensorBoardLogger' if installed else 'CSVLogger'}"


def _route_loggers(
    job: TrainingJob, settings: Settings, directory: str, source: str, find_class: FindClass, namespace: str
) -> Iterator[RoutedSetting]:
    key = "trainer.logger"
    given = settings.get(key)
    if settings.get("trainer.barebones") is True or settings.is_opaque(key):
        return  # such a trainer refuses every logger; and what cannot be followed stays as it is
    if given is None or given is True:
        spec = {"class_path": default_logger(namespace), "init_args": {"save_dir": directory}}
        yield RoutedSetting(f"{key}.init_args.save_dir", directory, source, config=(key, spec))
    elif given is not False:
        yield from _route_entries(
            job, settings, key, "save_dir", directory, source, lambda name: _takes(find_class(name), "save_dir")
        )


def _route_checkpoints(
    job: TrainingJob, settings: Settings, options: SageMakerOptions, find_class: FindClass
) -> Iterator[RoutedSetting]:
    directory, source = checkpoint_dir(job, options)
    yield from _route_entries(
        job,
        settings,
        "trainer.callbacks",
        "dirpath",
        directory,
        source,
        lambda name: _is_model_checkpoint(find_class(name)),
    )


def _route_entries(
    job: TrainingJob,
    settings: Settings,
    key: str,
    argument: str,
    directory: str,
    source: str,
    concerns: Callable[[str], bool],
) -> Iterator[RoutedSetting]:
    """Set one argument of each class that a key lists and that it concerns."""
    given = settings.get(key)
    if given is None or settings.is_opaque(key):
        return
    listed = given if isinstance(given, list) else [given]
    entries = [_entry(item) for item in listed]
    whole = (key, entries if isinstance(given, list) else entries[0])
    for index, entry in enumerate(entries):
        old = entry["init_args"].get(argument)
        place = f"{key}[{index}]" if isinstance(given, list) else key
        explicit = old is not None and settings.is_explicit(f"{place}.{argument}")
        if explicit or not concerns(str(entry["class_path"])) or not may_replace(old, job):
            continue
        entry["init_args"][argument] = directory
        origin = settings.origin(f"{place}.{argument}") or settings.origin(f"{key}.class_path")
        before = f"{origin} said {old}" if old is not None else None
        yield RoutedSetting(f"{place}.init_args.{argument}", directory, source, before, config=whole)


def checkpoint_dir(job: TrainingJob, options: SageMakerOptions) -> Tuple[str, str]:
    """Where checkpoints go, and who says so."""
    if options.checkpoint_dir:
        return options.checkpoint_dir, "sagemaker.checkpoint_dir"
    return str(job.checkpoint_dir), job.sources.get("checkpoint_dir", "SageMaker's layout")


def _entry(item: Any) -> Dict[str, Any]:
    if not isinstance(item, Mapping):
        return {"class_path": str(item), "init_args": {}}
    known = ("class_path", "init_args", "dict_kwargs")
    arguments = {**(item.get("init_args") or {}), **{name: item[name] for name in item if name not in known}}
    entry: Dict[str, Any] = {"class_path": item.get("class_path"), "init_args": arguments}
    if "dict_kwargs" in item:
        entry["dict_kwargs"] = item["dict_kwargs"]
    return entry


def _takes(cls: Optional[type], parameter: str) -> bool:
    return cls is not None and parameter in init_parameters(cls)


def _is_model_checkpoint(cls: Optional[type]) -> bool:
    return cls is not None and any(base.__name__ == "ModelCheckpoint" for base in cls.__mro__)
