"""``JobArguments``: the subcommand, config files, hyperparameters and typed arguments of a run inside a job."""

import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.config_files import find_config, load_config, load_yaml
from lightning_sm._config.flat_names import with_dots
from lightning_sm._config.settings import Layer, Provenance, Settings, as_tree, leaves
from lightning_sm._sagemaker.hyperparameters import Hyperparameters, is_reserved
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError

__all__ = ["SUBCOMMANDS", "JobArguments", "nest"]

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
class JobArguments:
    """What a run inside a job is asked to do.

    SageMaker passes hyperparameters as ``--name value`` on the command line, where ``None``, lists and dicts lose their
    types and positional arguments cannot be written. So the words that came from hyperparameters are left out of
    :attr:`typed`, and the values are taken from the job's ``hyperparameters.json``.

    Args:
        subcommand: The one that was typed or that the hyperparameter ``subcommand`` names, else in a job ``fit``;
            ``None`` for a CLI that has none.
        configs: Config files in the order in which they apply: the hyperparameter ``config``, then those typed.
        hyperparameters: The user's hyperparameters as nested values.
        typed: The other words of the command line (of a shell entry point, or of SDK v3's ``command``).
        listed: Words for hyperparameters that set an argument of the last of several callbacks or loggers, such as
            ``trainer.callbacks.patience``, which only a word can.
        named: All hyperparameters by their names.
        texts: The numbers and booleans among them as they were written.
    """

    subcommand: Optional[str]
    configs: Tuple[str, ...] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    typed: Tuple[str, ...] = ()
    listed: Tuple[str, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

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
        values = {
            name: value for name, value in job.hyperparameters.values.items() if name.replace("-", "_") not in scripts
        }
        typed = _without_hyperparameters(words, job.hyperparameters)
        asked = values.pop("subcommand", None)
        subcommand, typed = _take_subcommand(typed, subcommands, asked, job.in_container)
        configs, typed = _take_configs(typed)
        files = values.pop("config", None)
        files = [files] if isinstance(files, str) else ([] if files is None else files)
        if not isinstance(files, list) or not all(isinstance(path, str) for path in files):
            raise HyperparameterError(
                f"The hyperparameter 'config' is {files!r}.", hint="Give one path, or a list of paths."
            )
        texts = {name: job.hyperparameters.text(name) for name, value in values.items() if _is_number(value)}
        named = {_full_name(name, subcommand): value for name, value in values.items()}
        found = tuple(find_config(path, job) for path in [*files, *configs])
        texts = {_full_name(name, subcommand): text for name, text in texts.items()}
        return cls(subcommand, found, typed=tuple(typed), texts=texts).with_named(named)

    def with_keys(self, keys: Mapping[str, str]) -> "JobArguments":
        """Let hyperparameters set other keys than their names; those whose key is empty are left out."""
        texts = {keys.get(name, name): text for name, text in self.texts.items()}
        named = {keys.get(name, name): value for name, value in self.named.items() if keys.get(name, name)}
        return replace(self, texts=texts).with_named(named)

    def with_named(self, values: Mapping[str, Any]) -> "JobArguments":
        """Replace the hyperparameters by these, by their names."""
        listed = {name: value for name, value in values.items() if _is_of_last(name, values)}
        flags = tuple(f"--{name}={_word(value)}" for name, value in listed.items())
        nested = nest({name: value for name, value in values.items() if name not in listed})
        return replace(self, hyperparameters=nested, listed=flags, named=values)

    def with_texts(self, names: Collection[str]) -> "JobArguments":
        """Pass these hyperparameters as the text that they were written as."""
        return self.with_named({**self.named, **{name: self.texts[name] for name in names}})

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
        for path in (*files, *self.configs):
            content = load_config(path)
            section = content.pop(self.subcommand, None) if self.subcommand is not None else None
            for part in (content, section):
                if isinstance(part, dict):
                    values = _included(nest(part), os.path.dirname(path))
                    settings = settings.with_layer(values, Provenance(Layer.CONFIG, os.path.basename(path)))
        for layer in self._explicit():
            settings = settings.with_layer(*layer)
        return settings

    def explicit_keys(self) -> Dict[str, Provenance]:
        """Who set each key that a hyperparameter or a word sets."""
        layers = list(self._explicit())
        return {key: provenance for values, provenance in layers for key, _ in leaves(as_tree(values))}

    def _explicit(self) -> Iterator[Tuple[Mapping[str, Any], Provenance]]:
        """Nested values of hyperparameters and words, in their order."""
        yield _included(self.hyperparameters), Provenance(Layer.HYPERPARAMETER)
        for words, layer in ((self.listed, Layer.HYPERPARAMETER), (self.typed, Layer.COMMAND_LINE)):
            for key, value in _read_words(words):
                yield _included(nest({key: value})), Provenance(layer)


def _is_of_last(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a name is an argument below callbacks or loggers, of which no hyperparameter names a class."""
    whole = next((whole for whole in _LISTS if name.startswith(f"{whole}.")), None)
    if whole is None or name[len(whole) + 1 :] in ("class_path", "init_args", "dict_kwargs"):
        return False
    return not isinstance(values.get(whole), (str, dict)) and f"{whole}.class_path" not in values


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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


def _take_configs(typed: List[str]) -> Tuple[List[str], List[str]]:
    configs: List[str] = []
    rest: List[str] = []
    words = iter(typed)
    for word in words:
        flag, equals, path = word.partition("=")
        if flag not in _CONFIG_FLAGS:
            rest.append(word)
        elif equals:
            configs.append(path)
        else:
            following = next(words, None)
            if following is None:
                raise HyperparameterError(f"{flag} is the last word of the command line.", hint="Name a file after it.")
            configs.append(following)
    return configs, rest


def _full_name(name: str, subcommand: Optional[str]) -> str:
    """A name with its dots and without the subcommand."""
    dotted = with_dots(name, _GROUPS)
    return dotted[len(subcommand) + 1 :] if subcommand and dotted.startswith(f"{subcommand}.") else dotted


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


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


def _read_words(words: Sequence[str]) -> Iterator[Tuple[str, Any]]:
    """Read ``--key=value`` and ``--key value``; other words are left to the parser."""
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
        yield key, _read_value(text)


def _read_value(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception:  # PyYAML lets out whatever its constructors raise: '!!int ""' is an IndexError
        return text
