"""What a run was given, as its own parser reads it: files, includes, variables, hyperparameters and words."""

import argparse
import contextvars
import copy
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.settings import COMMAND_LINE, CONFIG, HYPERPARAMETER, PROJECT, VARIABLE, Settings

__all__ = ["MARK", "Layer", "add_marks", "read_given", "set_entry"]

# An option of ours on the line, at which the parser calls back. No help shows it and no config holds it.
MARK = "--lightning-sm-mark"
_META = ("__path__", "__orig__", "__default_config__")


@dataclass(frozen=True)
class Layer:
    """A part of the command line.

    Args:
        origin: Who set what it sets; with ``VARIABLE``, what variables set goes above the layers before.
        words: Its words.
    """

    origin: str
    words: Tuple[str, ...]


class _Marks(argparse.Action):
    """Calls ``reached[name](values so far)`` when the parser comes to ``--lightning-sm-mark=name``."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.reached: Dict[str, Callable[[Any], None]] = {}

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Optional[str] = None) -> None:
        self.reached[values](namespace)


class _EndOfLineError(Exception):
    """Leaves the parser before it asks for what is missing and applies links."""


def add_marks(parser: Any) -> Dict[str, Callable[[Any], None]]:
    """Let a parser call back at marks on its line; returns what it calls by the mark's name."""
    action = parser._option_string_actions.get(MARK)
    if action is None:
        parser.add_argument(MARK, action=_Marks)
        action = parser._option_string_actions[MARK]
    reached: Dict[str, Callable[[Any], None]] = action.reached
    return reached


def read_given(
    parse: Callable[[Sequence[str]], Any],
    parser: Any,
    front: Sequence[str],
    layers: Sequence[Layer],
    said: Settings,
    project: Mapping[str, Any],
) -> Settings:
    """Let the parser read the command line, and return what it was given and who gave it.

    The values are the parser's own. Who gave them follows from what changed from layer to layer; what hyperparameters
    and a person set is known by their names, for they may set what a config file said already.

    Args:
        parse: Parses a line without the parser's defaults.
        parser: The parser of the run's subcommand.
        front: Words before the layers, with the subcommand.
        layers: The parts of the line, in their order.
        said: The same settings as they were read without the parser.
        project: The project's own defaults by their keys, below everything else.
    """
    seen: List[Tuple[str, Dict[str, Any]]] = []
    reached = add_marks(parser)

    first: Any = None

    def begin(values: Any) -> None:
        nonlocal first
        first = values.clone()
        seen.append((VARIABLE, _tree(values)))
        defaults = parser.get_defaults() if project else {}
        for key in project:
            if key in defaults and values.get(key) is None:
                values.update(defaults[key], key)
        seen.append((PROJECT, _tree(values)))

    def passed(origin: str) -> Callable[[Any], None]:
        def note(values: Any) -> None:
            if origin == VARIABLE:
                values.update(first)
            seen.append((origin, _tree(values)))

        return note

    def end(_: Any) -> None:
        raise _EndOfLineError

    reached["begin"], reached["end"] = begin, end
    line = [*front, f"{MARK}=begin"]
    for index, layer in enumerate(layers):
        reached[str(index)] = passed(layer.origin)
        line += [*layer.words, f"{MARK}={index}"]
    # A copy, because the parser takes back what it notes in its context only where it comes to its end.
    context = contextvars.copy_context()
    with suppress(_EndOfLineError):
        context.run(parse, [*line, f"{MARK}=end"])
    return Settings(seen[-1][1], _origins(seen, said, parser))


def set_entry(parser: Any, values: Any, key: str, value: Any) -> None:
    """Set an argument of an entry of a list among a parser's values, where the rest of it stays as it was read.

    Args:
        parser: The parser.
        values: What it has read so far, which is changed.
        key: The argument, such as ``trainer.callbacks[0].init_args.dirpath``.
        value: Its value.
    """
    found = re.fullmatch(r"(.+)\[(\d+)\]\.init_args\.(.+)", key)
    assert found is not None, "routing names entries so"
    whole, index, argument = found[1], int(found[2]), found[3]
    entries = copy.deepcopy(values[whole])
    entry = entries[index]
    if isinstance(entry, dict):
        entry.setdefault("init_args", {})[argument] = value
    else:
        entry[f"init_args.{argument}"] = value
    flag = f"--{whole}"
    parser._option_string_actions[flag](parser, values, entries, flag)


def _tree(node: Any) -> Any:
    """A parser's values as nested mappings, in which the arguments of a class stand beside its ``class_path``."""
    if isinstance(node, (list, tuple)):
        return [_entry(inner) for inner in node]
    items = _items(node)
    if items is None:
        return node
    tree: Dict[str, Any] = {}
    for name, value in items:
        inner = _tree(value)
        if name == "init_args" and isinstance(inner, dict):
            tree.update(inner)
        else:
            tree[name] = inner
    return tree


def _entry(node: Any) -> Any:
    if isinstance(node, (list, tuple)):
        return [_entry(inner) for inner in node]
    items = _items(node)
    return node if items is None else {name: _entry(value) for name, value in items}


def _items(node: Any) -> Optional[List[Tuple[str, Any]]]:
    """The named values of a mapping, or of the parser's namespace; ``None`` for a value."""
    if not isinstance(node, Mapping) and not hasattr(node, "as_dict"):
        return None
    named = node if isinstance(node, Mapping) else node.as_dict()
    return [(str(name), value) for name, value in named.items() if name not in _META]


def _origins(seen: Sequence[Tuple[str, Mapping[str, Any]]], said: Settings, parser: Any) -> Dict[str, str]:
    origins: Dict[str, str] = {}
    before: Dict[str, Any] = {}
    for origin, tree in seen:
        now = dict(_leaves(tree))
        for key, value in now.items():
            if key not in before or not _same(before[key], value):
                variable = _variable(parser, key) if origin == VARIABLE else None
                named = said.origin(key) if origin in (VARIABLE, CONFIG) else None
                origins[key] = variable or named or (CONFIG if origin == VARIABLE else origin)
        origins = {key: origins[key] for key in now}
        before = now
    for key, origin in said.origins.items():
        if origin in (COMMAND_LINE, HYPERPARAMETER):
            _set_by_name(origins, key, origin, seen[-1][1])
    return origins


def _set_by_name(origins: Dict[str, str], key: str, origin: str, tree: Mapping[str, Any]) -> None:
    """Note who set a key, also where the value stayed the same."""
    for place in (key, f"{key}.class_path"):
        if place in origins:
            for entry in [other for other in origins if other.startswith(f"{place}[")]:
                del origins[entry]
            origins[place] = origin
            return
    whole, _, argument = key.rpartition(".")
    entries = Settings(tree).get(whole) if whole else None
    if isinstance(entries, list) and entries:
        origins[f"{whole}[{len(entries) - 1}].{argument}"] = origin  # a parser takes the last one


def _leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[Tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{at}.{name}" if at else name
        if isinstance(value, dict) and value:
            yield from _leaves(value, key)
            continue
        yield key, value
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            arguments = entry.get("init_args") if isinstance(entry, dict) else None
            for argument, inner in (arguments or {}).items():
                yield f"{key}[{index}].{argument}", inner


def _same(first: Any, second: Any) -> bool:
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # arrays and what else a project's parser may hold
        return first is second


def _variable(parser: Any, key: str) -> Optional[str]:
    """Name the variable that set a key; ``None`` where it was a config file, which a variable may have named."""
    prefix = parser.env_prefix.replace("-", "_") + "_" if isinstance(parser.env_prefix, str) else ""
    parts = key.split(".")
    wholes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    names = (f"{prefix}{whole}".replace(".", "__").upper() for whole in wholes)
    return next((VARIABLE + name for name in names if name in os.environ), None)
