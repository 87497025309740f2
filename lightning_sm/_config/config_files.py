"""Reads config files as LightningCLI does, and writes configs from which every value is read back as it was.

Trees of settings: dotted keys become nested mappings, and one tree is laid over another.
"""

import os
from typing import Any, Dict, List, Mapping

from lightning_sm.errors import HyperparameterError

__all__ = ["LISTS", "config_text", "load_config", "load_included", "read_value", "as_config", "merge", "nest"]

# The groups for which a config may name a file instead, and which routing looks into. Other values that end like a
# config file are a path of the user's, such as annotations of many megabytes.
_GROUPS = frozenset({"data", "lr_scheduler", "model", "optimizer", "sagemaker", "trainer"})
LISTS = frozenset({"trainer.callbacks", "trainer.logger"})


def load_config(path: str) -> Dict[str, Any]:
    """Read a YAML or JSON file of settings.

    Raises:
        HyperparameterError: The file is missing, broken or no mapping.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise HyperparameterError(
            f"The config file {path} holds no settings but {type(content).__name__}.",
            hint="Write 'key: value' lines, such as 'trainer:' and below it '  max_epochs: 5'.",
        )
    return {str(key): value for key, value in content.items()}


def load_included(key: str, value: Any, folder: str) -> Any:
    """Read the file of ``model: model.yaml``, by which LightningCLI includes one; return any other value as it is.

    Raises:
        HyperparameterError: The file is broken.
    """
    if not isinstance(value, str) or not value.endswith((".yaml", ".yml", ".json")):
        return value
    path = os.path.join(folder, value)
    if (key in _GROUPS or key in LISTS) and os.path.isfile(path):
        return load_config(path) if key in _GROUPS else _load(path)
    return value


def read_value(text: str) -> Any:
    """Read one word of a command line."""
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception:  # PyYAML lets out whatever its constructors raise: '!!int ""' is an IndexError
        return text


def config_text(content: Mapping[str, Any]) -> str:
    """Write a config.

    Strings and keys that do not begin with a letter are quoted, because jsonargparse reads ``1e-3`` as a number where
    PyYAML does not; JSON would not do, because YAML knows neither its ``NaN`` nor its escapes of characters beyond the
    basic plane.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text[:1].isalpha() else '"')

    Dumper.add_representer(str, represent)
    return str(yaml.dump(dict(content), Dumper=Dumper, sort_keys=False))


def _load(path: str) -> Any:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except Exception as error:  # see read_value
        raise HyperparameterError(
            f"The config file {path} cannot be read: {' '.join(str(error).split())}.",
            hint=f"Paths are relative to {os.getcwd()} or begin with a channel's name.",
        ) from error


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
