"""The command ``lightning-sm rehearse``: the arguments of ``create_request`` and ``RehearsalOptions`` as options."""

import argparse
import inspect
import json
import re
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from lightning_sm._duration import read_duration
from lightning_sm.errors import LightningSMError, RehearsalError
from lightning_sm.launch import hyperparameters_of
from lightning_sm.rehearse._request import (
    Distribution,
    Isolation,
    RehearsalOptions,
    RehearsalRequest,
    create_request,
    request_from_body,
)
from lightning_sm.rehearse._runner import rehearse

__all__ = ["argument_parser", "main", "read_arguments"]

_EXAMPLE = """example:
  lightning-sm rehearse --hosts 2 --processes 2 --distribution torch_distributed \\
      --channel training=./data --source-dir . train.py --trainer.max_epochs 2

exit status: 0 the job completed, 1 it failed, 2 it could not be rehearsed as requested, 124 it ran into --timeout,
130 it was interrupted, 143 it was stopped (--stop-after, --stop-at)."""

_JOB = ("hosts", "distribution", "sdk", "instance_type", "instance_groups", "distribution_groups", "mpi_options",
        "image", "forward_sigterm", "job_name")  # fmt: skip
_CHOICES = {
    "distribution": tuple(map(str, Distribution)),
    "isolation": tuple(map(str, Isolation)),
    "launcher": ("hyperpodrun",),
    "sdk": ("v2", "v3"),
}
_SUBCOMMANDS = ("fit", "validate", "test", "predict")
_FLAGS = {"channels": "--channel", "environment": "--env", "allow_files": "--allow-file"}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``lightning-sm rehearse``: create the request, rehearse it, print the summary.

    Args:
        argv: The arguments behind the command; by default those of this process.

    Returns:
        The exit status: that of the outcome, 2 if the job could not be rehearsed as requested, 130 after Ctrl-C.

    Raises:
        SystemExit: By the parser, for ``--help`` and for a usage error.

    Example::

        status = main(["--hosts", "2", "--distribution", "torch_distributed", "train.py", "--lr", "0.1"])
    """
    given = _parse(argv)
    try:
        outcome = rehearse(_request(given), log_to_stderr=given["json"])
    except LightningSMError as error:
        print(f"lightning-sm rehearse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(outcome.as_json() if given["json"] else outcome.as_text(), flush=True)
    return outcome.exit_code


def read_arguments(argv: Sequence[str]) -> RehearsalRequest:
    """Return the request that a command line describes.

    Raises:
        RehearsalError: An option cannot be used, or two exclude each other.
        SystemExit: By the parser, for a usage error.
    """
    return _request(_parse(argv))


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser, made of the signatures and docstrings."""
    parser = argparse.ArgumentParser(
        prog="lightning-sm rehearse",
        usage="lightning-sm rehearse [options] [ENTRY_POINT] [fit] [--name value ...]\n"
        "       lightning-sm rehearse [options] --request BODY.json",
        description="Run a SageMaker training job on this machine with SageMaker's real container software: the "
        "training toolkits,\ntorchrun, Open MPI over ssh, SDK v3's drivers. It needs neither Docker nor AWS.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "entry_point",
        nargs="?",
        metavar="ENTRY_POINT",
        help="Program in the source folder; before fit it may be left out: train.py.",
    )
    # From the program on, options are the program's.
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--request", metavar="BODY.json", help="Run this CreateTrainingJob body instead of a program.")
    parser.add_argument("--json", action="store_true", help="Print the summary as JSON; log lines go to stderr.")
    signature = inspect.signature(create_request).parameters
    job = parser.add_argument_group("the job, as launch sends it")
    _add_options(job, create_request, {name: signature[name].default for name in _JOB})
    local = parser.add_argument_group("this machine and what happens to the job")
    defaults = RehearsalOptions()
    _add_options(local, RehearsalOptions, {each.name: getattr(defaults, each.name) for each in fields(defaults)})
    return parser


def _add_options(parser: Any, documented: Any, defaults: Dict[str, Any]) -> None:
    # Python 3.13 strips the indentation that a docstring has in the file; earlier ones do not.
    section = inspect.cleandoc(documented.__doc__).partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w|\Z)", section, re.MULTILINE | re.DOTALL)
    texts = {name: " ".join(text.replace("``", "").split()) for name, text in entries}
    hints = typing.get_type_hints(documented)
    for name, default in defaults.items():
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        kind = str(hints[name])
        if default is True:
            parser.add_argument(f"--no-{flag[2:]}", dest=name, action="store_false", help=texts[name])
        elif default is False:
            parser.add_argument(flag, action="store_true", help=texts[name])
        elif "Mapping" in kind:
            parser.add_argument(
                flag, dest=name, action="append", type=_pair, default=[], metavar="NAME=VALUE", help=texts[name]
            )
        elif name == "allow_files":
            parser.add_argument(flag, dest=name, action="append", default=[], metavar="FILE", help=texts[name])
        elif name in _CHOICES:
            shown = "" if default is None else f" Default: {default}."
            parser.add_argument(flag, choices=_CHOICES[name], default=default, help=f"{texts[name]}{shown}")
        else:
            read, metavar = _reader(name, kind)
            shown = f" Default: {default:g} s." if isinstance(default, float) and default else ""
            parser.add_argument(flag, type=read, default=default, metavar=metavar, help=f"{texts[name]}{shown}")


def _reader(name: str, kind: str) -> Tuple[Callable[[str], Any], str]:
    if name == "bandwidth":
        return _bandwidth, "RATE"
    if "float" in kind:
        return _seconds, "TIME"
    if "int" in kind:
        return int, "N"
    return (_list, "A,B") if "Tuple" in kind or "Sequence" in kind else (str, "TEXT")


def _pair(text: str) -> Tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _list(text: str) -> Tuple[str, ...]:
    return tuple(text.split(","))


def _seconds(text: str) -> float:
    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bandwidth(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    bits = int(float(match.group(1)) * _BITS.get(match.group(2), 0)) if match else 0
    if bits <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth such as 100mbit or 1gbit")
    return bits


def _parse(argv: Optional[Sequence[str]]) -> Dict[str, Any]:
    given = vars(argument_parser().parse_args(argv))
    for name in ("channels", "environment"):
        given[name] = dict(given[name])
    given["isolation"] = given["isolation"] and Isolation(given["isolation"])
    given["allow_files"] = tuple(given["allow_files"])
    return given


def _request(given: Dict[str, Any]) -> RehearsalRequest:
    options = RehearsalOptions(**{each.name: given[each.name] for each in fields(RehearsalOptions)})
    signature = inspect.signature(create_request).parameters
    if given["request"] is not None:
        typed: List[str] = [name for name in _JOB if given[name] != signature[name].default]
        if typed or given["entry_point"]:
            what = f"--{typed[0].replace('_', '-')}" if typed else "an entry point"
            raise RehearsalError(
                f"--request and {what} exclude each other: the body contains it.", hint="Change the body."
            )
        return request_from_body(_read_body(Path(given["request"])), options)
    if given["entry_point"] is None:
        raise RehearsalError("No entry point is given.", hint="Name the program: lightning-sm rehearse train.py")
    entry_point, args = given["entry_point"], given["args"]
    if entry_point in _SUBCOMMANDS:
        # As for `launch`, whose default the program is.
        entry_point, args = "train.py", [entry_point, *args]
    job = {name: given[name] for name in _JOB}
    return create_request(entry_point, options, hyperparameters=hyperparameters_of(args), **job)


def _read_body(path: Path) -> Dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(
            f"--request {path} cannot be read as JSON: {error}.", hint="lightning-sm launch --dry-run prints a body."
        ) from error
    if not isinstance(body, dict):
        raise RehearsalError(
            f"--request {path} is not the body of a CreateTrainingJob request.", hint="It is an object."
        )
    return body
