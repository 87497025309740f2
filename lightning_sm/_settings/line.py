"""``JobLine``: what a run inside a job was given, as one command line on which the later wins."""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Collection, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError

__all__ = [
    "HYPERPARAMETER",
    "SCRIPT",
    "SUBCOMMANDS",
    "JobLine",
    "Part",
    "config_text",
    "leaves",
    "load",
    "plain_key",
    "read_word",
]

SUBCOMMANDS = ("fit", "validate", "test", "predict", "tune")
#: Who set a value, as the log says it; besides, it is the name of a config file, or a variable.
HYPERPARAMETER, TYPED, SCRIPT = "a hyperparameter", "the command line", "the script"
# What separates groups where a name may hold no dot: `model__lr` means `model.lr`.
_SEPARATOR = "__"
_CONFIG_FLAGS = ("--config", "-c")
# The keys for which a config may name a file instead. Other values that end like a config file are a path of the
# user's, such as annotations of many megabytes.
_INCLUDES = frozenset(
    {"data", "lr_scheduler", "model", "optimizer", "sagemaker", "trainer", "trainer.callbacks", "trainer.logger"}
)
_GROUPS = frozenset({*SUBCOMMANDS, *(key for key in _INCLUDES if "." not in key)})
# Deeper values come from a YAML alias of itself.
_DEEPEST = 100


@dataclass(frozen=True)
class Part:
    """A config file, a variable, a hyperparameter, a typed option, or the arguments that a script passes.

    Args:
        source: Who wrote it, as the log says it.
        values: What it sets, by plain keys, as no parser has read it.
        args: How it stands on a command line.
        path: The config file.
        file: What it holds, as YAML reads it; ``None`` where it cannot be read.
        content: Key, value and what a config says for it, of a hyperparameter; without ``args`` where no argument can.
    """

    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    args: Tuple[str, ...] = ()
    path: Optional[str] = None
    file: Any = None
    content: Optional[Tuple[str, Any, Any]] = None

    @classmethod
    def of_file(cls, path: str, subcommand: Optional[str]) -> "Part":
        """Return a config file. One that cannot be read sets nothing here, and the parser says why."""
        file = load(path)
        content = section(file, subcommand) or file
        values = dict(leaves(content, folder=os.path.dirname(path))) if isinstance(content, Mapping) else {}
        return cls(os.path.basename(path), values, (f"--config={path}",), path, file)


@dataclass(frozen=True)
class JobLine:
    """The subcommand, config files, hyperparameters and typed arguments of a run.

    SageMaker passes hyperparameters as ``--name value`` on the command line, where ``None``, lists and dicts lose their
    types and positional arguments cannot be written. So these are left out, and the job's
    ``hyperparameters.json`` is read, of which each value becomes the argument that it would be on a laptop.

    Args:
        subcommand: The one that was typed or that the hyperparameter ``subcommand`` names, else in a job ``fit``;
            ``None`` for a CLI that has none.
        files: The config files of the hyperparameter ``config``.
        named: The user's other hyperparameters by their names.
        texts: How they were written, where their author wrote text that may be anything.
        typed: The other arguments (of a shell entry point, or of SDK v3's ``command``) in their order.
    """

    subcommand: Optional[str]
    files: Tuple[Part, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    typed: Tuple[Part, ...] = ()

    @classmethod
    def read(
        cls,
        args: Sequence[str],
        job: TrainingJob,
        subcommands: Collection[str],
        ignored: Collection[str] = (),
    ) -> "JobLine":
        """Sort the arguments of the command line and the job's hyperparameters.

        Args:
            args: The command line without the program's name.
            job: The job.
            subcommands: The subcommands that the CLI has; empty for one that has none.
            ignored: Hyperparameters that the script reads itself; ``-`` and ``_`` are the same in them.

        Raises:
            HyperparameterError: The subcommand is unknown, or a config file is not found.
        """
        scripts = {name.lstrip("-").replace("-", "_") for name in ignored}
        given = job.hyperparameters
        values = {name: value for name, value in given.values.items() if name.replace("-", "_") not in scripts}
        typed = given.typed(args)
        subcommand, typed = _take_subcommand(typed, subcommands, values.pop("subcommand", None), job.in_container)
        files = values.pop("config", None)
        files = [files] if isinstance(files, str) else ([] if files is None else files)
        if not isinstance(files, list) or not all(isinstance(path, str) for path in files):
            raise HyperparameterError(
                f"The hyperparameter 'config' is {files!r}.", hint="Give one path, or a list of paths."
            )
        names = {name: _full_name(name, subcommand) for name in values}
        # What its author wrote as a string of JSON is that string, also where the same argument would be a number.
        texts = {
            names[name]: given.texts[name]
            for name, value in values.items()
            if name in given.texts and (not isinstance(value, str) or value == given.texts[name])
        }
        return cls(
            subcommand,
            tuple(Part.of_file(_find(path, job), subcommand) for path in files),
            {names[name]: value for name, value in values.items()},
            texts,
            tuple(_typed(option, subcommand, job) for option in _options(typed)),
        )

    def parts(self, keys: Optional[Mapping[str, str]] = None) -> Tuple[Part, ...]:
        """Return the line in the order in which it applies: the later wins.

        It begins with the config files of the hyperparameters. Hyperparameters are above every config file, so they
        follow the last one that was typed, without those keys that were typed before it.

        Args:
            keys: The keys of hyperparameters whose names are none; an empty one leaves a hyperparameter out.
        """
        end = max((index + 1 for index, part in enumerate(self.typed) if part.path is not None), default=0)
        before = {key for part in self.typed[:end] if part.path is None for key in part.values}
        chosen = [((keys or {}).get(name, name), name) for name in self.named]
        chosen = [(key, name) for key, name in chosen if plain_key(key) not in before and (key or not name)]
        chosen.sort(key=lambda each: (each[0].count("."), not each[0].endswith(".class_path")))
        return (
            *self.files,
            *self.typed[:end],
            *(_hyperparameter(key, self.named[name], self.texts.get(name)) for key, name in chosen),
            *self.typed[end:],
        )

    @property
    def strings(self) -> FrozenSet[str]:
        """The hyperparameters whose author wrote a string, and not text that may be anything."""
        return frozenset(
            name for name, value in self.named.items() if isinstance(value, str) and name not in self.texts
        )


def leaves(node: Mapping[str, Any], at: str = "", folder: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield each key that nested values set, without ``init_args``, and its value; of a file that is named its content.

    >>> dict(leaves({"model": {"class_path": "net.Net", "init_args": {"lr": 0.1}}, "seed.x": 1}))
    {'model.class_path': 'net.Net', 'model.lr': 0.1, 'seed.x': 1}
    """
    for name, value in node.items():
        key = plain_key(f"{at}.{name}" if at else str(name)).rstrip("+")
        if key in _INCLUDES and isinstance(value, str) and value.endswith((".yaml", ".yml", ".json")):
            path = os.path.join(folder, value)
            value = load(path) if os.path.isfile(path) else value
        if isinstance(value, Mapping) and value and key.count(".") < _DEEPEST:
            yield from leaves(value, key, folder)
        elif at or value != {}:
            yield key, value


def plain_key(key: str) -> str:
    """A key without ``init_args``."""
    return key.replace(".init_args", "")


def load(path: str) -> Any:
    """Read a YAML or JSON file; no mapping where that fails, since the parser will say it."""
    try:
        with open(path, encoding="utf-8") as file:
            return read_word(file.read())
    except (OSError, ValueError):
        return None


def section(content: Any, subcommand: Optional[str]) -> Optional[Mapping[str, Any]]:
    """What a config file in sections such as ``fit:`` says for a subcommand; ``None`` for a file without sections."""
    found = content.get(subcommand) if subcommand is not None and isinstance(content, Mapping) else None
    return found if isinstance(found, Mapping) else None


def config_text(content: Mapping[str, Any]) -> str:
    """Write a config.

    Strings and keys that do not begin with a letter are quoted, because jsonargparse reads ``1e-3`` as a number where
    PyYAML does not; JSON would not do, because YAML knows neither its ``NaN`` nor its escapes of characters beyond the
    basic plane.

    Raises:
        HyperparameterError: It holds an object that no config can.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, text: Any) -> Any:
        text = str(text)
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text[:1].isalpha() else '"')

    Dumper.add_representer(str, represent)
    Dumper.add_multi_representer(PurePath, represent)
    try:
        return str(yaml.dump(dict(content), Dumper=Dumper, sort_keys=False))
    except yaml.representer.RepresenterError as error:
        raise HyperparameterError(
            f"{error.args[-1]!r} cannot be in a config.", hint="Give its class_path and init_args."
        ) from error


def _hyperparameter(key: str, value: Any, text: Optional[str]) -> Part:
    """Write a hyperparameter as the argument that it would be on a laptop.

    An argument that reads as nothing, a list or a mapping is quoted in a config instead, where a parser takes it for an
    argument of text, too. A value that no text means to YAML, such as an infinite number, is itself in a config.
    """
    text = value if isinstance(value, str) else text or json.dumps(value)
    read, values = read_word(text), dict(leaves({key: value}))
    written: Any = value
    is_option = key not in _INCLUDES and all(key.split("."))
    is_finite = isinstance(value, float) and math.isfinite(value)  # YAML 1.1 takes 1e-05 for text
    if is_option and (isinstance(value, str) or is_finite or read == value):
        written = text
    is_argument = is_option and written is text and isinstance(read, (str, bool, int, float))
    return Part(HYPERPARAMETER, values, (f"--{key}={text}",) if is_argument else (), content=(key, value, written))


def _options(args: Sequence[str]) -> List[List[str]]:
    """Part arguments into options, each with what follows it."""
    found: List[List[str]] = []
    for arg in args:
        if found and not arg.startswith(("--", "-c=")) and arg != "-c":
            found[-1].append(arg)
        else:
            found.append([arg])
    return found


def _typed(option: Sequence[str], subcommand: Optional[str], job: TrainingJob) -> Part:
    flag, equals, text = option[0].partition("=")
    args = tuple(option)
    if flag in _CONFIG_FLAGS:
        if not equals and len(option) == 1:
            raise HyperparameterError(f"{flag} names no config file.", hint="Name one after it.")
        given, more = (text, args[1:]) if equals else (args[1], args[2:])
        content = read_word(given)
        if isinstance(content, Mapping):
            return Part(TYPED, dict(leaves(content)), (f"--config={given}", *more))
        return Part.of_file(_find(given, job), subcommand)
    if not flag.startswith("--") or len(flag) == 2 or (not equals and len(option) == 1):
        return Part(TYPED, args=args)  # left to the parser
    return Part(TYPED, dict(leaves({flag[2:]: read_word(text if equals else option[1])})), args)


def _find(path: str, job: TrainingJob) -> str:
    """Find a config file: the path itself, else with its first part as the name of a channel."""
    if "://" in path:
        raise HyperparameterError(
            f"The config file {path!r} is not on this host.", hint="Bring it in a channel, and name it 'channel/file'."
        )
    first, _, rest = path.partition("/")
    tried = [path]
    if first in job.channels:
        tried.append(os.path.join(job.channels[first].path, rest) if rest else job.channels[first].path)
    for candidate in tried:
        if os.path.isfile(candidate):
            return candidate
    beside = [name for name in sorted(os.listdir(".")) if name.endswith((".yaml", ".yml"))]
    raise HyperparameterError(
        f"The config file {path!r} is neither {' nor '.join(os.path.abspath(candidate) for candidate in tried)}.",
        hint=f"Give a path relative to {os.getcwd()}, which holds {', '.join(beside) or 'no YAML file'}, "
        "or one that begins with a channel's name.",
    )


def _take_subcommand(
    typed: List[str], subcommands: Collection[str], asked: Optional[Any], in_job: bool
) -> Tuple[Optional[str], List[str]]:
    if not subcommands:
        return None, typed
    value_follows = False
    for index, arg in enumerate(typed):
        if arg in subcommands and not value_follows:
            return arg, typed[:index] + typed[index + 1 :]
        value_follows = arg.startswith("-") and "=" not in arg and not value_follows
    if asked is None:
        return "fit" if in_job else None, typed
    if not isinstance(asked, str) or asked not in subcommands:
        raise HyperparameterError(
            f"The hyperparameter 'subcommand' is {asked!r}.", hint=f"Use one of {', '.join(sorted(subcommands))}."
        )
    return asked, typed


def _full_name(name: str, subcommand: Optional[str]) -> str:
    """A name with its dots and without the subcommand; ``model__lr`` is ``model.lr``, ``my__model`` stays."""
    dotted = name.replace(_SEPARATOR, ".") if name.partition(_SEPARATOR)[0] in _GROUPS else name
    return dotted[len(subcommand) + 1 :] if subcommand and dotted.startswith(f"{subcommand}.") else dotted


def read_word(text: str) -> Any:
    """What text means as YAML; the text itself where it is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception:  # PyYAML lets out whatever its constructors raise: '!!int ""' is an IndexError
        return text
