"""``JobArguments``: the subcommand, config files and values of a run inside a job, whoever wrote them on the line."""

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.config_files import LISTS, nest
from lightning_sm._sagemaker.hyperparameters import Hyperparameters, is_reserved
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError

__all__ = ["JobArguments"]

_CONFIG_FLAGS = ("--config", "-c")


@dataclass(frozen=True)
class JobArguments:
    """What a run inside a job is asked to do.

    SageMaker turns hyperparameters into ``--name value`` words, which spoils ``None``, lists and dicts and knows no
    positional words. So the words that came from hyperparameters are left out of :attr:`typed` and the values are taken
    from the job's own file, where they are whole.

    Args:
        subcommand: What a person or the hyperparameter ``subcommand`` named, else in a job ``fit``; ``None`` for a CLI
            that has none.
        configs: Config files in the order in which they apply: the hyperparameter ``config``, then those typed.
        hyperparameters: The user's hyperparameters as nested values.
        typed: The other words that a person typed (in a shell entry point, or in SDK v3's ``command``).
        listed: Words for hyperparameters that set an argument of the last of several callbacks or loggers, such as
            ``trainer.callbacks.patience``, which only a word can.
        named: The same hyperparameters but those, by their names.
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
        named = values.pop("config", None)
        named = [named] if isinstance(named, str) else ([] if named is None else named)
        if not isinstance(named, list) or not all(isinstance(path, str) for path in named):
            raise HyperparameterError(
                f"The hyperparameter 'config' is {named!r}.", hint="Give one path, or a list of paths."
            )
        numbers = [name for name, value in values.items() if isinstance(value, (bool, int, float))]
        texts = {name: job.hyperparameters.text(name) for name in numbers}
        if subcommand is not None:
            values = {_without_prefix(name, subcommand): value for name, value in values.items()}
            texts = {_without_prefix(name, subcommand): text for name, text in texts.items()}
        listed = {name: value for name, value in values.items() if _is_of_last(name, values)}
        values = {name: value for name, value in values.items() if name not in listed}
        found = tuple(_find_config(path, job) for path in [*named, *configs])
        flags = tuple(f"--{name}={_word(value)}" for name, value in listed.items())
        return cls(subcommand, found, nest(values), tuple(typed), flags, values, texts)

    def with_texts(self, names: Collection[str]) -> "JobArguments":
        """Hand on these hyperparameters as the text that they were written as."""
        texts = {name: self.texts[name] for name in names}
        return replace(self, hyperparameters=nest({**self.named, **texts}), named={**self.named, **texts})


def _is_of_last(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a name is an argument below callbacks or loggers, of which no hyperparameter names a class."""
    whole = next((whole for whole in LISTS if name.startswith(f"{whole}.")), None)
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


def _without_prefix(name: str, subcommand: str) -> str:
    return name[len(subcommand) + 1 :] if name.startswith(f"{subcommand}.") else name


def _find_config(path: str, job: TrainingJob) -> str:
    """Find a config file: the path as it stands, else with its first part as the name of a channel."""
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
    beside: Dict[str, None] = dict.fromkeys(
        name for name in sorted(os.listdir(".")) if name.endswith((".yaml", ".yml"))
    )
    raise HyperparameterError(
        f"The config file {path!r} is neither {' nor '.join(os.path.abspath(candidate) for candidate in tried)}.",
        hint=f"Give a path relative to {os.getcwd()}, which holds {', '.join(beside) or 'no YAML file'}, "
        "or one that begins with a channel's name.",
    )
