"""``JobArguments``: the subcommand, config files, hyperparameters and typed arguments of a run inside a job."""

import json
import math
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.config_files import find_config, load_config, load_yaml
from lightning_sm._config.flat_names import with_dots
from lightning_sm._config.settings import Layer, Provenance, Settings, as_tree, leaves, plain_key
from lightning_sm._sagemaker.hyperparameters import Hyperparameters, is_reserved
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError

__all__ = ["SUBCOMMANDS", "JobArguments", "Part", "config_text", "nest"]

SUBCOMMANDS = ("fit", "validate", "test", "predict", "tune")
_CONFIG_FLAGS = ("--config", "-c")
_LISTS = ("trainer.callbacks", "trainer.logger")
# The keys for which a config may name a file instead. Other values that end like a config file are a path of the
# user's, such as annotations of many megabytes.
_INCLUDES = frozenset({"data", "lr_scheduler", "model", "optimizer", "sagemaker", "trainer", *_LISTS})
_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
_GROUPS = frozenset({*SUBCOMMANDS, *(key for key in _INCLUDES if "." not in key)})
_INIT_ARGS = re.compile(r"\.init_args\.")
# Deeper values come from a YAML alias of itself, and would exceed Python's recursion limit.
_DEEPEST = 100


@dataclass(frozen=True)
class Part:
    """A config file, a hyperparameter or a typed option: what a command line is made of.

    Args:
        provenance: Who wrote it.
        words: Its words.
        key: The key that it sets; empty for a config.
        path: The config file.
        values: What it sets as nested values that no parser has read; without what is in the config file.
    """

    provenance: Provenance
    words: Tuple[str, ...] = ()
    key: str = ""
    path: Optional[str] = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_file(cls, path: str) -> "Part":
        """Return a config file."""
        return cls(Provenance(Layer.CONFIG, os.path.basename(path)), (f"--config={path}",), path=path)


@dataclass(frozen=True)
class JobArguments:
    """What a run inside a job is asked to do.

    SageMaker passes hyperparameters as ``--name value`` on the command line, where ``None``, lists and dicts lose their
    types and positional arguments cannot be written. So the words that came from hyperparameters are left out of
    :attr:`typed`, and the values are taken from the job's ``hyperparameters.json``.

    Args:
        subcommand: The one that was typed or that the hyperparameter ``subcommand`` names, else in a job ``fit``;
            ``None`` for a CLI that has none.
        files: The config files of the hyperparameter ``config``.
        named: The user's other hyperparameters by their names.
        texts: How they were written, where a word is no more than that.
        typed: The other words of the command line (of a shell entry point, or of SDK v3's ``command``) in their order,
            with the paths of config files.
    """

    subcommand: Optional[str]
    files: Tuple[str, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    typed: Tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        words: Sequence[str],
        job: TrainingJob,
        subcommands: Collection[str],
        ignored: Collection[str] = (),
    ) -> "JobArguments":
        """Sort the words of the command line and the job's hyperparameters.

        Args:
            words: The command line without the program's name.
            job: The job.
            subcommands: The subcommands that the CLI has; empty for one that has none.
            ignored: Hyperparameters that the script reads itself; ``-`` and ``_`` are the same in them.

        Raises:
            HyperparameterError: The subcommand is unknown, or a config file is not found.
        """
        scripts = {name.lstrip("-").replace("-", "_") for name in ignored}
        given = job.hyperparameters
        values = {name: value for name, value in given.values.items() if name.replace("-", "_") not in scripts}
        typed = _without_hyperparameters(words, given)
        asked = values.pop("subcommand", None)
        subcommand, typed = _take_subcommand(typed, subcommands, asked, job.in_container)
        files = values.pop("config", None)
        files = [files] if isinstance(files, str) else ([] if files is None else files)
        if not isinstance(files, list) or not all(isinstance(path, str) for path in files):
            raise HyperparameterError(
                f"The hyperparameter 'config' is {files!r}.", hint="Give one path, or a list of paths."
            )
        # What its author wrote as a string of JSON is that string, also where the same word would be a number.
        texts = {
            name: given.texts[name]
            for name, value in values.items()
            if name in given.texts and (not isinstance(value, str) or value == given.texts[name])
        }
        return cls(
            subcommand,
            tuple(find_config(path, job) for path in files),
            {_full_name(name, subcommand): value for name, value in values.items()},
            {_full_name(name, subcommand): text for name, text in texts.items()},
            tuple(_with_config_paths(typed, job)),
        )

    def with_keys(self, keys: Mapping[str, str]) -> "JobArguments":
        """Let hyperparameters set other keys than their names; those whose key is empty are left out."""
        texts = {keys.get(name, name): text for name, text in self.texts.items()}
        named = {keys.get(name, name): value for name, value in self.named.items() if keys.get(name) != ""}
        return replace(self, texts=texts, named=named)

    @property
    def strings(self) -> Dict[str, str]:
        """The hyperparameters whose author wrote a string, and not text that may be anything."""
        return {name: value for name, value in self.named.items() if isinstance(value, str) and name not in self.texts}

    def parts(self) -> Tuple[Part, ...]:
        """Return the line in the order in which it applies: the later wins.

        It begins with the config files of the hyperparameters. Hyperparameters are above every config file, so they
        follow the last one that was typed, without those keys that were typed before it.
        """
        typed = [_typed(words) for words in _options(self.typed)]
        end = max((index + 1 for index, part in enumerate(typed) if part.path is not None), default=0)
        before = {key for part in typed[:end] for key, _ in leaves(as_tree(part.values))}
        names = [name for name in self.named if plain_key(name) not in before]
        names.sort(key=lambda name: (name.count("."), not name.endswith(".class_path")))
        return (
            *map(Part.of_file, self.files),
            *typed[:end],
            *(_hyperparameter(name, self.named[name], self.texts.get(name)) for name in names),
            *typed[end:],
        )

    def as_written(self, defaults: Optional[Mapping[str, Any]] = None, files: Sequence[str] = ()) -> Settings:
        """Return what files, hyperparameters and words contain, without validation by a parser.

        Class paths and keys can be looked up in it before there is a parser, and where the parser has refused a key.

        Args:
            defaults: The project's own defaults, by dotted keys.
            files: Config files below all others.

        Raises:
            HyperparameterError: A config file is missing, broken or no mapping.
        """
        settings = Settings().with_layer(nest(defaults or {}), Provenance(Layer.PROJECT))
        for part in (*map(Part.of_file, files), *self.parts()):
            if part.path is None:
                settings = settings.with_layer(part.values, part.provenance)
                continue
            content = load_config(part.path)
            section = content.pop(self.subcommand, None) if self.subcommand is not None else None
            for values in (content, section):
                if isinstance(values, dict):
                    included = _included(nest(values), os.path.dirname(part.path))
                    settings = settings.with_layer(included, part.provenance)
        return settings


def _hyperparameter(name: str, value: Any, text: Optional[str]) -> Part:
    """Write a hyperparameter as the word that it would be on a laptop.

    A word that reads as nothing, a list or a mapping is quoted in a config instead, where a parser takes it for an
    argument of text, too. A value that no text means to YAML, such as an infinite number, is itself in a config.
    """
    text = value if isinstance(value, str) else text or json.dumps(value)
    read = _read_value(text)
    written: Any = value
    is_option = name not in _INCLUDES and all(name.split("."))
    if is_option and (isinstance(value, str) or _is_finite_number(value) or read == value):
        written = text
    is_word = is_option and written is text and isinstance(read, (str, bool, int, float))
    word = f"--{name}={text}" if is_word else f"--config={config_text(nest({name: written}))}"
    return Part(Provenance(Layer.HYPERPARAMETER), (word,), name, values=_included(nest({name: value})))


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _options(words: Sequence[str]) -> List[List[str]]:
    """Part words into options, each with what follows it."""
    found: List[List[str]] = []
    for word in words:
        if found and not word.startswith("--"):
            found[-1].append(word)
        else:
            found.append([word])
    return found


def _typed(words: Sequence[str]) -> Part:
    provenance = Provenance(Layer.COMMAND_LINE)
    key, equals, text = words[0][2:].partition("=")
    if not words[0].startswith("--") or not key or (not equals and len(words) == 1):
        return Part(provenance, tuple(words))  # left to the parser
    text = text if equals else words[1]
    value = _read_value(text)
    if key != "config":
        return Part(provenance, tuple(words), key, values=_included(nest({key: value})))
    if isinstance(value, dict):
        return Part(provenance, tuple(words), values=_included(nest(value)))
    return Part.of_file(text)


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


def _without_hyperparameters(words: Sequence[str], hyperparameters: Hyperparameters) -> List[str]:
    """Leave out each ``--name value`` that a launcher wrote for a hyperparameter, and SageMaker's own names."""
    kept: List[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name, equals, _ = word.lstrip("-").partition("=") if word.startswith("-") else (None, "", "")
        follows = words[index + 1] if index + 1 < len(words) else None
        written = name in hyperparameters.values and follows in hyperparameters.spellings(name or "")
        if name is not None and is_reserved(name):
            index += 1 if equals else 2
        elif name is not None and written and not equals:
            index += 2
        else:
            kept.append(word)
            index += 1
    return kept


def _take_subcommand(
    typed: List[str], subcommands: Collection[str], asked: Optional[Any], in_job: bool
) -> Tuple[Optional[str], List[str]]:
    if not subcommands:
        return None, typed
    value_follows = False
    for index, word in enumerate(typed):
        if word in subcommands and not value_follows:
            return word, typed[:index] + typed[index + 1 :]
        value_follows = word.startswith("-") and "=" not in word and not value_follows
    if asked is None:
        return "fit" if in_job else None, typed
    if not isinstance(asked, str) or asked not in subcommands:
        raise HyperparameterError(
            f"The hyperparameter 'subcommand' is {asked!r}.", hint=f"Use one of {', '.join(sorted(subcommands))}."
        )
    return asked, typed


def _with_config_paths(typed: Sequence[str], job: TrainingJob) -> Iterator[str]:
    """Write each ``--config FILE`` as one word, with the path of the file."""
    words = iter(typed)
    for word in words:
        flag, equals, given = word.partition("=")
        if flag not in _CONFIG_FLAGS:
            yield word
            continue
        named = given if equals else next(words, None)
        if named is None:
            raise HyperparameterError(f"{flag} is the last word of the command line.", hint="Name a file after it.")
        yield f"--config={named if isinstance(_read_value(named), dict) else find_config(named, job)}"


def _full_name(name: str, subcommand: Optional[str]) -> str:
    """A name with its dots and without the subcommand."""
    dotted = with_dots(name, _GROUPS)
    return dotted[len(subcommand) + 1 :] if subcommand and dotted.startswith(f"{subcommand}.") else dotted


def nest(flat: Mapping[str, Any]) -> Dict[str, Any]:
    """Turn dotted keys into nested mappings; what is set beside a ``class_path`` or ``init_args`` is an argument, too.

    Raises:
        HyperparameterError: A key is set both to a value and to parts of it, or its value is nested without end.
    """
    nested: Dict[str, Any] = {}
    values = {str(key): value for key, value in flat.items()}
    classes = {key[: match.start()] for key in values for match in _INIT_ARGS.finditer(key)}
    for key in sorted(values, key=lambda key: (key.count("."), not key.endswith(".class_path"))):
        node = nested
        *parents, last = key.split(".")
        for depth, part in enumerate(parents):
            node = _arguments_of(node, part, ".".join(parents[:depth]) in classes)
            inner = node.setdefault(part, {})
            if isinstance(inner, str):
                inner = node[part] = {"class_path": inner}
            if not isinstance(inner, dict):
                raise HyperparameterError(
                    f"{key!r} is set, and {part!r} as a whole is set to {inner!r}.", hint="Set one of them."
                )
            node = inner
        _arguments_of(node, last, ".".join(parents) in classes)[last] = _copied(values[key], key, key.count("."))
    return nested


def _arguments_of(node: Dict[str, Any], part: str, is_class: bool) -> Dict[str, Any]:
    """Where an argument goes: below ``init_args`` if ``node`` names a class or its ``init_args``."""
    if not (is_class or "class_path" in node or "init_args" in node) or part in _CLASS_KEYS:
        return node
    inner = node.setdefault("init_args", {})
    return inner if isinstance(inner, dict) else node


def _copied(value: Any, key: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise HyperparameterError(f"{key[:_DEEPEST]!r} is nested more than {_DEEPEST} levels deep.")
    if isinstance(value, dict):
        return {name: _copied(inner, key, depth + 1) for name, inner in value.items()}
    return [_copied(inner, key, depth + 1) for inner in value] if isinstance(value, list) else value


def _included(values: Mapping[str, Any], folder: str = "", at: str = "") -> Dict[str, Any]:
    """Replace each file that is named instead of a group or list by its content; leave out what is added to a list."""
    found: Dict[str, Any] = {}
    for name, value in ((str(name), value) for name, value in values.items()):
        key = f"{at}.{name}" if at else name
        if name.endswith("+"):
            continue
        if isinstance(value, str) and key in _INCLUDES and value.endswith((".yaml", ".yml", ".json")):
            path = os.path.join(folder, value)
            value = (load_yaml(path) if key in _LISTS else load_config(path)) if os.path.isfile(path) else value
        found[name] = _included(value, folder, key) if isinstance(value, Mapping) else value
    return found


def _read_value(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception:  # PyYAML lets out whatever its constructors raise: '!!int ""' is an IndexError
        return text
