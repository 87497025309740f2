"""The arguments of ``launch`` and ``tune``: their own options, and behind them the command that the job runs."""

import argparse
import json
from pathlib import Path
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

import jsonargparse
from jsonargparse import ArgumentParser

from lightning_sm._options import as_typed, as_value, new_parser, options_of
from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import LaunchError
from lightning_sm.launch._settings import add_settings

__all__ = ["command_parser", "hyperparameters_of", "read_request", "split_command"]

_WHAT = {
    "launch": "Send a training job to SageMaker",
    "tune": "Send a tuning job to SageMaker: training jobs that search the best hyperparameters",
    "doctor": "Examine a project as launch does before it sends its job",
}
_SUBCOMMANDS = ("fit", "validate", "test", "predict")


def command_parser(command: str) -> ArgumentParser:
    """Return the parser of ``lightning-sm launch``, of ``tune``, or of ``doctor`` for a project.

    ``launch.yaml`` in the working directory, and the files of ``--file``, stand below what is typed.
    """
    tunes = command == "tune"
    parser = new_parser(
        f"lightning-sm {command}",
        f"{_WHAT[command]}. Settings may also stand in launch.yaml, by the same names with underscores"
        f"{' (those of the search below `tuning`)' if tunes else ''}; what is typed wins.",
        usage=f"lightning-sm {command} [options] [train.py] [fit --config config.yaml --trainer.max_epochs 5]",
        default_config_files=["launch.yaml"],
    )
    add_settings(parser, tunes=tunes)
    group: Any = parser.add_argument_group("the command")
    from_file: Any = jsonargparse.ActionConfigFile  # type: ignore[attr-defined]
    group.add_argument("--file", action=from_file, help="a file with settings, above launch.yaml")
    group.add_argument("--dry-run", action="store_true", help="print the request and send nothing")
    group.add_argument("--wait", action="store_true", help="show the job's states and log until it ends")
    group.add_argument("--json", action="store_true", help="print JSON")
    group.add_argument("--no-check", action="store_true", help="send it as it is: the project is not looked at")
    if tunes:
        group.add_argument("--draw", type=int, metavar="SEED", help="print the request of one training job instead")
    elif command == "doctor":
        group.add_argument("--strict", action="store_true", help="exit with 1 on warnings, too")
    else:
        group.add_argument(
            "--request", type=str, metavar="FILE", help="send the request that --dry-run printed; --name renames it"
        )
    # From the first word that is no option on, all are the program's.
    group.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def split_command(args: Sequence[str], parser: ArgumentParser) -> Tuple[Optional[str], List[str]]:
    """Return the program, if the arguments name one, and the arguments of its command line.

    Options of ``launch`` among them would be sent as hyperparameters; a script that has such an option stands behind
    ``--``.

    Raises:
        LaunchError: An option of the parser is among the arguments of the program.
    """
    program = args[0] if args and args[0].endswith((".py", ".sh")) else None
    run, taken = list(args[1:] if program else args), options_of(parser)
    own = run.index("--") if "--" in run else len(run)
    for name in (word.partition("=")[0] for word in run[:own]):
        if name in taken:
            raise LaunchError(
                f"{name} behind {args[0]!r} would be an argument of the program.",
                hint=f"Write it before {args[0]!r}; an option {name} of the program itself stands behind `--`.",
            )
    return program, run[:own] + run[own + 1 :]


def read_request(path: str, parser: ArgumentParser, args: Sequence[str], allowed: Collection[str]) -> Dict[str, Any]:
    """Return the body of a CreateTrainingJob request from a file.

    Args:
        path: The file.
        parser: The parser of the command.
        args: Its arguments.
        allowed: The options that have a meaning beside a body.

    Raises:
        LaunchError: Another option was typed, or a program, or the file holds no such body.
    """
    typed = parser.parse_args(list(args), defaults=False).as_dict()
    program = typed.pop("args")
    names = [name.replace("typed_", "") for name in typed]
    wrong = [f"--{name.replace('_', '-')}" for name in sorted(names) if name not in allowed] + program
    if wrong:
        raise LaunchError(
            f"--request and {' '.join(wrong)} exclude each other: the body contains it.", hint="Change the body."
        )
    try:
        body: Dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        _ = body["TrainingJobName"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"--request {path} holds no CreateTrainingJob request ({type(error).__name__}: {error}).",
            hint="Write it with `lightning-sm launch --dry-run … > request.json`.",
        ) from error
    return body


def hyperparameters_of(command: Sequence[str]) -> Dict[str, Any]:
    """Return the hyperparameters that the arguments of a command of LightningCLI mean.

    Args:
        command: Such as ``fit --config config.yaml --trainer.max_epochs 5``.

    Raises:
        LaunchError: A word is no ``--name value`` or ``--name=value``, or a name cannot be a hyperparameter.

    Example::

        >>> hyperparameters_of(["fit", "--trainer.max_epochs=5", "--model.lr", "1e-3"])
        {'trainer.max_epochs': 5, 'model.lr': '1e-3'}
    """
    args = list(command)
    found: Dict[str, Any] = {}
    is_cli = bool(args) and args[0] in _SUBCOMMANDS
    if is_cli:
        subcommand = args.pop(0)
        if subcommand != "fit":
            found["subcommand"] = subcommand
    configs: List[str] = []
    while args:
        word = args.pop(0)
        name, equals, text = word[2:].partition("=")
        if word == "-c":
            name = "config"
        elif not word.startswith("--") or not name:
            raise LaunchError(
                f"{word!r} is no setting.",
                hint=f"Write --name value, as --trainer.max_epochs 5, behind a script or {', '.join(_SUBCOMMANDS)}.",
            )
        if not equals:
            if not args or args[0].startswith("--"):
                raise LaunchError(f"{word} has no value.", hint="Write it behind the name; flags are --name=true.")
            text = args.pop(0)
        if name == "config":
            if is_cli and set(found) - {"subcommand"}:
                raise LaunchError(
                    f"--config {text} stands behind --{list(found)[-1]}, which it replaces on a laptop only.",
                    hint="Write --config before the settings.",
                )
            configs.append(text)
        elif name.endswith("+"):
            raise LaunchError(
                f"--{name} adds to a list, which a hyperparameter cannot.", hint="Write it in a config file."
            )
        else:
            # A script may read its hyperparameters without a parser.
            found[name] = as_typed(text) if is_cli and not is_reserved(name) else as_value(text)
    if configs:
        found["config"] = configs[0] if len(configs) == 1 else configs
    return found
