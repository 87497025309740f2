"""``LaunchSettings``: what a training job is asked to be, as it is typed or written in ``launch.yaml``."""

import re
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from lightning_sm._duration import read_duration
from lightning_sm.errors import LaunchError

__all__ = [
    "DISTRIBUTIONS",
    "Channel",
    "Instances",
    "LaunchSettings",
    "as_channel",
    "as_instances",
    "as_seconds",
    "closest",
    "data_source",
    "flag_of",
    "local_channels",
    "refuse_missing",
    "settings_of",
    "typed_values",
]

DISTRIBUTIONS = ("none", "torch_distributed", "mpi", "smdistributed", "pytorchddp")
_DURATIONS = ("max_run", "max_wait", "max_pending", "keep_alive")
_SEVERAL = ("hyperparameters", "channels", "tags", "metrics", "subnets", "security_groups", "allow_files", "ranges")
_GROUP = re.compile(r"(?P<name>[\w-]+)=(?P<count>\d+):(?P<type>[\w.\-]+)")
_TYPE = re.compile(r"(?P<type>[\w.\-]+?)(?::(?P<count>\d+))?")
# file systems: fsx://fs-0123456789abcdef0/mount/path, fsx-lustre and efs alike
_FILE_SYSTEM = re.compile(r"(?P<kind>fsx|efs)://(?P<id>fs-[0-9a-f]+)(?P<path>/\S+)")
_FILE_SYSTEM_TYPES = {"fsx": "FSxLustre", "efs": "EFS"}
_WHAT_TO_GIVE = {
    "--image": "An image is a short name such as pytorch-2.8-gpu, or an address",
    "--instance-type": "an instance type is one such as ml.g5.xlarge",
    "--role": "the role is the ARN of the job's execution role, arn:aws:iam::ACCOUNT:role/NAME, as IAM shows it",
    "--region": "the region may also stand in AWS_REGION",
}
# Names of arguments of SageMaker's SDKs, and ours.
_NAMES_OF_SDKS = {
    "instance_count": "instances", "image_uri": "image", "use_spot_instances": "spot", "job_name": "name",
    "base_job_name": "base_name", "inputs": "channels", "input_data_config": "channels", "source_code": "source_dir",
    "volume_size_in_gb": "volume_size", "checkpoint_s3_uri": "checkpoints", "metric_definitions": "metrics",
}  # fmt: skip


@dataclass(frozen=True)
class Channel:
    """An input channel of the job.

    Args:
        name: Its name, such as ``training``.
        uri: ``s3://bucket/prefix``, ``fsx://fs-ID/mount/path``, ``efs://fs-ID/path``, or a local folder or file, which
            ``launch`` uploads.
        mode: ``File``, ``FastFile`` or ``Pipe``; by default the job's.
        sharded: Whether each host gets a part of the objects instead of all of them.
        content_type: The MIME type of the data.
    """

    name: str
    uri: str
    mode: Optional[str] = None
    sharded: bool = False
    content_type: Optional[str] = None


@dataclass(frozen=True)
class Instances:
    """Instances of one type.

    Args:
        type: The type, such as ``ml.g5.12xlarge``.
        count: How many.
        group: The name of their instance group, in a heterogeneous cluster.
    """

    type: str
    count: int = 1
    group: Optional[str] = None


@dataclass
class LaunchSettings:
    """What ``lightning-sm launch`` takes, as words (``--max-run 2h``) or in ``launch.yaml`` (``max_run: 2h``).

    Args:
        image: The training image: a short name such as ``pytorch-2.8-gpu``, or the URI of any image.
        role: The execution role of the job, as an ARN.
        instance_type: The instance type. Several, each with its number of instances as in ``ml.p4d.24xlarge:2``, let
            SageMaker choose at the start of the job.
        instances: The number of instances.
        instance_groups: The groups of a heterogeneous cluster, each as ``NAME=COUNT:TYPE``.
        distribution: How processes are started: ``none`` (one per host, Lightning starts the others),
            ``torch_distributed``, ``mpi``, ``smdistributed`` or ``pytorchddp``.
        distribution_groups: The groups that are a part of the distribution; all by default.
        processes_per_host: Processes per host, for ``mpi``; by default one for each GPU.
        mpi_options: More options of ``mpirun``, for ``mpi``, ``smdistributed`` and ``pytorchddp``.
        source_dir: The folder with the program, its config files and ``requirements.txt``.
        entry_point: The program in it.
        allow_files: Files in it that are uploaded although they are large or look like secrets.
        name: The name of the job; by default ``base_name`` and the time.
        base_name: What the default name of the job begins with; by default the name of the source folder.
        region: The AWS region; by default that of the AWS configuration.
        bucket: The bucket for source, checkpoints and output; by default ``sagemaker-REGION-ACCOUNT``.
        output_path: Where the output and the model go (``s3://…``); by default the bucket.
        channels: The input channels: an address or a local folder for each name, or a mapping with ``uri``, ``mode``,
            ``sharded`` and ``content_type``.
        input_mode: ``File``, ``FastFile`` or ``Pipe``, for channels without a mode of their own.
        hyperparameters: Hyperparameters, beside those that the words of the command mean.
        environment: Environment variables of the container.
        auto: Whether a program that does not import ``lightning_sm`` takes its world and directories from the job: the
            container's variable ``LIGHTNING_SM_AUTO`` is ``1``.
        checkpoints: Where checkpoints are synchronised with S3: ``auto`` for a prefix of the job's own in the bucket,
            ``none``, or an address.
        from_checkpoint: The checkpoints of another job (``s3://…/checkpoints``), from which this job goes on. They are
            copied to this job's own prefix.
        spot: Whether to use spot instances.
        max_run: The time limit of the job, such as ``24h``.
        max_wait: The time limit with the wait for spot instances; by default ``max_run`` and one day.
        max_pending: The time limit of the wait for capacity.
        retries: How often SageMaker starts the job again after an internal error.
        keep_alive: How long the instances are kept warm for another job.
        training_plan: The ARN of a training plan.
        volume_size: The size of each instance's volume in GB.
        volume_kms_key: The key that encrypts the volumes.
        output_kms_key: The key that encrypts the output.
        metrics: Names of the metrics that SageMaker reads from the job's log; ``auto`` for those that the model logs
            which the config names.
        metrics_time_series: Whether SageMaker keeps the time series of these metrics.
        mlflow_arn: The ARN of a SageMaker managed MLflow.
        mlflow_experiment: The name of its experiment.
        tensorboard_output: Where SageMaker uploads ``/opt/ml/output/tensorboard`` (``s3://…``).
        subnets: Subnets of the VPC.
        security_groups: Security groups of the VPC.
        tags: Tags of the job.
        encrypt_traffic: Whether the traffic between the hosts is encrypted.
        network_isolation: Whether the container has no network.
        forward_sigterm: Whether the container is started by a script that forwards SIGTERM to the training.

    Example::

        >>> settings = settings_of({"image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge", "max_run": "2h"})
        >>> settings.instance_type, settings.instances, settings.checkpoints
        (['ml.g5.xlarge'], 1, 'auto')
    """

    image: str = ""
    role: str = ""
    instance_type: List[str] = field(default_factory=list)
    instances: int = 1
    instance_groups: List[str] = field(default_factory=list)
    distribution: str = "none"
    distribution_groups: List[str] = field(default_factory=list)
    processes_per_host: Optional[int] = None
    mpi_options: str = ""
    source_dir: str = "."
    entry_point: str = "train.py"
    allow_files: List[str] = field(default_factory=list)
    name: Optional[str] = None
    base_name: Optional[str] = None
    region: Optional[str] = None
    bucket: Optional[str] = None
    output_path: Optional[str] = None
    channels: Dict[str, Any] = field(default_factory=dict)
    input_mode: str = "File"
    hyperparameters: Dict[str, Any] = field(default_factory=dict)
    environment: Dict[str, str] = field(default_factory=dict)
    auto: bool = True
    checkpoints: str = "auto"
    from_checkpoint: Optional[str] = None
    spot: bool = False
    max_run: str = "24h"
    max_wait: Optional[str] = None
    max_pending: Optional[str] = None
    retries: Optional[int] = None
    keep_alive: Optional[str] = None
    training_plan: Optional[str] = None
    volume_size: Optional[int] = 30
    volume_kms_key: Optional[str] = None
    output_kms_key: Optional[str] = None
    metrics: List[str] = field(default_factory=list)
    metrics_time_series: bool = True
    mlflow_arn: Optional[str] = None
    mlflow_experiment: Optional[str] = None
    tensorboard_output: Optional[str] = None
    subnets: List[str] = field(default_factory=list)
    security_groups: List[str] = field(default_factory=list)
    tags: Dict[str, str] = field(default_factory=dict)
    encrypt_traffic: bool = False
    network_isolation: bool = False
    forward_sigterm: bool = True

    def seconds(self, name: str) -> Optional[int]:
        """Return a duration among the settings in seconds, ``None`` where it is not set.

        Raises:
            LaunchError: It is no duration.
        """
        return as_seconds(name, getattr(self, name))


def settings_of(given: Mapping[str, Any]) -> LaunchSettings:
    """Return the settings of a mapping, such as the content of ``launch.yaml``.

    Args:
        given: The settings by their names; ``-`` and ``_`` are the same in them.

    Raises:
        LaunchError: A name is unknown, or a value has another type.
    """
    settings = LaunchSettings(**typed_values(LaunchSettings, given, "launch"))
    if settings.distribution not in DISTRIBUTIONS:
        raise LaunchError(
            f"--distribution is {settings.distribution!r}.", hint=f"Use one of {', '.join(DISTRIBUTIONS)}."
        )
    for name in _DURATIONS:
        settings.seconds(name)
    return settings


def closest(name: str, known: Iterable[str]) -> Optional[str]:
    """Return the setting that an unknown name means: by what SageMaker's SDKs call it, or the most similar one.

    Example::

        >>> closest("instance_count", ["instances", "instance_type"]), closest("imgae", ["image", "role"])
        ('instances', 'image')
    """
    import difflib

    listed = list(known)
    same = _NAMES_OF_SDKS.get(name)
    similar = [same] if same in listed else difflib.get_close_matches(name, listed, n=1)
    return similar[0] if similar else None


def refuse_missing(settings: LaunchSettings, also: Sequence[str] = ()) -> None:
    """Raise if settings are missing that every job needs; all of them are named.

    Args:
        settings: The settings.
        also: What is missing besides.

    Raises:
        LaunchError: Something is missing.
    """
    given = {
        "image": settings.image,
        "instance_type": settings.instance_type or settings.instance_groups,
        "role": settings.role,
    }
    missing = [*(flag_of(name) for name, value in given.items() if not value), *also]
    if missing:
        raise LaunchError(
            f"There is no {', no '.join(missing)}.", hint="; ".join(_WHAT_TO_GIVE[name] for name in missing) + "."
        )


def typed_values(cls: type, given: Mapping[str, Any], command: str) -> Dict[str, Any]:
    """Return the arguments of a dataclass of settings, whose names and types are checked.

    Args:
        cls: The dataclass.
        given: The settings by their names; ``-`` and ``_`` are the same in them.
        command: The command whose ``--help`` lists them.

    Raises:
        LaunchError: A name is unknown, or a value has another type.
    """
    known = {each.name: each for each in fields(cls)}
    values: Dict[str, Any] = {}
    for name, value in given.items():
        key = str(name).replace("-", "_")
        if key not in known:
            close = closest(key, known)
            raise LaunchError(
                f"{command} has no setting {name!r}.",
                hint=f"Did you mean {close!r}?" if close else f"Run `lightning-sm {command} --help` to see all.",
            )
        if value is not None:
            values[key] = _typed(key, value, known[key].type)
    return values


def as_seconds(name: str, value: Optional[str]) -> Optional[int]:
    """Return the duration of a setting in seconds, ``None`` where it is not set.

    Raises:
        LaunchError: It is no duration.
    """
    if value is None:
        return None
    try:
        return round(read_duration(value))
    except ValueError as error:
        raise LaunchError(f"{flag_of(name)}: {error}.", hint="Write hours, minutes or seconds, as in 2h30m.") from error


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """Check the type of a value; one value stands for a list of one."""
    wanted = str(annotation)
    if "List" in wanted:
        value = list(value) if isinstance(value, (list, tuple)) else [value]
        good = all(isinstance(each, str) for each in value)
    elif "Dict" in wanted:
        good = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        if good and name in ("environment", "tags"):
            value = {key: each if isinstance(each, str) else _as_text(name, key, each) for key, each in value.items()}
    elif "bool" in wanted:
        good = isinstance(value, bool)
    elif "int" in wanted:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    else:
        value = str(value) if name in (*_DURATIONS, "max_tuning_time") and isinstance(value, (int, float)) else value
        good = isinstance(value, str)
    if not good:
        kind = re.sub(r"<class '(\w+)'>|typing\.|Optional\[|\]$", r"\1", wanted)
        raise LaunchError(f"{flag_of(name)} is {value!r}.", hint=f"Give {kind}.")
    return value


def _as_text(name: str, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LaunchError(f"{flag_of(name)} {key} is {value!r}.", hint="Give text; quote true and false in YAML.")
    return str(value)


def as_instances(settings: LaunchSettings) -> Tuple[Instances, ...]:
    """Return the instances: one entry, one for each group, or one for each type among which SageMaker chooses.

    Raises:
        LaunchError: A text cannot be read, or both types and groups are given.
    """
    types, groups = settings.instance_type, settings.instance_groups
    if types and groups:
        raise LaunchError(
            "--instance-type and --instance-group exclude each other.", hint="Name types, or groups as NAME=COUNT:TYPE."
        )
    found: List[Instances] = []
    for text in groups:
        match = _GROUP.fullmatch(text)
        if match is None:
            raise LaunchError(f"--instance-group is {text!r}.", hint="Write NAME=COUNT:TYPE, as head=1:ml.m5.large.")
        found.append(Instances(match["type"], int(match["count"]), match["name"]))
    for text in types:
        match = _TYPE.fullmatch(text)
        if match is None or not match["type"].startswith("ml."):
            raise LaunchError(
                f"--instance-type is {text!r}.", hint="Types of SageMaker begin with ml., as ml.g5.xlarge."
            )
        found.append(Instances(match["type"], int(match["count"] or settings.instances)))
    return tuple(found)


def as_channel(name: str, given: Union[str, Mapping[str, Any]]) -> Channel:
    """Return a channel from its address or a mapping.

    Raises:
        LaunchError: The address is none of S3, FSx or EFS, or a name is unknown.
    """
    values = {"uri": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    unknown = sorted(set(values) - {"uri", "mode", "sharded", "content_type"})
    uri = values.get("uri")
    if unknown or not isinstance(uri, str):
        raise LaunchError(
            f"The channel {name!r} is {given!r}.", hint="Give an address, or uri, mode, sharded and content_type."
        )
    if "://" in uri and not uri.startswith("s3://") and not _FILE_SYSTEM.fullmatch(uri):
        raise LaunchError(
            f"The channel {name!r} is {uri!r}.",
            hint="Give s3://BUCKET/PREFIX, fsx://fs-ID/MOUNT/PATH, efs://fs-ID/PATH or a local folder.",
        )
    return Channel(name, uri, values.get("mode"), bool(values.get("sharded", False)), values.get("content_type"))


def local_channels(settings: LaunchSettings) -> Dict[str, str]:
    """Return the folders, or files, of the channels that ``launch`` uploads, by the names of the channels."""
    channels = [as_channel(name, given) for name, given in settings.channels.items()]
    return {channel.name: channel.uri for channel in channels if "://" not in channel.uri}


def data_source(channel: Channel) -> Dict[str, Any]:
    """Return the ``DataSource`` of a channel in a CreateTrainingJob request."""
    match = _FILE_SYSTEM.fullmatch(channel.uri)
    if match is not None:
        return {
            "FileSystemDataSource": {
                "FileSystemId": match["id"],
                "FileSystemType": _FILE_SYSTEM_TYPES[match["kind"]],
                "DirectoryPath": match["path"],
                "FileSystemAccessMode": "ro",
            }
        }
    distribution = "ShardedByS3Key" if channel.sharded else "FullyReplicated"
    return {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": channel.uri, "S3DataDistributionType": distribution}}


def flag_of(name: str) -> str:
    """Return the option of the command line that sets one setting, or adds to it where it holds several.

    Example::

        >>> flag_of("max_run"), flag_of("channels")
        ('--max-run', '--channel')
    """
    singular = name[:-1] if name in _SEVERAL or name.endswith("_groups") else "env" if name == "environment" else name
    return f"--{singular.replace('_', '-')}"
