"""Reads a command line step by step with the run's own parser, and records which step set which key.

Only the parser resolves included files, environment variables, ``+`` and interpolation. A hidden option on the line
(``--lightning-sm-mark``) calls back between two steps, and with ``defaults=False`` the parser then holds what was given
and nothing else.
"""

import argparse
import contextvars
import copy
import os
import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.arguments import Part, config_text
from lightning_sm._config.config_files import load_config
from lightning_sm._config.settings import Layer, Provenance, Settings, as_tree, leaves, plain_key
from lightning_sm.errors import HyperparameterError

__all__ = ["CommandLine", "Step", "apply_config", "is_same", "keep_text", "set_entry"]

_MARK = "--lightning-sm-mark"
_CONFIG = "--config"


@dataclass(frozen=True)
class Step:
    """A part of the command line.

    Args:
        provenance: Who set what it sets; with ``Layer.VARIABLE``, variables are applied over the steps before.
        words: Its words.
        apply: Sets values of the parser at its end.
        keys: What it sets by name, perhaps to what an earlier step has set already.
    """

    provenance: Provenance
    words: Tuple[str, ...] = ()
    apply: Optional[Callable[[Any], None]] = None
    keys: Tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandLine:
    """The arguments of a run in the order in which the parser applies them: the later wins.

    Args:
        parser: The CLI's parser.
        subparser: The parser of the subcommand; the same one where there are no subcommands.
        subcommand: The subcommand.
        front: Config files in sections such as ``fit:``, which LightningCLI wants before the subcommand.
        steps: What follows the subcommand.
    """

    parser: Any
    subparser: Any
    subcommand: Optional[str]
    front: Tuple[Step, ...]
    steps: Tuple[Step, ...]

    @classmethod
    def of(
        cls,
        parser: Any,
        subparser: Any,
        subcommand: Optional[str],
        parts: Sequence[Part],
        complete: Callable[[Any], None],
        completed: Optional[Part] = None,
    ) -> "CommandLine":
        """Put the arguments of a run in order.

        Args:
            parser: The CLI's parser.
            subparser: The parser of the subcommand.
            subcommand: The subcommand.
            parts: What was given.
            complete: Changes values of the parser.
            completed: The part before which it does so.
        """
        front: List[Step] = []
        steps: List[Step] = []
        for index, part in enumerate(parts):
            if part is completed:
                files = (each.provenance for each in reversed(parts[:index]) if each.path is not None)
                steps.append(Step(next(files, part.provenance), apply=complete))
            in_section = part.path is not None and subcommand is not None and subcommand in load_config(part.path)
            if in_section and not any(step.words for step in steps):
                front.append(Step(part.provenance, part.words))
            elif in_section:
                steps.append(Step(part.provenance, apply=_section(subparser, str(part.path), str(subcommand))))
            else:
                keys = tuple(key for key, _ in leaves(as_tree(part.values)))
                steps.append(Step(part.provenance, part.words, keys=keys))
        return cls(parser, subparser, subcommand, tuple(front), tuple(steps))

    def read(self, parse: Callable[[Sequence[str]], Any], project: Sequence[str]) -> Settings:
        """Let the parser read the line, and return what it was given and who gave it.

        The values are the parser's own. Who gave them follows from what changed from step to step; what hyperparameters
        and a person set is known by their names, for they may set what a config file has set already.

        Args:
            parse: Parses a line without the parser's defaults.
            project: Keys of which the project sets the default, below everything else.
        """
        seen: List[Tuple[Step, Dict[str, Any]]] = []
        variables: Any = None

        def note(step: Step, values: Any) -> None:
            seen.append((step, as_tree({} if values is None else values)))

        def begin(values: Any) -> None:
            nonlocal variables
            variables = values.clone()
            note(Step(Provenance(Layer.VARIABLE)), values)
            defaults = self.subparser.get_defaults() if project else {}
            for key in project:
                if key in defaults and values.get(key) is None:
                    values.update(defaults[key], key)
            note(Step(Provenance(Layer.PROJECT)), values)

        def passed(step: Step) -> Callable[[Any], None]:
            def reached(values: Any) -> None:
                if step.apply is not None:
                    step.apply(values)
                if step.provenance.layer is Layer.VARIABLE:
                    values.update(variables)
                note(step, values)

            return reached

        def end(_: Any) -> None:
            raise _EndOfLineError

        def noted_in_front(step: Step) -> Callable[[Any], None]:
            return lambda values: note(step, values.get(self.subcommand))

        first = Step(Provenance(Layer.VARIABLE))
        words = _with_marks(self.parser, [first, *self.front] if self.front else [], "front", noted_in_front)
        words += [] if self.subcommand is None else [self.subcommand]
        marks = _marks(self.subparser)
        marks["begin"], marks["end"] = begin, end
        words += [f"{_MARK}=begin", *_with_marks(self.subparser, self.steps, "step", passed), f"{_MARK}=end"]
        # A copy, because the parser resets its context variables only where it returns.
        context = contextvars.copy_context()
        with suppress(_EndOfLineError):
            context.run(parse, words)
        return Settings(seen[-1][1], _provenance(seen, self.subparser))

    def words(self, last: Callable[[Any], None]) -> List[str]:
        """Return the words of the line.

        Args:
            last: Sets values of the parser after all others.
        """

        def apply(step: Step) -> Callable[[Any], None]:
            return step.apply or (lambda _: None)

        words = [word for step in self.front for word in step.words]
        words += [] if self.subcommand is None else [self.subcommand]
        steps = [*self.steps, Step(Provenance(Layer.COMMAND_LINE), apply=last)]
        return words + _with_marks(self.subparser, steps, "step", apply)


class _Marks(argparse.Action):
    """Calls ``reached[name](values so far)`` when the parser comes to ``--lightning-sm-mark=name``."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.reached: Dict[str, Callable[[Any], None]] = {}

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Optional[str] = None) -> None:
        self.reached[values](namespace)


class _EndOfLineError(Exception):
    """Leaves the parser before it checks for missing arguments and applies links."""


def _marks(parser: Any) -> Dict[str, Callable[[Any], None]]:
    """Let a parser call back at marks on its line; returns what it calls by the mark's name."""
    action = parser._option_string_actions.get(_MARK)
    if action is None:
        parser.add_argument(_MARK, action=_Marks)
        action = parser._option_string_actions[_MARK]
    reached: Dict[str, Callable[[Any], None]] = action.reached
    return reached


def _with_marks(
    parser: Any, steps: Sequence[Step], name: str, reached: Callable[[Step], Callable[[Any], None]]
) -> List[str]:
    """The words of some steps, with a mark behind each."""
    words: List[str] = []
    for index, step in enumerate(steps):
        _marks(parser)[f"{name}-{index}"] = reached(step)
        words += [*step.words, f"{_MARK}={name}-{index}"]
    return words


def apply_config(parser: Any, values: Any, content: Mapping[str, Any]) -> None:
    """Set nested values among a parser's values, as a config would; paths in it begin where the run does."""
    if content:
        parser._option_string_actions[_CONFIG](parser, values, config_text(content), _CONFIG)


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


def keep_text(values: Any, key: str, text: str) -> None:
    """Set a text where a parser has read nothing in it, as in ``null`` for an ``Optional[str]``.

    Args:
        values: What it has read, which is changed.
        key: The key.
        text: The text.
    """
    *parents, last = plain_key(key).split(".")
    node = values
    for name in parents:
        node = _with_arguments(node).get(name) or {}
    node = _with_arguments(node)
    if text and node.get(last, text) is None:
        node[last] = text


def _with_arguments(node: Any) -> Any:
    """The arguments of a class that is named, else the node itself."""
    return node["init_args"] if "class_path" in node and node.get("init_args") is not None else node


def _section(parser: Any, path: str, subcommand: str) -> Callable[[Any], None]:
    """Read a subcommand's section of a config file that comes after a file without sections."""

    def apply(values: Any) -> None:
        from jsonargparse.typing import Path_fr

        section = load_config(path)[subcommand]
        if not isinstance(section, Mapping):
            raise HyperparameterError(f"The section {subcommand!r} of the config file {path} is {section!r}.")
        # jsonargparse before 4.19 has no such context.
        with getattr(Path_fr(path), "relative_path_context", nullcontext)():
            apply_config(parser, values, section)

    return apply


def _provenance(seen: Sequence[Tuple[Step, Mapping[str, Any]]], parser: Any) -> Dict[str, Provenance]:
    found: Dict[str, Provenance] = {}
    before: Dict[str, Any] = {}
    for step, tree in seen:
        now = dict(_leaves_and_entries(tree))
        for key, value in now.items():
            if key not in before or not is_same(before[key], value):
                if step.provenance.layer is not Layer.VARIABLE:
                    found[key] = step.provenance
                else:
                    found[key] = _variable(parser, key) or found.get(key) or Provenance(Layer.CONFIG)
        found = {key: found[key] for key in now if key in found}
        before = now
        for key in step.keys:
            _set_by_name(found, key, step.provenance, tree)
    return found


def _set_by_name(found: Dict[str, Provenance], key: str, provenance: Provenance, tree: Mapping[str, Any]) -> None:
    """Note who set a key, also where the value stayed the same."""
    for place in (key, f"{key}.class_path"):
        if place in found:
            for entry in [other for other in found if other.startswith(f"{place}[")]:
                del found[entry]
            found[place] = provenance
            return
    whole, _, argument = key.rpartition(".")
    entries = Settings(tree).get(whole) if whole else None
    if isinstance(entries, list) and entries:
        found[f"{whole}[{len(entries) - 1}].{argument}"] = provenance  # a parser takes the last one


def _leaves_and_entries(tree: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    """Leaves, and the arguments of the entries of lists such as ``trainer.callbacks[0].dirpath``."""
    for key, value in leaves(tree):
        yield key, value
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            arguments = entry.get("init_args") if isinstance(entry, dict) else None
            for argument, inner in (arguments or {}).items():
                yield f"{key}[{index}].{argument}", inner


def is_same(first: Any, second: Any) -> bool:
    """Whether two values are of one type and equal."""
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # arrays and what else a project's parser may hold
        return first is second


def _variable(parser: Any, key: str) -> Optional[Provenance]:
    """The variable that set a key; ``None`` where it was a config file, which a variable may have named."""
    prefix = parser.env_prefix.replace("-", "_") + "_" if isinstance(parser.env_prefix, str) else ""
    parts = key.split(".")
    wholes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    names = (f"{prefix}{whole}".replace(".", "__").upper() for whole in wholes)
    name = next((name for name in names if name in os.environ), None)
    return None if name is None else Provenance(Layer.VARIABLE, name)
