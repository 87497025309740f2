"""From the options of the command line to a :class:`RehearsalRequest`. Nothing is started or written here."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from ._distributions import V3_DISTRIBUTIONS, framework_hyperparameters
from ._drivers_v3 import COMMAND
from ._entrypoint_file import entrypoint_from
from ._errors import RehearsalError
from ._hyperparameters import as_strings, from_file, from_options
from ._quantities import bits_per_second, milliseconds, seconds
from ._request import HOMOGENEOUS, Channel, InstanceGroup, Limits, Link, RehearsalRequest

__all__ = ["channels_from", "environment_from", "limits_from", "link_from", "request_from_options"]

_MAX_HOSTS = 100
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,255}")


def request_from_options(options: argparse.Namespace) -> RehearsalRequest:
    """The request that these options describe.

    Raises:
        RehearsalError: An option cannot be used, or two do not go together.
    """
    if options.entry_point is None:
        raise RehearsalError("No entry point is given.", hint="Name the program: lightning-sm rehearse train.py")
    sdk = options.sdk or "v2"
    distribution = options.distribution or "none"
    if sdk == "v3" and distribution not in V3_DISTRIBUTIONS:
        raise RehearsalError(
            f"SDK v3 has no launcher for {distribution}.",
            hint="Use --sdk v2, or one of: " + ", ".join(V3_DISTRIBUTIONS),
        )
    if options.processes is not None and options.processes < 1:
        raise RehearsalError(f"--processes {options.processes} must be 1 or more.")
    if distribution == "none" and (options.processes or 1) > 1:
        raise RehearsalError(
            f"--processes {options.processes} has no meaning with --distribution none: each host runs one.",
            hint="Let Lightning start them (--trainer.devices N after the entry point), or name a distribution.",
        )
    groups = groups_from(options)
    source = Path(options.source_dir or ".").resolve()
    if not (source / options.entry_point).is_file():
        raise RehearsalError(
            f"The entry point {options.entry_point!r} is not a file in {source}.",
            hint="It is looked for in --source-dir, relative to it.",
        )
    if options.entrypoint and sdk == "v3":
        raise RehearsalError("--entrypoint and --sdk v3 exclude each other: ModelTrainer sends its own.")
    values: Dict[str, Any] = {}
    if options.hyperparameters:
        values.update(from_file(Path(options.hyperparameters)))
    values.update(from_options(options.trailing))
    job_name = options.job_name or "rehearsal"
    if sdk == "v2":
        values.update(_script_mode(options, distribution, groups, job_name))
    return RehearsalRequest(
        job_name=job_name,
        sdk=sdk,
        distribution=distribution,
        groups=groups,
        hyperparameters=tuple(as_strings(values, sdk).items()),
        entry_point=options.entry_point,
        code=source,
        channels=channels_from(options.channel),
        environment=environment_from(options.env),
        checkpoint_dir=Path(options.checkpoint_dir).resolve() if options.checkpoint_dir else None,
        output_dir=Path(options.output_dir).resolve() if options.output_dir else None,
        limits=limits_from(options),
        link=link_from(options),
        local_mode_files=options.local_mode_files,
        processes=options.processes,
        mpi_options=options.mpi_options or "",
        install_requirements=not options.no_requirements,
        command=COMMAND if sdk == "v3" else entrypoint_from(options.entrypoint),
    )


def _script_mode(
    options: argparse.Namespace, distribution: str, groups: Sequence[InstanceGroup], job_name: str
) -> Dict[str, Any]:
    chosen = options.distribution_groups.split(",") if options.distribution_groups else []
    for name in chosen:
        if name not in [group.name for group in groups]:
            raise RehearsalError(f"--distribution-groups names {name!r}, which is not one of --instance-groups.")
    sent = framework_hyperparameters(
        distribution,
        # With groups an estimator has no instance_type, and the SDK then sends none.
        instance_type=None if options.instance_groups else groups[0].instance_type,
        processes=options.processes,
        mpi_options=options.mpi_options or "",
        groups=chosen,
    )
    sent.update(
        sagemaker_program=options.entry_point,
        sagemaker_container_log_level=20,
        sagemaker_job_name=job_name,
        sagemaker_region="us-east-1",
    )
    return sent


def groups_from(options: argparse.Namespace) -> Tuple[InstanceGroup, ...]:
    """The instance groups that ``--hosts``, ``--instance-type`` and ``--instance-groups`` describe."""
    default_type = options.instance_type or "ml.m5.xlarge"
    if not options.instance_groups:
        if options.distribution_groups:
            raise RehearsalError("--distribution-groups needs --instance-groups.")
        hosts = 1 if options.hosts is None else options.hosts
        if not 1 <= hosts <= _MAX_HOSTS:
            raise RehearsalError(f"--hosts {hosts} must be from 1 to {_MAX_HOSTS}.")
        return (InstanceGroup(HOMOGENEOUS, default_type, tuple(f"algo-{k}" for k in range(1, hosts + 1))),)
    if options.hosts is not None:
        raise RehearsalError("--hosts and --instance-groups exclude each other.", hint="The groups say how many hosts.")
    groups: List[InstanceGroup] = []
    for part in options.instance_groups.split(","):
        groups.append(_group(part, default_type, taken=sum(len(group.hosts) for group in groups)))
    names = [host for group in groups for host in group.hosts]
    if len(set(names)) != len(names) or len({group.name for group in groups}) != len(groups):
        raise RehearsalError(f"--instance-groups {options.instance_groups!r} names a host or a group twice.")
    return tuple(groups)


def _group(text: str, default_type: str, taken: int) -> InstanceGroup:
    match = re.fullmatch(
        r"(?P<name>[\w-]+)=(?:(?P<count>\d+)|(?P<hosts>algo-\d+(?:\+algo-\d+)*))(?::(?P<type>[\w.\-]+))?", text
    )
    if match is None or match.group("count") == "0":
        raise RehearsalError(
            f"--instance-groups: {text!r} is not NAME=N or NAME=N:TYPE.",
            hint="For example head=1:ml.m5.large,workers=2:ml.m5.xlarge",
        )
    if match.group("count"):
        hosts = tuple(f"algo-{taken + k}" for k in range(1, int(match.group("count")) + 1))
    else:
        hosts = tuple(match.group("hosts").split("+"))
    return InstanceGroup(match.group("name"), match.group("type") or default_type, hosts)


def channels_from(given: Sequence[str]) -> Tuple[Channel, ...]:
    """The channels that ``--channel NAME=PATH`` describes."""
    found: Dict[str, Channel] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not path or not _CHANNEL_NAME.fullmatch(name):
            raise RehearsalError(f"--channel {text!r} is not NAME=PATH.", hint="For example --channel training=./data")
        if name in found:
            raise RehearsalError(f"--channel {name} is given twice.")
        if not Path(path).exists():
            raise RehearsalError(f"--channel {name}: {path} does not exist.")
        found[name] = Channel(name, str(Path(path).resolve()))
    return tuple(found.values())


def environment_from(given: Sequence[str]) -> Tuple[Tuple[str, str], ...]:
    """The variables that ``--env NAME=VALUE`` describes."""
    pairs = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise RehearsalError(f"--env {text!r} is not NAME=VALUE.")
        pairs.append((name, value))
    return tuple(pairs)


def limits_from(options: argparse.Namespace) -> Limits:
    """How long things may take."""
    spot, stop, stop_at = options.spot_interrupt_after, options.stop_after, options.stop_at
    if sum(map(bool, (spot, stop, stop_at))) > 1:
        raise RehearsalError("--stop-after, --stop-at and --spot-interrupt-after exclude each other.")
    if (stop or stop_at) and not sys.platform.startswith("linux"):
        raise RehearsalError(f"A stop needs Linux: {sys.platform} does not tell what a process listens for.")
    return Limits(
        timeout=seconds(options.timeout, "--timeout"),
        abort_after=seconds(options.abort_after, "--abort-after"),
        interrupt_after=seconds(spot, "--spot-interrupt-after") if spot else None,
        stop_after=seconds(stop, "--stop-after") if stop else None,
        stop_at=stop_at or None,
        stop_grace=seconds(options.stop_grace, "--stop-grace"),
        names_after=seconds(options.names_after, "--names-after") if options.names_after else 0.0,
    )


def link_from(options: argparse.Namespace) -> Link:
    """What is asked of the network between the hosts."""
    return Link(
        bits_per_second=bits_per_second(options.bandwidth, "--bandwidth") if options.bandwidth else None,
        latency_ms=milliseconds(options.latency, "--latency") if options.latency else None,
    )
