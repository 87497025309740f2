"""The command ``lightning-sm rehearse``: the arguments of ``create_request`` and ``RehearsalOptions`` as options."""

import argparse
import inspect
import re
from dataclasses import fields
from typing import Any, Callable, Dict, Sequence, Tuple

from jsonargparse import ArgumentParser

from lightning_sm._duration import read_duration
from lightning_sm._options import add_options, new_parser, parse
from lightning_sm.errors import RehearsalError
from lightning_sm.launch import hyperparameters_of
from lightning_sm.launch._arguments import read_request, split_command
from lightning_sm.rehearse._request import (
    RehearsalOptions,
    RehearsalRequest,
    create_request,
    request_from_body,
)
from lightning_sm.rehearse._runner import rehearse

__all__ = ["main", "read_arguments"]

_NO_OPTIONS = ("entry_point", "options", "hyperparameters")
_JOB = tuple(name for name in inspect.signature(create_request).parameters if name not in _NO_OPTIONS)
_GROUPS = {"hosts": "the job, as launch sends it", "source_dir": "this machine and what happens to the job"}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def main(args: Sequence[str]) -> int:
    """Run ``lightning-sm rehearse``: create the request, rehearse it, print the summary.

    Args:
        args: The arguments behind the command.

    Returns:
        The exit status: that of the outcome, 130 after Ctrl-C.

    Raises:
        LightningSMError: The job cannot be rehearsed as requested; the command shows it as one line, and ends with 2.
        SystemExit: By the parser, for ``--help``.

    Example::

        status = main(["--hosts", "2", "--distribution", "torch_distributed", "train.py", "--lr", "0.1"])
    """
    try:
        request, is_json = read_arguments(args)
        outcome = rehearse(request, log_to_stderr=is_json)
    except KeyboardInterrupt:
        return 130
    print(outcome.as_json() if is_json else outcome.as_text(), flush=True)
    return outcome.exit_code


def _parser() -> ArgumentParser:
    parser = new_parser(
        "lightning-sm rehearse",
        "Run a SageMaker training job on this machine with SageMaker's real container software: the training toolkits, "
        "torchrun, Open MPI over ssh, SDK v3's drivers. It needs neither Docker nor AWS.",
        usage="lightning-sm rehearse [options] [train.py] [fit --config config.yaml --trainer.max_epochs 2]\n"
        "       lightning-sm rehearse [options] --request BODY.json",
        epilog="Exit status: 0 the job completed, 1 it failed, 2 it could not be rehearsed as requested, 124 it ran "
        "into --timeout, 130 it was interrupted, 143 it was stopped (--stop-after, --stop-at).",
    )
    parser.add_argument("--request", metavar="BODY.json", help="run this CreateTrainingJob body instead of a program")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; log lines go to stderr")
    types = dict.fromkeys(_READERS, Any)
    add_options(parser, create_request, groups=_GROUPS, types=types, without=_NO_OPTIONS)
    add_options(parser, RehearsalOptions, groups=_GROUPS, types=types)
    # From the program on, all are the program's.
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _bandwidth(text: object) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", str(text).strip().lower())
    bits = int(float(match[1]) * _BITS.get(match[2], 0)) if match else 0
    if bits <= 0:
        raise ValueError(f"{text!r} is not a bandwidth such as 100mbit or 1gbit")
    return bits


def _names(text: object) -> Tuple[str, ...]:
    return tuple(str(text).split(","))


# What is read of a text by more than its type.
_READERS: Dict[str, Callable[[object], Any]] = {
    "bandwidth": _bandwidth,
    **dict.fromkeys(("instance_groups", "distribution_groups", "host_names"), _names),
    **dict.fromkeys(("latency", "stop_after", "stop_grace", "abort_after", "timeout"), read_duration),
}


def read_arguments(argv: Sequence[str]) -> Tuple[RehearsalRequest, bool]:
    """Return the request that a command line describes, and whether its summary is to be JSON.

    Raises:
        LightningSMError: An option cannot be used, or two exclude each other.
    """
    parser = _parser()
    given = parse(parser, argv)
    program, run = split_command(given["args"], parser)
    for name, read in _READERS.items():
        try:
            given[name] = read(given[name]) if given[name] else given[name]
        except ValueError as error:
            raise RehearsalError(
                f"--{name.replace('_', '-')}: {error}.", hint="`lightning-sm rehearse --help` describes it."
            ) from error
    given["channels"] = {name: str(path) for name, path in given["channels"].items()}
    given["allow_files"] = tuple(given["allow_files"])
    options = RehearsalOptions(**{each.name: given[each.name] for each in fields(RehearsalOptions)})
    if given["request"] is None:
        job = {name: given[name] for name in _JOB}
        request = create_request(program or "train.py", options, hyperparameters=hyperparameters_of(run), **job)
        return request, given["json"]
    body = read_request(given["request"], parser, argv, (*vars(options), "request", "json"))
    return request_from_body(body, options), given["json"]
