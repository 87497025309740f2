"""Routes SageMaker's directories into loggers and checkpoints.

``CheckpointPlaces``: where callbacks save checkpoints, and which callbacks are added to those that are there.
"""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._checkpoint.periodic import periodic_checkpoints
from lightning_sm._config.classes import init_parameters
from lightning_sm._config.routed import RoutedSetting, may_replace
from lightning_sm._config.settings import RunContext, Settings
from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["CheckpointPlaces", "default_logger", "directories", "explicit_directories", "route_outputs"]


def directories(context: RunContext) -> Tuple[str, ...]:
    """Where callbacks write that no setting names, one line each."""
    checkpoints, source = context.checkpoint_dir
    model, named = context.model_dir
    trained = (f"trained model in {model} ← {named}",) if context.options.export else ()
    return (f"checkpoints in {checkpoints} ← {source}", *trained)


def route_outputs(context: RunContext) -> Iterator[RoutedSetting]:
    """Yield the trainer's root directory, its loggers and the directories of its ``ModelCheckpoint`` callbacks."""
    settings = context.settings
    directory, source = context.output_dir
    root = "trainer.default_root_dir"
    if not settings.is_explicit(root) and may_replace(settings.get(root), context.job):
        yield RoutedSetting(root, directory, source, settings.replaced_by_routing(root))
    yield from _route_loggers(context)
    yield from _route_entries(context, "trainer.callbacks", "dirpath", context.checkpoint_dir, _is_model_checkpoint)


def default_logger(namespace: str) -> str:
    """The class path of the logger that a job gets when nobody names one."""
    installed = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
    return f"{namespace}.loggers.{'TensorBoardLogger' if installed else 'CSVLogger'}"


def _route_loggers(context: RunContext) -> Iterator[RoutedSetting]:
    key = "trainer.logger"
    given = context.settings.get(key)
    if context.settings.get("trainer.barebones") is True:
        return  # such a trainer refuses every logger
    if given is None or given is True:
        directory, source = context.output_dir
        spec = {"class_path": default_logger(context.namespace.name), "init_args": {"save_dir": directory}}
        yield RoutedSetting(f"{key}.init_args.save_dir", directory, source, config=(key, spec))
    elif given is not False:
        yield from _route_entries(context, key, "save_dir", context.output_dir, _takes_save_dir)


def _route_entries(
    context: RunContext,
    key: str,
    argument: str,
    directory: Tuple[str, str],
    concerns: Callable[[Optional[type]], bool],
) -> Iterator[RoutedSetting]:
    """Set one argument of each class that a key lists and that it concerns."""
    settings = context.settings
    given = settings.get(key)
    if given is None:
        return
    path, source = directory
    listed = given if isinstance(given, list) else [given]
    entries = [_entry(item) for item in listed]
    whole = (key, entries if isinstance(given, list) else entries[0])
    for index, entry in enumerate(entries):
        old = entry["init_args"].get(argument)
        place = f"{key}[{index}]" if isinstance(given, list) else key
        explicit = old is not None and settings.is_explicit(f"{place}.{argument}")
        if explicit or not concerns(context.find_class(str(entry["class_path"]))) or not may_replace(old, context.job):
            continue
        entry["init_args"][argument] = path
        provenance = settings.provenance_of(f"{place}.{argument}") or settings.provenance_of(f"{key}.class_path")
        before = f"replaces {old} from {provenance}" if old is not None else None
        yield RoutedSetting(f"{place}.init_args.{argument}", path, source, before, config=whole)


@dataclass(frozen=True)
class CheckpointPlaces:
    """Where the ``ModelCheckpoint`` callbacks of a trainer save.

    Args:
        directory: The job's checkpoint directory.
        job: The job.
        namespace: Lightning's namespace.
        explicit: Directories that were typed or are hyperparameters, and stay.
        save_every_seconds: Seconds between two checkpoints, where none of the callbacks saves regularly.
        adds: Whether callbacks are added.
    """

    directory: str
    job: TrainingJob
    namespace: Namespace
    explicit: FrozenSet[str] = frozenset()
    save_every_seconds: float = 600.0
    adds: bool = True

    def complete(self, callbacks: Sequence[Any]) -> List[Any]:
        """Send the checkpoints of these callbacks to the directory, and return the callbacks to add to them.

        Args:
            callbacks: All callbacks of a trainer. Those that were added before count as any other.
        """
        checkpoint_class = self.namespace.module("callbacks").ModelCheckpoint
        checkpoints = [callback for callback in callbacks if isinstance(callback, checkpoint_class)]
        for callback in checkpoints:
            if may_replace(callback.dirpath, self.job) and not self._is_explicit(callback):
                callback.dirpath = self.directory
        if not self.adds:
            return []
        if "://" in self.directory:
            return [] if checkpoints else [checkpoint_class(dirpath=self.directory)]
        return periodic_checkpoints(checkpoints, self.directory, self.save_every_seconds, self.namespace)

    def _is_explicit(self, callback: Any) -> bool:
        return callback.dirpath is not None and os.path.realpath(callback.dirpath) in self.explicit


def explicit_directories(settings: Settings) -> FrozenSet[str]:
    """Every ``dirpath`` that was typed or is a hyperparameter, wherever in the config its callback stands."""
    given = ({key.rpartition(".")[2]: settings.get(key)} for key in settings.provenance if settings.is_explicit(key))
    return frozenset(os.path.realpath(path) for value in given for path in _dirpaths(value))


def _entry(item: Any) -> Dict[str, Any]:
    if not isinstance(item, Mapping):
        return {"class_path": str(item), "init_args": {}}
    known = ("class_path", "init_args", "dict_kwargs")
    arguments = {**(item.get("init_args") or {}), **{name: item[name] for name in item if name not in known}}
    entry: Dict[str, Any] = {"class_path": item.get("class_path"), "init_args": arguments}
    if "dict_kwargs" in item:
        entry["dict_kwargs"] = item["dict_kwargs"]
    return entry


def _takes_save_dir(cls: Optional[type]) -> bool:
    return cls is not None and "save_dir" in init_parameters(cls)


def _is_model_checkpoint(cls: Optional[type]) -> bool:
    return cls is not None and any(base.__name__ == "ModelCheckpoint" for base in cls.__mro__)


def _dirpaths(value: Any) -> Iterator[str]:
    """Every ``dirpath`` in nested values."""
    if isinstance(value, dict) and isinstance(value.get("dirpath"), str):
        yield value["dirpath"]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dirpaths(inner)
