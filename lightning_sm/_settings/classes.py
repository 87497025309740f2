"""Finds the classes that a config names, their parameters, and the real key that a wrong one is closest to."""

import difflib
import importlib
import inspect
import os
import re
import typing
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._lightning import FABRICS, Namespace
from lightning_sm._lightning.strategies import find_strategy, subclasses

__all__ = [
    "STRATEGY",
    "closest_keys",
    "find_class",
    "import_class",
    "known_keys",
    "init_parameters",
    "names_a_path",
    "takes_path",
    "takes_text_only",
]

_NUMBERS = (bool, int, float, complex)
_PATH_NAME = re.compile(r"(^|_)(dir|dirs|directory|path|root|folder|file|location|data)$")
#: The key of the strategy.
STRATEGY = "trainer.strategy"
# Groups that may be given as the name of a class alone.
_CLASS_GROUPS = ("data", "model", STRATEGY)
# Arguments of strategies that no config holds; the Trainer passes them on.
_OBJECTS = frozenset({"accelerator", "checkpoint_io", "cluster_environment", "parallel_devices", "precision_plugin"})
# Of the last names of two keys.
_LEAST_LIKENESS = 0.6
# What scripts that know no LightningCLI call it.
_USUAL_NAMES = {
    "gpus": "devices",
    "num_gpus": "devices",
    "learning_rate": "lr",
    "lr": "learning_rate",
    "seed": "seed_everything",
}


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

    Returns ``None`` where there is no such class; the parser's own error is clearer.
    """
    if "." in name:
        return import_class(name)
    if namespace in FABRICS:
        return find_strategy(namespace, name)
    for place in ("loggers", "callbacks"):
        found = getattr(namespace.module(place), name, None)
        if isinstance(found, type):
            return found
    bases = (namespace.module().LightningDataModule, namespace.module().LightningModule)
    found = next((cls for base in bases for cls in subclasses(base) if cls.__name__ == name), None)
    return found if found is not None else find_strategy(namespace, name)


def init_parameters(cls: type) -> Dict[str, inspect.Parameter]:
    """Return the named parameters of a class by name, those behind ``**kwargs`` included.

    The signature of the class itself will not do: Lightning 1.5's data modules have a metaclass that hides it. An
    annotation that was written as text, also by ``from __future__ import annotations``, is evaluated where it can be.
    """
    found: Dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        function = vars(base)["__init__"]
        parameters = list(inspect.signature(function).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(
                    parameter.name, parameter.replace(annotation=_evaluated(parameter.annotation, function))
                )
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def takes_path(parameter: inspect.Parameter) -> bool:
    """Whether a parameter can hold a path: ``train: bool``, ``validation: float = 0.2`` or a list cannot."""
    if isinstance(parameter.default, (*_NUMBERS, list, dict, tuple, set)):
        return False
    kinds = tuple(_kinds(parameter.annotation))
    if any(kind in _NUMBERS for kind in kinds):
        return False
    return not kinds or any(_is_path(kind) for kind in kinds)


def takes_text_only(annotation: Any) -> bool:
    """Whether what is annotated so takes text and no number, so that ``123`` can only mean its text."""
    kinds = set(_kinds(annotation)) - {type(None)}
    return str in kinds and not kinds & {*_NUMBERS, Any, object}


def names_a_path(parameter: inspect.Parameter) -> bool:
    """Whether a parameter looks as if it held a path, by its type or its name."""
    kinds = tuple(_kinds(parameter.annotation))
    named = _PATH_NAME.search(parameter.name) is not None
    return takes_path(parameter) and (named or any(kind is not Any and _is_path(kind, text=False) for kind in kinds))


def _evaluated(annotation: Any, function: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(getattr(function, "__globals__", {})))
    except Exception:  # names that only a type checker knows, or a syntax of newer Pythons
        return annotation


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without ``Optional``; none where it says nothing."""
    if annotation is inspect.Parameter.empty:
        return
    if isinstance(annotation, (str, typing.ForwardRef, typing.TypeVar)):  # which cannot be evaluated
        yield Any
    elif hasattr(annotation, "__metadata__"):  # Annotated
        yield from _kinds(annotation.__origin__)
    elif hasattr(annotation, "__supertype__"):  # NewType
        yield from _kinds(annotation.__supertype__)
    elif getattr(annotation, "__origin__", None) is typing.Union or type(annotation).__name__ == "UnionType":
        for member in annotation.__args__:
            yield from _kinds(member)
    elif annotation is not type(None):
        yield getattr(annotation, "__origin__", None) or annotation


def _is_path(kind: Any, *, text: bool = True) -> bool:
    if kind in (Any, object) or (text and kind is str):
        return True
    # jsonargparse's own paths had no __fspath__ at first.
    return isinstance(kind, type) and (issubclass(kind, os.PathLike) or kind.__name__.startswith("Path_"))


def closest_keys(
    parser: Any, values: Mapping[str, Any], sources: Mapping[str, str], find_class: Callable[[str], Optional[type]]
) -> Optional[str]:
    """Return a hint for each key that was set and that neither the parser nor a named class knows.

    Args:
        parser: The argument parser of the run's subcommand.
        values: What was given, by plain keys.
        sources: Who set each key.
        find_class: Finds a class by the name that a config gives it.
    """
    known = sorted(known_keys(parser, values, find_class))
    hints: List[str] = []
    for key, source in sources.items():
        if key not in known and not _is_part(known, key):
            near = _nearest(key, [other for other in known if not key.startswith(f"{other}.")])
            if near is not None:
                hints.append(f"{key!r} (by {source}) is no key; did you mean {near!r}?")
    return " ".join(hints) or None


def _nearest(key: str, possible: List[str]) -> Optional[str]:
    """The key that an abbreviation begins, else the likeliest one: by its last name, then by its group."""
    group, _, last = key.replace("-", "_").rpartition(".")
    names = {last, _USUAL_NAMES.get(last, last)}

    def likeness(other: str) -> Tuple[float, float]:
        of_group, _, of_last = other.rpartition(".")
        return max(_ratio(name, of_last) for name in names), _ratio(group or "model", of_group)

    abbreviated = [other for other in possible if other.startswith(key)]
    # Names of other groups may be alike by chance.
    beside = [other for other in possible if other.startswith(f"{group}.") or other.rpartition(".")[2] in names]
    best = max(abbreviated or beside or possible, key=likeness)
    return best if likeness(best)[0] > _LEAST_LIKENESS else None


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def known_keys(parser: Any, values: Mapping[str, Any], find_class: Callable[[str], Optional[type]]) -> Iterator[str]:
    """Yield the keys of a parser, and the parameters of each class that was named (without ``init_args``).

    Args:
        parser: The argument parser of the run's subcommand.
        values: What was given, by plain keys.
        find_class: Finds a class by the name that a config gives it.
    """
    yield from (str(action.dest) for action in parser._actions if not str(action.dest).endswith(".help"))
    for key, value in values.items():
        group, _, last = key.rpartition(".")
        group = group if last == "class_path" else key
        cls = find_class(value) if isinstance(value, str) and (group != key or key in _CLASS_GROUPS) else None
        if cls is not None:  # else every key below is as good as any other
            yield f"{group}.class_path"
            passed = _OBJECTS if group == STRATEGY else frozenset()
            yield from (f"{group}.{parameter}" for parameter in init_parameters(cls) if parameter not in passed)


def _is_part(known: List[str], key: str) -> bool:
    """Whether ``key`` may be a part of something that takes whole mappings, such as a dict, and is no group of keys."""
    wholes = [other for other in known if key.startswith(f"{other}.")]
    return any(not any(inner.startswith(f"{whole}.") for inner in known) for whole in wholes)
