"""Reads the command lines of ``launch`` and ``tune`` and ``launch.yaml``: settings, and the words that the job runs."""

import argparse
import inspect
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError, LightningSMError
from lightning_sm.launch._ranges import as_number
from lightning_sm.launch._settings import LaunchSettings, flag_of, settings_of
from lightning_sm.launch._tuning import TuningSettings, tuning_settings_of

__all__ = ["LaunchArguments", "exit_status", "hyperparameters_of", "read_file", "read_words"]

_SUBCOMMANDS = ("fit", "validate", "test", "predict")
_DEFAULT_FILE = "launch.yaml"
_PAIRS = ("channels", "hyperparameters", "environment", "tags", "ranges")
_TUNING = tuple(each.name for each in fields(TuningSettings))
_SWITCHES = ("dry_run", "wait", "json", *(each.name for each in fields(LaunchSettings) if "bool" in str(each.type)))


@dataclass(frozen=True)
class LaunchArguments:
    """What ``lightning-sm launch`` or ``lightning-sm tune`` was asked to do.

    Args:
        settings: What the job is asked to be.
        hyperparameters: What the words of the command mean.
        dry_run: Whether the request is printed and nothing is sent.
        wait: Whether the job's states and log are shown until it ends.
        as_json: Whether what is printed is JSON.
        tuning: What a tuning job searches; ``None`` for ``launch``.
        draw: The seed of a training job that is drawn and printed instead.
    """

    settings: LaunchSettings
    hyperparameters: Mapping[str, Any]
    dry_run: bool = False
    wait: bool = False
    as_json: bool = False
    tuning: Optional[TuningSettings] = None
    draw: Optional[int] = None


def read_words(words: Sequence[str], *, command: str = "launch") -> LaunchArguments:
    """Read the command line; ``launch.yaml`` in the working directory, or the file of ``--file``, stands below it.

    Args:
        words: The words behind ``lightning-sm launch`` or ``lightning-sm tune``.
        command: ``launch`` or ``tune``.

    Raises:
        LaunchError: A setting is unknown or has another type, or the file cannot be read.
        SystemExit: An option is unknown (2), or ``--help`` was asked for (0).
    """
    options, run = _split(words)
    found = vars((_tuning_parser() if command == "tune" else _parser()).parse_args(options))
    path: Optional[str] = found.pop("file")
    dry_run, wait, as_json = (found.pop(name) for name in ("dry_run", "wait", "json"))
    draw: Optional[int] = found.pop("draw", None)
    given = read_file(path, tuning=True)
    searched = given.pop("tuning", None) or {}
    if not isinstance(searched, dict):
        raise LaunchError(f"`tuning` is {searched!r}.", hint="Write objective, direction, ranges, max_jobs below.")
    searched = {str(key).replace("-", "_"): value for key, value in searched.items()}
    for name, value in found.items():
        target = searched if name in _TUNING else given
        if value is not None:
            target[name] = {**(target.get(name) or {}), **_pairs(name, value)} if name in _PAIRS else value
    tuning = tuning_settings_of(searched) if command == "tune" else None
    return LaunchArguments(settings_of(given), hyperparameters_of(run), dry_run, wait, as_json, tuning, draw)


def hyperparameters_of(command: Sequence[str]) -> Dict[str, Any]:
    """Return the hyperparameters that the words of a command of LightningCLI mean.

    Args:
        command: Such as ``fit --config config.yaml --trainer.max_epochs 5``.

    Raises:
        LaunchError: A word is no ``--name value`` or ``--name=value``, or a name cannot be a hyperparameter.

    Example::

        >>> hyperparameters_of(["fit", "--trainer.max_epochs=5", "--model.lr", "1e-3"])
        {'trainer.max_epochs': 5, 'model.lr': 0.001}
    """
    words = list(command)
    found: Dict[str, Any] = {}
    if words and words[0] in _SUBCOMMANDS:
        subcommand = words.pop(0)
        if subcommand != "fit":
            found["subcommand"] = subcommand
    configs: List[str] = []
    while words:
        word = words.pop(0)
        name, equals, text = word[2:].partition("=")
        if not word.startswith("--") or not name:
            if word != "-c":
                raise LaunchError(f"{word!r} is no setting.", hint="Write --name value, as --trainer.max_epochs 5.")
            name = "config"
        if not equals:
            if not words:
                raise LaunchError(f"{word} has no value.", hint="Write it behind the name; flags are --name=true.")
            text = words.pop(0)
        if name == "config":
            configs.append(text)
        elif name.endswith("+"):
            raise LaunchError(
                f"--{name} adds to a list, which a hyperparameter cannot.", hint="Write it in a config file."
            )
        else:
            found[name] = _value(text)
    if configs:
        found["config"] = configs[0] if len(configs) == 1 else configs
    return found


def _split(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Part the options of ``launch`` from the command that the job runs, which a subcommand or ``--`` begins."""
    values = False
    for index, word in enumerate(words):
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if word in _SUBCOMMANDS and not values:
            return list(words[:index]), list(words[index:])
        name = word[2:].replace("-", "_")
        switch = name in _SWITCHES or name.startswith("no_")
        values = word.startswith("--") and "=" not in word and not switch
    return list(words), []


def _tuning_parser() -> argparse.ArgumentParser:
    """Return the parser of the options of ``lightning-sm tune``."""
    parser = _parser("tune", "Send a tuning job to SageMaker: training jobs that search the best hyperparameters.")
    parser.add_argument("--draw", type=int, metavar="SEED", help="print the request of one training job instead")
    _add_options(parser, TuningSettings)
    return parser


def _parser(command: str = "launch", purpose: str = "Send a training job to SageMaker.") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"lightning-sm {command}",
        usage=f"lightning-sm {command} [options] [fit --config config.yaml --trainer.max_epochs 5]",
        description=f"{purpose} Settings may also stand in launch.yaml, by the same names with underscores"
        f"{' (those of the search below `tuning`)' if command == 'tune' else ''}; what is typed wins.",
        allow_abbrev=False,
    )
    parser.add_argument("--file", help=f"the file with settings (default: {_DEFAULT_FILE}, if it is there)")
    parser.add_argument("--dry-run", action="store_true", help="print the request and send nothing")
    parser.add_argument("--wait", action="store_true", help="show the job's states and log until it ends")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_options(parser, LaunchSettings)
    return parser


def _add_options(parser: argparse.ArgumentParser, cls: type) -> None:
    texts = _descriptions(cls)
    for each in fields(cls):
        flag = flag_of(each.name)
        kind, text = str(each.type), texts[each.name].replace("%", "%%")
        if each.name in _PAIRS:
            parser.add_argument(flag, dest=each.name, action="append", metavar="NAME=VALUE", help=text)
        elif "List" in kind:
            parser.add_argument(flag, dest=each.name, action="append", metavar="TEXT", help=text)
        elif "bool" in kind:
            parser.add_argument(flag, dest=each.name, action="store_const", const=True, help=text)
            parser.add_argument(
                f"--no-{flag[2:]}", dest=each.name, action="store_const", const=False, help=argparse.SUPPRESS
            )
        elif "int" in kind:
            parser.add_argument(flag, dest=each.name, type=int, metavar="N", help=text)
        else:
            parser.add_argument(flag, dest=each.name, metavar="TEXT", help=text)


def _descriptions(cls: type) -> Dict[str, str]:
    """What the docstring says of each setting."""
    # Python 3.13 strips the indentation that a docstring has in the file; earlier ones do not.
    section = inspect.cleandoc(str(cls.__doc__)).partition("Args:")[2].partition("Example::")[0]
    parts = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w|\Z)", section, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.replace("``", "").split()) for name, text in parts}


def _pairs(name: str, given: Sequence[str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise LaunchError(f"{flag_of(name)} is {text!r}.", hint="Write NAME=VALUE.")
        found[key] = _value(value) if name in ("hyperparameters", "ranges") else value
    return found


def _value(text: str) -> Any:
    """A value as a config file would read it."""
    import yaml

    try:
        return as_number(yaml.safe_load(text)) if text else text
    except yaml.YAMLError:
        return text


def read_file(path: Optional[str], *, tuning: bool = False) -> Dict[str, Any]:
    """Return the content of a file with settings; of ``launch.yaml`` in the working directory, if it is there.

    Args:
        path: The file.
        tuning: Whether ``tuning`` is a part of it.

    Raises:
        LaunchError: It cannot be read, or is no mapping.
    """
    if path is None and not Path(_DEFAULT_FILE).is_file():
        return {}
    import yaml

    name = path or _DEFAULT_FILE
    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LaunchError(
            f"{name} cannot be read: {' '.join(str(error).split())}.", hint="Write `image: pytorch-2.8-gpu` and so on."
        ) from error
    if content is not None and not isinstance(content, dict):
        raise LaunchError(f"{name} holds no settings.", hint="Write `name: value` lines.")
    found = {str(key).replace("-", "_"): value for key, value in (content or {}).items()}
    return {key: value for key, value in found.items() if tuning or key != "tuning"}


def exit_status(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status: its own, or 1 after an error, which is one line on stderr."""
    try:
        return command()
    except LightningSMError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
