"""Finds the classes that a config names, and the options that it sets about SageMaker."""

import importlib
from dataclasses import fields
from typing import Any, Iterator, List, Mapping, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._options import SageMakerOptions
from lightning_sm._settings import Settings
from lightning_sm.errors import RoutingError

__all__ = ["find_class", "import_class", "options_from"]


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
