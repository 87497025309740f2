"""From the body of a CreateTrainingJob request, whoever made it, to a :class:`RehearsalRequest`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._distributions import PROCESSES, distribution_of
from ._errors import RehearsalError
from ._from_options import channels_from, environment_from, limits_from, link_from
from ._request import DEFAULT_CHECKPOINT_PATH, HOMOGENEOUS, Channel, InstanceGroup, RehearsalRequest

__all__ = ["read_body", "request_from_body"]

# What the body says already. The other options stand for what the body cannot know: this machine.
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


def read_body(path: Path) -> Dict[str, Any]:
    """The JSON object in a file.

    Raises:
        RehearsalError: It cannot be read, or is no such body.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(f"--request {path} cannot be read as JSON: {error}.") from error
    if not isinstance(body, dict) or "ResourceConfig" not in body:
        raise RehearsalError(f"--request {path} is not the body of a CreateTrainingJob request: no ResourceConfig.")
    return body


def request_from_body(body: Mapping[str, Any], options: argparse.Namespace) -> RehearsalRequest:
    """The request that ``body`` describes. Options replace its S3 folders by local ones.

    Raises:
        RehearsalError: Something in it cannot be rehearsed, or an option contradicts it.
    """
    for name in _IN_BODY:
        if getattr(options, name) is not None:
            shown = "an entry point" if name == "entry_point" else "--" + name.replace("_", "-")
            raise RehearsalError(f"--request and {shown} exclude each other: the body says it.")
    hyperparameters = _strings(body, "HyperParameters")
    if options.processes is not None:
        hyperparameters[PROCESSES] = json.dumps(options.processes)
    algorithm = body.get("AlgorithmSpecification", {})
    channels = _channels(body, algorithm.get("TrainingInputMode", "File"), options)
    sdk = "v3" if any(channel.name == "sm_drivers" for channel in channels) else "v2"
    source = Path(options.source_dir).resolve() if options.source_dir else None
    archive = _text(hyperparameters.get("sagemaker_submit_directory"))
    checkpoints = body.get("CheckpointConfig") or {}
    path = checkpoints.get("LocalPath", DEFAULT_CHECKPOINT_PATH)
    if not path.startswith("/opt/ml/"):
        raise RehearsalError(f"CheckpointConfig.LocalPath {path!r} is not below /opt/ml, where alone it is rehearsed.")
    command = (*algorithm.get("ContainerEntrypoint", ()), *algorithm.get("ContainerArguments", ())) or ("train",)
    output = (body.get("OutputDataConfig") or {}).get("S3OutputPath", "")
    return RehearsalRequest(
        job_name=str(body.get("TrainingJobName", "rehearsal")),
        sdk=sdk,
        distribution=distribution_of(hyperparameters),
        groups=_groups(body["ResourceConfig"]),
        hyperparameters=tuple(hyperparameters.items()),
        entry_point=_text(hyperparameters.get("sagemaker_program")),
        command=tuple(command),
        code=source if sdk == "v2" else None,
        channels=channels,
        environment=(*_strings(body, "Environment").items(), *environment_from(options.env)),
        checkpoint_path=path,
        checkpoint_dir=Path(options.checkpoint_dir).resolve() if options.checkpoint_dir else None,
        checkpoint_config=bool(checkpoints),
        output_dir=Path(options.output_dir).resolve() if options.output_dir else None,
        limits=limits_from(options),
        link=link_from(options),
        local_mode_files=options.local_mode_files,
        processes=options.processes,
        install_requirements=not options.no_requirements,
        archive_uri=archive if source is None else None,
        output_uri=output if _remote(output) else None,
        checkpoint_uri=checkpoints.get("S3Uri") if _remote(checkpoints.get("S3Uri", "")) else None,
    )


def _groups(resources: Mapping[str, Any]) -> Tuple[InstanceGroup, ...]:
    groups = resources.get("InstanceGroups") or [
        {
            "InstanceGroupName": HOMOGENEOUS,
            "InstanceType": resources.get("InstanceType"),
            "InstanceCount": resources.get("InstanceCount", 1),
        }
    ]
    found: List[InstanceGroup] = []
    taken = 0
    for group in groups:
        if not group.get("InstanceType") or int(group.get("InstanceCount", 0)) < 1:
            raise RehearsalError(f"ResourceConfig: {dict(group)} has no InstanceType or no InstanceCount.")
        hosts = tuple(f"algo-{taken + k}" for k in range(1, int(group["InstanceCount"]) + 1))
        taken += len(hosts)
        found.append(InstanceGroup(group["InstanceGroupName"], group["InstanceType"], hosts))
    return tuple(found)


def _channels(body: Mapping[str, Any], mode: str, options: argparse.Namespace) -> Tuple[Channel, ...]:
    local = {channel.name: channel for channel in channels_from(options.channel)}
    found: List[Channel] = []
    for given in body.get("InputDataConfig") or ():
        name = given["ChannelName"]
        data = given.get("DataSource", {}).get("S3DataSource", {})
        settings = {
            "TrainingInputMode": given.get("InputMode", mode),
            "S3DistributionType": data.get("S3DataDistributionType", "FullyReplicated"),
            "RecordWrapperType": given.get("RecordWrapperType", "None"),
        }
        if "ContentType" in given:
            settings["ContentType"] = given["ContentType"]
        source = local.pop(name).source if name in local else _source(name, data, settings["TrainingInputMode"])
        found.append(Channel(name, source, tuple(settings.items())))
    return (*found, *local.values())


def _source(name: str, data: Mapping[str, Any], mode: str) -> str:
    hint = f"Give a local folder: --channel {name}=PATH"
    if data.get("S3DataType", "S3Prefix") != "S3Prefix" or mode == "Pipe":
        raise RehearsalError(f"Channel {name}: only S3Prefix in File or FastFile mode can be fetched.", hint=hint)
    uri = str(data.get("S3Uri", ""))
    if _remote(uri):
        return uri
    path = Path(uri[len("file://") :] if uri.startswith("file://") else uri).resolve()
    if not uri or not path.exists():
        raise RehearsalError(f"Channel {name}: {uri!r} is neither an s3:// prefix nor an existing folder.", hint=hint)
    return str(path)


def _strings(body: Mapping[str, Any], key: str) -> Dict[str, str]:
    found = body.get(key) or {}
    wrong = [name for name, value in found.items() if not isinstance(value, str)]
    if wrong:
        raise RehearsalError(f"{key}: the value of {wrong[0]!r} is not a string, and the service takes only strings.")
    return dict(found)


def _text(value: Optional[str]) -> Optional[str]:
    """A hyperparameter that should be text, written as JSON (SDK v2) or as it is (boto3)."""
    if value is None:
        return None
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return read if isinstance(read, str) else value


def _remote(uri: str) -> bool:
    return uri.startswith("s3://")
