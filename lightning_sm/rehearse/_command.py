"""The command ``lightning-sm rehearse``: its options become the arguments of ``create_request``."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from lightning_sm._duration import read_duration
from lightning_sm.errors import LightningSMError, RehearsalError
from lightning_sm.launch import hyperparameters_of
from lightning_sm.rehearse._argument_parser import argument_parser
from lightning_sm.rehearse._body import read_body, request_from_body
from lightning_sm.rehearse._create_request import create_request
from lightning_sm.rehearse._request import Distribution, Limits, NetworkLink, RehearsalRequest, Sdk
from lightning_sm.rehearse._runner import rehearse

__all__ = [
    "main",
    "read_bandwidth",
    "read_command",
    "read_seconds",
    "request_from_arguments",
]

# Options that the body of a request contains. The others are about this machine.
_IN_BODY = (
    "hosts",
    "distribution",
    "sdk",
    "instance_type",
    "instance_groups",
    "distribution_groups",
    "mpi_options",
    "hyperparameters",
    "job_name",
    "entrypoint",
    "entry_point",
)

# The container entry point in a CreateTrainingJob request, and in the arguments of an estimator of SDK v2.
_ENTRYPOINT_KEYS = (("ContainerEntrypoint", "ContainerArguments"), ("container_entry_point", "container_arguments"))

_ENTRYPOINT_HINT = "lightning-sm entrypoint > entrypoint.json writes one."

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``lightning-sm rehearse``: create the request, rehearse it, print the summary.

    Args:
        argv: The words behind the command; by default those of this process.

    Returns:
        The exit status: that of the outcome, 2 if the job could not be rehearsed as requested, 130 after Ctrl-C.

    Raises:
        SystemExit: By argparse, for ``--help`` and for a usage error.

    Example::

        status = main(["--hosts", "2", "--distribution", "torch_distributed", "train.py", "--lr", "0.1"])
    """
    options = argument_parser().parse_args(argv)
    try:
        outcome = rehearse(_request(options), log_to_stderr=options.json)
    except LightningSMError as error:
        print(f"lightning-sm rehearse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(outcome.as_json() if options.json else outcome.as_text(), flush=True)
    return outcome.exit_code


def request_from_arguments(argv: Sequence[str]) -> RehearsalRequest:
    """Return the request that a command line describes.

    Raises:
        RehearsalError: An option cannot be used, or two exclude each other.
    """
    return _request(argument_parser().parse_args(argv))


def _request(options: argparse.Namespace) -> RehearsalRequest:
    if options.request:
        for name in _IN_BODY:
            if getattr(options, name) is not None:
                option = "an entry point" if name == "entry_point" else "--" + name.replace("_", "-")
                raise RehearsalError(
                    f"--request and {option} exclude each other: the body contains it.", hint="Change the body."
                )
        return request_from_body(
            read_body(Path(options.request)),
            source_dir=options.source_dir,
            upload=options.upload,
            **_local_arguments(options),
        )
    if options.upload:
        raise RehearsalError("--upload is for --request, whose body names places in S3.", hint="Use --output-dir.")
    if options.entry_point is None:
        raise RehearsalError("No entry point is given.", hint="Name the program: lightning-sm rehearse train.py")
    values: Dict[str, Any] = {}
    if options.hyperparameters:
        values.update(_read_hyperparameters(Path(options.hyperparameters)))
    values.update(hyperparameters_of(options.trailing))
    return create_request(
        options.entry_point,
        source_dir=options.source_dir or ".",
        hosts=options.hosts,
        distribution=options.distribution or Distribution.NONE,
        sdk=options.sdk or Sdk.V2,
        instance_type=options.instance_type or "ml.m5.xlarge",
        instance_groups=options.instance_groups,
        distribution_groups=options.distribution_groups.split(",") if options.distribution_groups else (),
        mpi_options=options.mpi_options or "",
        hyperparameters=values,
        command=read_command(Path(options.entrypoint)) if options.entrypoint else None,
        job_name=options.job_name or "rehearsal",
        **_local_arguments(options),
    )


def _local_arguments(options: argparse.Namespace) -> Dict[str, Any]:
    """The arguments that ``create_request`` and ``request_from_body`` have in common."""
    channels: Dict[str, str] = {}
    for text in options.channel:
        name, path = _split_pair("--channel", text, "PATH")
        if name in channels:
            raise RehearsalError(f"--channel {name} is given twice.", hint="A channel has one folder.")
        channels[name] = path
    return {
        "processes": options.processes,
        "channels": channels,
        "environment": dict(_split_pair("--env", text, "VALUE") for text in options.env),
        "allow_files": options.allow_file,
        "checkpoint_dir": options.checkpoint_dir,
        "output_dir": options.output_dir,
        "install_requirements": not options.no_requirements,
        "local_mode_files": options.local_mode_files,
        "limits": Limits(
            timeout=read_seconds(options.timeout, "--timeout"),
            abort_after=read_seconds(options.abort_after, "--abort-after"),
            interrupt_after=_optional_seconds(options.spot_interrupt_after, "--spot-interrupt-after"),
            stop_after=_optional_seconds(options.stop_after, "--stop-after"),
            stop_at=options.stop_at or None,
            stop_grace=read_seconds(options.stop_grace, "--stop-grace"),
            names_after=_optional_seconds(options.names_after, "--names-after") or 0.0,
        ),
        "link": NetworkLink(
            bits_per_second=read_bandwidth(options.bandwidth, "--bandwidth") if options.bandwidth else None,
            latency=_optional_seconds(options.latency, "--latency"),
        ),
        "isolation": options.isolation,
        "keep": options.keep,
    }


def _split_pair(option: str, text: str, value_name: str) -> Tuple[str, str]:
    name, separator, value = text.partition("=")
    is_variable = option == "--env"
    known = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) if is_variable else name
    if not separator or not known or not (value or is_variable):
        hint = "For example --env GREETING=hello" if is_variable else "For example --channel training=./data"
        raise RehearsalError(f"{option} {text!r} is not NAME={value_name}.", hint=hint)
    return name, value


def read_seconds(text: str, option: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``1.5m``, ``2h`` or ``500ms``.

    Raises:
        RehearsalError: It is not a duration, or not more than zero.
    """
    try:
        return read_duration(text)
    except ValueError as error:
        raise RehearsalError(f"{option}: {error}.", hint="Units: us, ms, s, m, h, d.") from None


def _optional_seconds(text: Optional[str], option: str) -> Optional[float]:
    return read_seconds(text, option) if text else None


def read_bandwidth(text: str, option: str) -> int:
    """Return the bits per second of ``100mbit`` or ``1gbit``, with the units of ``tc``.

    Raises:
        RehearsalError: It is not a bandwidth, or not more than zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    bits = int(float(match.group(1)) * _BITS.get(match.group(2), 0)) if match else 0
    if bits <= 0:
        raise RehearsalError(
            f"{option} {text!r} is not a bandwidth such as 100mbit or 1gbit.", hint=f"Units: {', '.join(_BITS)}."
        )
    return bits


def read_command(path: Path) -> Tuple[str, ...]:
    """Return the container's command from a JSON file, as ``lightning-sm entrypoint`` prints it.

    Raises:
        RehearsalError: The file cannot be read, or has no entry point.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(f"--entrypoint {path} cannot be read as JSON: {error}.", hint=_ENTRYPOINT_HINT) from error
    for entrypoint, arguments in _ENTRYPOINT_KEYS if isinstance(content, dict) else ():
        if _is_text_list(content.get(entrypoint)) and _is_text_list(content.get(arguments, [])):
            return (*content[entrypoint], *content.get(arguments, []))
    raise RehearsalError(f"--entrypoint {path} has no entry point.", hint=_ENTRYPOINT_HINT)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _read_hyperparameters(path: Path) -> Dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(
            f"--hyperparameters {path} cannot be read as JSON: {error}.", hint="Give an object of names and values."
        ) from error
    if not isinstance(content, dict):
        raise RehearsalError(
            f"--hyperparameters {path} has a {type(content).__name__}.", hint="Give an object of names and values."
        )
    return content
