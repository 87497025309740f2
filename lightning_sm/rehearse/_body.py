"""A :class:`RehearsalRequest` from the body of a CreateTrainingJob request, whichever SDK made it."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._request import (
    DEFAULT_CHECKPOINT_PATH,
    HOMOGENEOUS_CLUSTER,
    TOOLKIT_COMMAND,
    Distribution,
    HostGroup,
    InputChannel,
    Isolation,
    Limits,
    NetworkLink,
    RehearsalRequest,
    Sdk,
)
from lightning_sm.rehearse._sdk import PROCESSES_PER_HOST, distribution_of

__all__ = ["PathLike", "as_member", "read_body", "request_from_body"]

PathLike = Union[str, Path]
_Member = TypeVar("_Member", Distribution, Sdk, Isolation)

_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,255}")
_BODY_HINT = "Give the arguments of boto3's create_training_job, as JSON."


def request_from_body(
    body: Mapping[str, Any],
    *,
    source_dir: Optional[PathLike] = None,
    processes: Optional[int] = None,
    channels: Optional[Mapping[str, PathLike]] = None,
    environment: Optional[Mapping[str, str]] = None,
    allow_files: Sequence[str] = (),
    checkpoint_dir: Optional[PathLike] = None,
    output_dir: Optional[PathLike] = None,
    upload: bool = False,
    install_requirements: bool = True,
    local_mode_files: bool = False,
    limits: Optional[Limits] = None,
    link: Optional[NetworkLink] = None,
    isolation: Union[str, Isolation, None] = None,
    keep: bool = False,
) -> RehearsalRequest:
    """Return the request that a CreateTrainingJob body describes. Arguments replace its S3 folders by local ones.

    What the body names in S3 is only read. Results are collected in ``output_dir``, or in a new temporary folder.

    Args:
        body: The body, as boto3's ``create_training_job`` is given it.
        source_dir: The folder with the program, in place of the body's source archive.
        processes: Processes per host. By default the number of GPUs, or 1.
        channels: A local folder or file for input channels, in place of the body's or in addition.
        environment: More environment variables, which win over those of the body.
        allow_files: Files of ``source_dir`` that are packed although they are large or look like secrets.
        checkpoint_dir: As in :func:`create_request`, and all that follow.
        output_dir: See there.
        upload: Write model, output and checkpoints to the body's own places in S3, over what is there.
        install_requirements: See there.
        local_mode_files: See there.
        limits: See there.
        link: See there.
        isolation: See there.
        keep: See there.

    Raises:
        RehearsalError: Something in the body cannot be rehearsed.

    Example::

        >>> body = {"TrainingJobName": "job-1", "HyperParameters": {"sagemaker_program": "train.py"},
        ...         "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge"}}
        >>> request = request_from_body(body, source_dir=".")
        >>> request.job_name, request.hosts
        ('job-1', ('algo-1', 'algo-2'))
    """
    if "ResourceConfig" not in body:
        raise RehearsalError("This is not the body of a CreateTrainingJob request: no ResourceConfig.", hint=_BODY_HINT)
    hyperparameters = _strings(body, "HyperParameters")
    if processes is not None:
        hyperparameters[PROCESSES_PER_HOST] = json.dumps(processes)
    algorithm = body.get("AlgorithmSpecification", {})
    inputs = _channels(body, algorithm.get("TrainingInputMode", "File"), _local_channels(channels or {}))
    sdk = Sdk.V3 if any(channel.name == "sm_drivers" for channel in inputs) else Sdk.V2
    archive = _text(hyperparameters.get("sagemaker_submit_directory"))
    checkpoints = body.get("CheckpointConfig") or {}
    path = checkpoints.get("LocalPath", DEFAULT_CHECKPOINT_PATH)
    if not path.startswith("/opt/ml/"):
        raise RehearsalError(
            f"CheckpointConfig.LocalPath {path!r} cannot be rehearsed.", hint="Use a folder below /opt/ml."
        )
    command = (*algorithm.get("ContainerEntrypoint", ()), *algorithm.get("ContainerArguments", ()))
    output = (body.get("OutputDataConfig") or {}).get("S3OutputPath", "")
    if upload and output_dir is not None:
        raise RehearsalError("--upload and --output-dir exclude each other.", hint="Leave one of them out.")
    _check_limits(limits or Limits())
    return RehearsalRequest(
        job_name=str(body.get("TrainingJobName", "rehearsal")),
        sdk=sdk,
        distribution=distribution_of(hyperparameters),
        groups=_groups(body["ResourceConfig"]),
        hyperparameters=tuple(hyperparameters.items()),
        entry_point=_text(hyperparameters.get("sagemaker_program")),
        command=command or TOOLKIT_COMMAND,
        code=_resolved(source_dir) if sdk is Sdk.V2 else None,
        allow_files=tuple(allow_files),
        image=algorithm.get("TrainingImage"),
        channels=inputs,
        environment=tuple({**_strings(body, "Environment"), **(environment or {})}.items()),
        checkpoint_path=path,
        checkpoint_dir=_resolved(checkpoint_dir),
        checkpoint_config=bool(checkpoints),
        output_dir=_resolved(output_dir),
        limits=limits or Limits(),
        link=link or NetworkLink(),
        local_mode_files=local_mode_files,
        processes=processes,
        install_requirements=install_requirements,
        archive_uri=None if source_dir else archive,
        output_uri=output if _is_s3(output) else None,
        checkpoint_uri=checkpoints.get("S3Uri") if _is_s3(checkpoints.get("S3Uri", "")) else None,
        upload=upload,
        isolation=_as_isolation(isolation),
        keep=keep,
    )


def read_body(path: Path) -> Dict[str, Any]:
    """Return the body in a JSON file.

    Raises:
        RehearsalError: The file cannot be read, or does not contain such a body.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(f"--request {path} cannot be read as JSON: {error}.", hint=_BODY_HINT) from error
    if not isinstance(body, dict):
        raise RehearsalError(f"--request {path} is not the body of a CreateTrainingJob request.", hint=_BODY_HINT)
    return body


def as_member(kind: Type[_Member], value: Union[str, _Member], name: str) -> _Member:
    """Return the member of an enumeration by its value.

    Raises:
        RehearsalError: There is none; the message names the argument and its choices.
    """
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(member.value for member in kind)
        raise RehearsalError(f"{name} {value!r} is not known.", hint=f"Use one of: {choices}") from None


def _as_isolation(value: Union[str, Isolation, None]) -> Optional[Isolation]:
    """Return the isolation by its value; ``None`` and ``"auto"`` leave it open."""
    return None if value in (None, "auto") else as_member(Isolation, str(value), "isolation")


def _resolved(path: Optional[PathLike]) -> Optional[Path]:
    """Return an absolute path, since the job starts in another folder."""
    return Path(path).resolve() if path else None


def _local_channels(paths: Mapping[str, PathLike]) -> Tuple[InputChannel, ...]:
    """Return the input channels for these local folders and files.

    Raises:
        RehearsalError: A name is not one for a channel, or a path does not exist.
    """
    for name, path in paths.items():
        if not _CHANNEL_NAME.fullmatch(name):
            raise RehearsalError(
                f"--channel {name!r} is not a channel name.", hint="Use letters, digits, '.', '-', '_'."
            )
        if not Path(path).exists():
            raise RehearsalError(f"--channel {name}: {path} does not exist.", hint="Give a local folder or file.")
    return tuple(InputChannel(name, str(Path(path).resolve())) for name, path in paths.items())


def _check_limits(limits: Limits) -> None:
    """Check that at most one thing ends the job early, and that this system can do it.

    Raises:
        RehearsalError: It cannot be done.
    """
    stop = limits.stop_after is not None or bool(limits.stop_at)
    if sum((limits.interrupt_after is not None, limits.stop_after is not None, bool(limits.stop_at))) > 1:
        raise RehearsalError(
            "--stop-after, --stop-at and --spot-interrupt-after exclude each other.", hint="Give one of them."
        )
    if stop and not sys.platform.startswith("linux"):
        raise RehearsalError(
            f"--stop-after and --stop-at need Linux: {sys.platform} does not show which signals a process handles.",
            hint="Run the rehearsal on Linux, in a container for example.",
        )


def _groups(resources: Mapping[str, Any]) -> Tuple[HostGroup, ...]:
    groups = resources.get("InstanceGroups") or [
        {
            "InstanceGroupName": HOMOGENEOUS_CLUSTER,
            "InstanceType": resources.get("InstanceType"),
            "InstanceCount": resources.get("InstanceCount", 1),
        }
    ]
    found: List[HostGroup] = []
    taken = 0
    for group in groups:
        if not group.get("InstanceType") or int(group.get("InstanceCount", 0)) < 1:
            raise RehearsalError(
                f"ResourceConfig: {dict(group)} has no InstanceType or no InstanceCount.", hint="Each group has both."
            )
        hosts = tuple(f"algo-{taken + k}" for k in range(1, int(group["InstanceCount"]) + 1))
        taken += len(hosts)
        found.append(HostGroup(group["InstanceGroupName"], group["InstanceType"], hosts))
    return tuple(found)


def _channels(body: Mapping[str, Any], mode: str, given: Tuple[InputChannel, ...]) -> Tuple[InputChannel, ...]:
    local = {channel.name: channel for channel in given}
    found: List[InputChannel] = []
    for entry in body.get("InputDataConfig") or ():
        name = entry["ChannelName"]
        data = entry.get("DataSource", {}).get("S3DataSource", {})
        settings = {
            "TrainingInputMode": entry.get("InputMode", mode),
            "S3DistributionType": data.get("S3DataDistributionType", "FullyReplicated"),
            "RecordWrapperType": entry.get("RecordWrapperType", "None"),
        }
        if "ContentType" in entry:
            settings["ContentType"] = entry["ContentType"]
        source = local.pop(name).source if name in local else _source(name, data, settings["TrainingInputMode"])
        found.append(InputChannel(name, source, tuple(settings.items())))
    return (*found, *local.values())


def _source(name: str, data: Mapping[str, Any], mode: str) -> str:
    hint = f"Give a local folder: --channel {name}=PATH"
    if data.get("S3DataType", "S3Prefix") != "S3Prefix" or mode == "Pipe":
        raise RehearsalError(f"Channel {name}: only S3Prefix in File or FastFile mode can be fetched.", hint=hint)
    uri = str(data.get("S3Uri", ""))
    if _is_s3(uri):
        return uri
    path = Path(uri[len("file://") :] if uri.startswith("file://") else uri).resolve()
    if not uri or not path.exists():
        raise RehearsalError(f"Channel {name}: {uri!r} is neither an s3:// prefix nor an existing folder.", hint=hint)
    return str(path)


def _strings(body: Mapping[str, Any], key: str) -> Dict[str, str]:
    found = body.get(key) or {}
    wrong = [name for name, value in found.items() if not isinstance(value, str)]
    if wrong:
        raise RehearsalError(
            f"{key}: the value of {wrong[0]!r} is not a string.", hint="The service takes only strings."
        )
    return dict(found)


def _text(value: Optional[str]) -> Optional[str]:
    """A hyperparameter that is text, written as JSON (SDK v2) or unchanged (boto3)."""
    if value is None:
        return None
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return read if isinstance(read, str) else value


def _is_s3(uri: str) -> bool:
    return uri.startswith("s3://")
