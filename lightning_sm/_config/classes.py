"""Finds the classes that a config names, and the options that it sets about SageMaker.

Looks at what a run names before a CLI is made: the model's base decides on Lightning's namespace.
"""

import importlib
from dataclasses import fields
from typing import Any, Iterator, List, Mapping, Optional, Sequence

from lightning_sm._config.arguments import JobArguments
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.settings import Settings
from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError, RoutingError

__all__ = ["find_class", "import_class", "options_from", "SUBCOMMANDS", "find_model_class", "named_settings"]


def import_class(path: str) -> Optional[type]:
    """Import a class by its full name, or return ``None`` where there is none of that name."""
    module, _, attribute = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        return None
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
    return found if isinstance(found, type) else None


def find_class(namespace: Namespace, name: str) -> Optional[type]:
    """Find a class by its full name, or by its bare name among Lightning's and the loaded subclasses of Lightning's.

    Returns ``None`` where there is no such class: the parser has the better words for that.
    """
    if "." in name:
        return import_class(name)
    for place in ("loggers", "callbacks"):
        found = getattr(namespace.module(place), name, None)
        if isinstance(found, type):
            return found
    bases = (namespace.module().LightningDataModule, namespace.module().LightningModule)
    return next((cls for base in bases for cls in _subclasses(base) if cls.__name__ == name), None)


def _subclasses(cls: type) -> Iterator[type]:
    children: List[type] = cls.__subclasses__()
    for subclass in children:
        yield subclass
        yield from _subclasses(subclass)


def options_from(settings: Settings) -> SageMakerOptions:
    """Return the ``sagemaker`` group as it was set.

    Raises:
        RoutingError: ``sagemaker.channels`` is no mapping of names.
    """
    given = settings.get("sagemaker")
    known = {option.name for option in fields(SageMakerOptions)}
    # Unknown names are the parser's to refuse, which knows them all.
    values: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    options = SageMakerOptions(**{name: value for name, value in values.items() if name in known and value is not None})
    channels = options.channels
    if not isinstance(channels, Mapping) or not all(isinstance(key, str) for key in channels.values()):
        raise RoutingError(
            f"sagemaker.channels is {channels!r}.", hint="Map channels to parameters, as in {training: data.data_dir}."
        )
    return options


SUBCOMMANDS = ("fit", "validate", "test", "predict", "tune")


def named_settings(words: Sequence[str], job: TrainingJob) -> Settings:
    """Gather what the run sets; nothing where it is faulty, for which the parser has the better words.

    Args:
        words: The command line without the program's name.
        job: The job.
    """
    try:
        arguments = JobArguments.read(words, job, SUBCOMMANDS)
        return Settings.collect(arguments.configs, arguments.hyperparameters, arguments.typed, arguments.subcommand)
    except HyperparameterError:
        return Settings()


def find_model_class(settings: Settings) -> Optional[type]:
    """Import the class that the run names as its model, or return ``None`` where there is no such class."""
    name = settings.get("model.class_path") or settings.get("model")
    return import_class(name) if isinstance(name, str) and "." in name else None
