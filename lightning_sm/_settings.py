"""``Settings``: what was said explicitly, by whom, as one tree of values."""

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import HyperparameterError

__all__ = ["COMMAND_LINE", "HYPERPARAMETER", "Settings", "as_config", "nest"]

COMMAND_LINE = "the command line"
HYPERPARAMETER = "a hyperparameter"
_INIT_ARGS = "init_args"


@dataclass(frozen=True)
class Settings:
    """Everything that config files, hyperparameters and the command line set, the later over the earlier.

    Keys are dotted, such as ``trainer.max_epochs``. The ``init_args`` of a class are counted as its own keys, so that
    ``model.lr`` and ``model.init_args.lr`` are one setting. Class defaults are not in it.

    Args:
        tree: The values, nested.
        origins: Who set each leaf, by its dotted key.
        opaque: Keys that were set in a way that cannot be followed here (``--trainer.callbacks+=…``).
    """

    tree: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    opaque: Tuple[str, ...] = ()

    @classmethod
    def collect(
        cls,
        configs: Sequence[str] = (),
        hyperparameters: Optional[Mapping[str, Any]] = None,
        typed: Sequence[str] = (),
        subcommand: Optional[str] = None,
    ) -> "Settings":
        """Gather the settings of one run.

        Args:
            configs: Paths of YAML or JSON files, in the order in which they apply.
            hyperparameters: Nested values.
            typed: Words of the command line, without subcommand and config files.
            subcommand: The subcommand, whose own section of a config file applies as well.

        Raises:
            HyperparameterError: A file is missing or is no mapping.
        """
        tree: Dict[str, Any] = {}
        origins: Dict[str, str] = {}
        opaque: List[str] = []
        for path in configs:
            content = _load_config(path)
            section = content.pop(subcommand, None) if subcommand is not None else None
            for part in (content, section):
                if isinstance(part, dict):
                    _merge(tree, origins, nest(part), os.path.basename(path), os.path.dirname(path))
        _merge(tree, origins, hyperparameters or {}, HYPERPARAMETER)
        for key, value in _read_words(typed):
            if key.endswith("+"):
                opaque.append(key[:-1])
            else:
                _merge(tree, origins, nest({key: value}), COMMAND_LINE)
        return cls(tree, origins, tuple(opaque))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Settings":
        """Take the settings that a program gives instead of a command line."""
        tree: Dict[str, Any] = {}
        origins: Dict[str, str] = {}
        _merge(tree, origins, nest({str(key): value for key, value in values.items()}), COMMAND_LINE)
        return cls(tree, origins)

    def get(self, key: str) -> Any:
        """The value, or the nested values, of a dotted key; ``None`` where nobody set it."""
        node: Any = self.tree
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return None
            node = node[part]
        return node

    def origin(self, key: str) -> Optional[str]:
        """Who set a key, or set a whole that holds it; ``None`` where nobody did."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return None

    def is_explicit(self, key: str) -> bool:
        """Whether the command line or a hyperparameter set this key, so that nothing may replace it."""
        return self.origin(key) in (COMMAND_LINE, HYPERPARAMETER) or self.is_opaque(key)

    def is_opaque(self, key: str) -> bool:
        """Whether this key, or a whole that holds it, was set in a way that cannot be followed."""
        return any(key == other or key.startswith(f"{other}.") for other in self.opaque)


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
    """Turn dotted keys into nested mappings; a class named beside its own arguments becomes its ``class_path``.

    Raises:
        HyperparameterError: A key is set both to a value and to parts of it.
    """
    nested: Dict[str, Any] = {}
    for key in sorted(flat, key=lambda key: key.count(".")):
        node = nested
        *parents, last = key.split(".")
        for part in parents:
            inner = node.setdefault(part, {})
            if isinstance(inner, str):
                inner = node[part] = {"class_path": inner, _INIT_ARGS: {}}
            if not isinstance(inner, dict):
                raise HyperparameterError(
                    f"{key!r} is set, and {part!r} as a whole is set to {inner!r}.", hint="Set one of them."
                )
            node = inner[_INIT_ARGS] if set(inner) == {"class_path", _INIT_ARGS} else inner
        node[last] = _copied(flat[key])
    return nested


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _merge(
    tree: Dict[str, Any],
    origins: Dict[str, str],
    values: Mapping[str, Any],
    origin: str,
    folder: str = "",
    at: str = "",
) -> None:
    for name, value in values.items():
        if name == _INIT_ARGS and isinstance(value, Mapping):
            _merge(tree, origins, value, origin, folder, at)
            continue
        key = f"{at}.{name}" if at else str(name)
        value = _load_nested(value, folder)
        if isinstance(value, Mapping) and value:
            inner = tree.get(name)
            if isinstance(inner, str):  # a class named before its arguments
                inner, origins[f"{key}.class_path"] = {"class_path": inner}, origins.pop(key, origin)
            elif not isinstance(inner, dict):
                inner = {}
                origins.pop(key, None)
            tree[name] = inner
            _merge(inner, origins, value, origin, folder, key)
        elif isinstance(value, str) and isinstance(tree.get(name), dict) and "class_path" in tree[name]:
            _merge(tree[name], origins, {"class_path": value}, origin, folder, key)
        else:
            for old in [old for old in origins if old.startswith(f"{key}.")]:
                del origins[old]
            tree[name] = value
            origins[key] = origin


def _load_nested(value: Any, folder: str) -> Any:
    """Read ``model: model.yaml``, by which LightningCLI includes a file."""
    if isinstance(value, str) and value.endswith((".yaml", ".yml", ".json")):
        path = os.path.join(folder, value)
        if os.path.isfile(path):
            return _load_config(path)
    return value


def _load_config(path: str) -> Dict[str, Any]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise HyperparameterError(
            f"The config file {path} cannot be read: {' '.join(str(error).split())}.",
            hint=f"Paths are relative to {os.getcwd()} or begin with a channel's name.",
        ) from error
    if not isinstance(content, dict):
        raise HyperparameterError(f"The config file {path} holds no settings but {type(content).__name__}.")
    return {str(key): value for key, value in content.items()}


def _read_words(words: Sequence[str]) -> List[Tuple[str, Any]]:
    """Read ``--key=value`` and ``--key value``; words that are neither are the parser's business."""
    import yaml

    read: List[Tuple[str, Any]] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        key, equals, text = word[2:].partition("=")
        if not equals:
            if index >= len(words) or words[index].startswith("--"):
                continue
            text = words[index]
            index += 1
        try:
            value = yaml.safe_load(text)
        except (ValueError, yaml.YAMLError):
            value = text
        read.append((key, value))
    return read
