"""Reads the command lines of ``launch`` and ``tune`` and ``launch.yaml``: settings, and the words that the job runs."""

import argparse
import inspect
import json
import os
import re
import signal
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError, LightningSMError
from lightning_sm.launch._ranges import as_number
from lightning_sm.launch._settings import LaunchSettings, closest, flag_of, settings_of
from lightning_sm.launch._tuning import TuningSettings, tuning_settings_of

__all__ = ["LaunchArguments", "exit_status", "hyperparameters_of", "read_file", "read_words"]

_SUBCOMMANDS = ("fit", "validate", "test", "predict")
_SCRIPTS = (".py", ".sh")
_DEFAULT_FILE = "launch.yaml"
_PAIRS = ("channels", "hyperparameters", "environment", "tags", "ranges")
_TUNING = tuple(each.name for each in fields(TuningSettings))
# With the body of a request only these settings have a meaning: where the source is, and where it is sent.
_WITH_BODY = ("name", "region", "source_dir", "allow_files", "from_checkpoint", "channels")
# The settings of `--help`, by groups.
_GROUPS = {
    "what a first job needs": ("image", "instance_type", "role"),
    "the program": ("source_dir", "entry_point", "hyperparameters", "environment", "auto", "allow_files"),
    "data and results": (
        "channels", "input_mode", "bucket", "output_path", "checkpoints", "from_checkpoint", "tensorboard_output",
    ),
    "instances and processes": (
        "instances", "instance_groups", "distribution", "distribution_groups", "processes_per_host", "mpi_options",
        "volume_size", "spot", "keep_alive", "training_plan", "forward_sigterm",
    ),
    "limits of time": ("max_run", "max_wait", "max_pending", "retries"),
    "names": ("name", "base_name", "region", "tags"),
    "metrics": ("metrics", "metrics_time_series", "mlflow_arn", "mlflow_experiment"),
    "network and keys": (
        "subnets", "security_groups", "encrypt_traffic", "network_isolation", "volume_kms_key", "output_kms_key",
    ),
    "the search": _TUNING,
}  # fmt: skip


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
        check: Whether the project's own parser reads the line before it is sent.
        request: A file with the body of a request that is sent as it is.
    """

    settings: LaunchSettings
    hyperparameters: Mapping[str, Any]
    dry_run: bool = False
    wait: bool = False
    as_json: bool = False
    tuning: Optional[TuningSettings] = None
    draw: Optional[int] = None
    check: bool = True
    request: Optional[str] = None


def read_words(words: Sequence[str], *, command: str = "launch") -> LaunchArguments:
    """Read the command line; ``launch.yaml`` in the working directory, or the file of ``--file``, stands below it.

    Args:
        words: The words behind ``lightning-sm launch`` or ``lightning-sm tune``.
        command: ``launch`` or ``tune``.

    Raises:
        LaunchError: A setting is unknown or has another type, or the file cannot be read.
        SystemExit: An option is unknown (2), or ``--help`` was asked for (0).
    """
    parser = _parser(command)
    found = vars(_parse(parser, words))
    path: Optional[str] = found.pop("file")
    dry_run, wait, as_json, check = (found.pop(name) for name in ("dry_run", "wait", "json", "check"))
    draw, request = found.pop("draw", None), found.pop("request", None)
    program, run = _run_of(found.pop("words"), parser)
    given = read_file(path, tuning=True)
    searched = given.pop("tuning", None) or {}
    if not isinstance(searched, dict):
        raise LaunchError(f"`tuning` is {searched!r}.", hint="Write objective, direction, ranges, max_jobs below.")
    searched = {str(key).replace("-", "_"): value for key, value in searched.items()}
    for name, value in found.items():
        target = searched if name in _TUNING else given
        if value is not None:
            target[name] = {**(target.get(name) or {}), **_pairs(name, value)} if name in _PAIRS else value
    if program is not None:
        given["entry_point"] = program
    if request is not None:
        typed = [flag_of(name) for name, value in found.items() if value is not None and name not in _WITH_BODY]
        if typed or run or program:
            what = ", ".join([*typed, *([" ".join([program or "", *run]).strip()] if run or program else [])])
            raise LaunchError(
                f"--request and {what} exclude each other: the body contains it.", hint="Change the body."
            )
        given = {name: value for name, value in given.items() if name in _WITH_BODY}
    tuning = tuning_settings_of(searched) if command == "tune" else None
    settings, values = settings_of(given), hyperparameters_of(run)
    return LaunchArguments(settings, values, dry_run, wait, as_json, tuning, draw, check, request)


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse options; one that is unknown is an error with the closest, which argparse does not name."""
    found, unknown = parser.parse_known_args(list(words))
    if unknown:
        name = unknown[0].partition("=")[0]
        close = closest(name[2:].replace("-", "_"), [each for names in _GROUPS.values() for each in names])
        advice = f"Did you mean {flag_of(close)}?" if close else f"Run `{parser.prog} --help` to see all."
        parser.error(f"there is no option {name}. HINT: {advice}")
    return found


def _run_of(words: List[str], parser: argparse.ArgumentParser) -> Tuple[Optional[str], List[str]]:
    """Return the program, if the words name one, and the words of its command line.

    Options of ``launch`` among them would be sent as hyperparameters; a script that has such an option stands behind
    ``--``.
    """
    if words[:1] == ["--"]:
        return None, words[1:]
    program = words[0] if words and words[0].endswith(_SCRIPTS) else None
    run = words[1:] if program else words
    if words and program is None and words[0] not in _SUBCOMMANDS:
        raise LaunchError(
            f"{words[0]!r} is no option.",
            hint=f"The command of the job begins with a script, with one of {', '.join(_SUBCOMMANDS)}, or behind --.",
        )
    taken = _options_of(parser)
    for index, word in enumerate(run):
        name = word.partition("=")[0]
        if name == "--":
            return program, run[:index] + run[index + 1 :]
        if name in taken:
            raise LaunchError(
                f"{name} behind {words[0]!r} would be an argument of the program.",
                hint=f"Write it before {words[0]!r}; an option {name} of the program itself stands behind `--`.",
            )
    return program, run


def _options_of(parser: argparse.ArgumentParser) -> List[str]:
    return [option for option in parser._option_string_actions if option.startswith("--")]


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
            if not words or words[0].startswith("--"):
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


def _parser(command: str = "launch") -> argparse.ArgumentParser:
    """Return the parser of the options of ``lightning-sm launch`` or ``tune``."""
    tunes = command == "tune"
    purpose = (
        "a tuning job to SageMaker: training jobs that search the best hyperparameters" if tunes else "a training job"
    )
    parser = argparse.ArgumentParser(
        prog=f"lightning-sm {command}",
        usage=f"lightning-sm {command} [options] [train.py] [fit --config config.yaml --trainer.max_epochs 5]",
        description=f"Send {purpose}. Settings may also stand in launch.yaml, by the same names with underscores"
        f"{' (those of the search below `tuning`)' if tunes else ''}; what is typed wins.",
        allow_abbrev=False,
    )
    for title, names in _GROUPS.items():
        cls = TuningSettings if names is _TUNING else LaunchSettings
        if cls is LaunchSettings or tunes:
            _add_options(parser.add_argument_group(title), cls, names)
    command_group = parser.add_argument_group("the command")
    command_group.add_argument("--file", help=f"the file with settings (default: {_DEFAULT_FILE}, if it is there)")
    command_group.add_argument("--dry-run", action="store_true", help="print the request and send nothing")
    command_group.add_argument("--wait", action="store_true", help="show the job's states and log until it ends")
    command_group.add_argument("--json", action="store_true", help="print JSON")
    command_group.add_argument(
        "--no-check", dest="check", action="store_false", help="do not let the project's own parser read the line"
    )
    if tunes:
        command_group.add_argument(
            "--draw", type=int, metavar="SEED", help="print the request of one training job instead"
        )
    else:
        command_group.add_argument(
            "--request", metavar="FILE", help="send the request that --dry-run printed; --name renames it"
        )
    # From the first word that is no option on, options are the program's.
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_options(parser: Any, cls: Any, names: Sequence[str]) -> None:
    texts = _descriptions(cls)
    known = {each.name: each for each in fields(cls)}
    for each in (known[name] for name in names):
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
    """Return a list or mapping in brackets as YAML reads it, a number as JSON writes it, and any other text as it is.

    The program's parser reads the text. YAML would have changed it: 010 to 8, 12:30 to 750, no to false, 1.10 to 1.1.
    """
    import yaml

    if text[:1] in ("[", "{"):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    try:
        read = json.loads(text)
    except ValueError:
        return as_number(text)
    return read if json.dumps(read) == text and not isinstance(read, str) else as_number(text)


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
        status = command()
        sys.stdout.flush()
        return status
    except LightningSMError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Who reads the output has ended, as `head` does; what is left of it must not fail when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
