"""Trees of settings: dotted keys become nested mappings, and one tree is laid over another."""

from typing import Any, Dict, List, Mapping

from lightning_sm._config_files import LISTS, load_included
from lightning_sm.errors import HyperparameterError

__all__ = ["as_config", "merge", "nest"]

_INIT_ARGS = "init_args"
_CLASS_KEYS = ("class_path", _INIT_ARGS, "dict_kwargs")
# Deeper values are an accident (a YAML alias of itself), and Python's own recursion ends not far below.
_DEEPEST = 100


def as_config(node: Any) -> Any:
    """Return a part of a tree as a parser takes it, each class with its arguments below ``init_args``."""
    if not isinstance(node, Mapping):
        return node
    inner = {name: as_config(value) for name, value in node.items()}
    if not isinstance(inner.get("class_path"), str):
        return inner
    beside = {name: inner.pop(name) for name in ("class_path", "dict_kwargs") if name in inner}
    return {**beside, _INIT_ARGS: inner}


def nest(flat: Mapping[str, Any]) -> Dict[str, Any]:
    """Turn dotted keys into nested mappings; what is set beside a ``class_path`` becomes an argument of the class.

    Raises:
        HyperparameterError: A key is set both to a value and to parts of it, or its value is nested without end.
    """
    nested: Dict[str, Any] = {}
    values = {str(key): value for key, value in flat.items()}
    for key in sorted(values, key=lambda key: (key.count("."), not key.endswith(".class_path"))):
        node = nested
        *parents, last = key.split(".")
        for part in parents:
            node = _arguments_of(node, part)
            inner = node.setdefault(part, {})
            if isinstance(inner, str):
                inner = node[part] = {"class_path": inner}
            if not isinstance(inner, dict):
                raise HyperparameterError(
                    f"{key!r} is set, and {part!r} as a whole is set to {inner!r}.", hint="Set one of them."
                )
            node = inner
        _arguments_of(node, last)[last] = _copied(values[key], key, key.count("."))
    return nested


def _arguments_of(node: Dict[str, Any], part: str) -> Dict[str, Any]:
    """Where an argument goes: below ``init_args`` if ``node`` names a class."""
    if "class_path" not in node or part in _CLASS_KEYS:
        return node
    inner = node.setdefault(_INIT_ARGS, {})
    return inner if isinstance(inner, dict) else node


def _copied(value: Any, key: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise HyperparameterError(f"{key[:_DEEPEST]!r} is nested more than {_DEEPEST} levels deep.")
    if isinstance(value, dict):
        return {name: _copied(inner, key, depth + 1) for name, inner in value.items()}
    return [_copied(inner, key, depth + 1) for inner in value] if isinstance(value, list) else value


def merge(
    tree: Dict[str, Any],
    origins: Dict[str, str],
    values: Mapping[str, Any],
    origin: str,
    folder: str = "",
    at: str = "",
) -> None:
    """Lay nested values over a tree, in which the arguments of a class count as its own keys.

    Args:
        tree: The tree, which is changed.
        origins: Who set each leaf of it, by dotted keys, which is changed.
        values: The values.
        origin: Who sets them.
        folder: Where the values' own paths begin.
        at: The dotted key at which the tree stands.
    """
    for name, value in values.items():
        if name == _INIT_ARGS and isinstance(value, Mapping):
            merge(tree, origins, value, origin, folder, at)
            continue
        key = f"{at}.{name}" if at else str(name)
        if key.endswith("+") and key[:-1] in LISTS:
            name, key = str(name)[:-1], key[:-1]
            tree[name] = [*_as_list(tree.get(name)), *_as_list(load_included(key, value, folder))]
            origins.setdefault(key, origin)
            continue
        value = load_included(key, value, folder)
        if isinstance(value, Mapping) and value:
            inner = tree.get(name)
            if "class_path" in value and _is_other_class(inner, value["class_path"]):
                inner = None
                _forget(origins, key)
            if isinstance(inner, str):  # a class named before its arguments
                inner, origins[f"{key}.class_path"] = {"class_path": inner}, origins.pop(key, origin)
            elif not isinstance(inner, dict):
                inner = {}
                origins.pop(key, None)
            tree[name] = inner
            merge(inner, origins, value, origin, folder, key)
        elif isinstance(value, Mapping) and not at:
            tree.setdefault(name, {})  # a group that sets nothing
        elif (
            isinstance(value, str)
            and isinstance(tree.get(name), dict)
            and "class_path" in tree[name]
            and not _is_other_class(tree[name], value)
        ):
            merge(tree[name], origins, {"class_path": value}, origin, folder, key)
        else:
            _forget(origins, key)
            tree[name] = value
            origins[key] = origin


def _as_list(value: Any) -> List[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [as_config(value)]


def _is_other_class(node: Any, class_path: Any) -> bool:
    """Whether ``node`` is about another class, whose arguments then mean nothing."""
    named = node.get("class_path") if isinstance(node, dict) else node
    return isinstance(named, str) and named.rpartition(".")[2] != str(class_path).rpartition(".")[2]


def _forget(origins: Dict[str, str], key: str) -> None:
    for old in [old for old in origins if old == key or old.startswith(f"{key}.")]:
        del origins[old]
