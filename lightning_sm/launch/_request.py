"""``JobRequest``: the body of a CreateTrainingJob request, made of the settings before anything is sent."""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Mapping

from lightning_sm._duration import read_duration
from lightning_sm._observe.metrics import metric_definitions
from lightning_sm._sagemaker.entrypoint import DLC_COMMAND, TOOLKIT_COMMAND, make_entrypoint
from lightning_sm.errors import LaunchError
from lightning_sm.launch._images import find_image
from lightning_sm.launch._settings import LaunchSettings
from lightning_sm.launch._upload import address_of_content

__all__ = [
    "ARCHIVE",
    "OF_SEARCH",
    "Account",
    "JobRequest",
    "create_job_request",
    "default_name",
    "local_channels",
    "patch",
]

#: Where the source archive of a job is uploaded below the name of the job: SageMaker's SDKs have other places.
ARCHIVE = "launch/sourcedir.tar.gz"
_ISOLATED_ARCHIVE = "/opt/ml/input/data/code/sourcedir.tar.gz"
_DAY = 86_400
_GROUP = re.compile(r"(?P<name>[\w-]+)=(?P<count>\d+):(?P<type>[\w.\-]+)")
# file systems: fsx://fs-0123456789abcdef0/mount/path, and efs alike
_FILE_SYSTEM = re.compile(r"(?P<kind>fsx|efs)://(?P<id>fs-[0-9a-f]+)(?P<path>/\S+)")
_FILE_SYSTEM_TYPES = {"fsx": "FSxLustre", "efs": "EFS"}
_CHANNEL = ("uri", "mode", "sharded", "content_type")
# Fields of a tuning job that its training jobs do not have.
OF_SEARCH = ("HyperParameterTuningJobConfig", "WarmStartConfig", "Autotune")


@dataclass(frozen=True)
class Account:
    """Where the job is sent.

    Args:
        region: The region.
        bucket: The bucket for source, checkpoints and output.
    """

    region: str
    bucket: str


@dataclass(frozen=True)
class JobRequest:
    """What is sent to SageMaker.

    Args:
        name: The name of the job.
        body: The request of the API's operation, as JSON.
        archive_uri: Where the source archive is to be uploaded before.
        kind: ``TrainingJob`` or ``HyperParameterTuningJob``, of which the operation is ``Create…``.
    """

    name: str
    body: str
    archive_uri: str
    kind: str = "TrainingJob"

    def as_body(self) -> Dict[str, Any]:
        """The arguments of boto3's method, such as ``create_training_job``."""
        return dict(json.loads(self.body))

    def __str__(self) -> str:
        return self.body


def default_name(settings: LaunchSettings, now: datetime, *, tunes: bool = False) -> str:
    """Return the name of a job that was given none: that of the source folder and the time.

    Names of training jobs have 63 characters at most, those of tuning jobs 32.
    """
    time = now.strftime("%Y%m%d%H%M%S" if tunes else "%Y-%m-%d-%H-%M-%S-%f")[: 14 if tunes else -3]
    return f"{_base_name(settings)[: 32 - len(time) - 1 if tunes else 39].rstrip('-')}-{time}"


def _base_name(settings: LaunchSettings) -> str:
    folder = Path(settings.source_dir).resolve().name
    return re.sub(r"[^A-Za-z0-9]+", "-", folder).strip("-") or "job"


def create_job_request(
    settings: LaunchSettings,
    account: Account,
    *,
    name: str,
) -> JobRequest:
    """Return the request of a training job. Nothing is read from AWS, and nothing is sent.

    It equals, key by key, what an estimator of SageMaker's SDK 2.257 sends for the same job without debugger and
    profiler, except for the container's entry point, the variable ``LIGHTNING_SM_AUTO`` and the archive's address.

    Args:
        settings: What the job is asked to be.
        account: Where it is sent.
        name: The name of the job.

    Raises:
        LaunchError: The settings contradict each other.
        MetricDefinitionError: SageMaker does not accept the metrics.

    Example::

        >>> settings = LaunchSettings(image="pytorch-2.8-gpu", role="arn:aws:iam::123456789012:role/Trainer",
        ...                           instance_type="ml.g5.xlarge")
        >>> request = create_job_request(settings, Account("us-east-1", "bucket"), name="job-1")
        >>> request.as_body()["ResourceConfig"]["InstanceType"], request.archive_uri
        ('ml.g5.xlarge', 's3://bucket/job-1/launch/sourcedir.tar.gz')
    """
    image = find_image(settings.image, account.region)
    archive = f"s3://{account.bucket}/{name}/{ARCHIVE}"
    own_place = f"s3://{account.bucket}/{name}/checkpoints"
    checkpoints = own_place if settings.checkpoints == "auto" else settings.checkpoints
    algorithm: Dict[str, Any] = {"TrainingImage": image.uri, "TrainingInputMode": "File"}
    if settings.metrics:
        algorithm["MetricDefinitions"] = metric_definitions(settings.metrics)
    if settings.metrics or image.is_aws:
        algorithm["EnableSageMakerMetricsTimeSeries"] = True
    if settings.forward_sigterm:
        algorithm.update(make_entrypoint(DLC_COMMAND if image.is_aws else TOOLKIT_COMMAND).as_request())
    run = _seconds(settings.max_run)
    if settings.distribution == "smp" and not settings.hyperparameters.get("mp_parameters"):
        hint = """For example --mp_parameters '{"partitions": 2, "microbatches": 4, "ddp": true}' after the program."""
        raise LaunchError("--distribution smp needs the hyperparameter mp_parameters.", hint=hint)
    body: Dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "RoleArn": settings.role,
        "HyperParameters": {
            key: json.dumps(value)
            for key, value in {
                # Also after an interruption: the job prefers checkpoints of its own.
                **({"sagemaker.resume": "require"} if settings.from_checkpoint else {}),
                **settings.hyperparameters,
                "sagemaker_submit_directory": archive,
                "sagemaker_program": settings.entry_point,
                "sagemaker_container_log_level": 20,
                "sagemaker_job_name": name,
                "sagemaker_region": account.region,
                **_framework_hyperparameters(settings),
            }.items()
        },
        "InputDataConfig": _channels(settings, account),
        "OutputDataConfig": {"S3OutputPath": f"s3://{account.bucket}/"},
        "ResourceConfig": _resources(settings),
        "StoppingCondition": {
            "MaxRuntimeInSeconds": run,
            **({"MaxWaitTimeInSeconds": run + _DAY} if settings.spot else {}),
        },
        "ProfilerConfig": {"DisableProfiler": True},
        "CheckpointConfig": {} if checkpoints == "none" else {"S3Uri": checkpoints},
        "Environment": {
            "LIGHTNING_SM_AUTO": "1",
            **{
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in settings.environment.items()
            },
        },
        "EnableManagedSpotTraining": settings.spot,
    }
    patch(body, {key: value for key, value in settings.set.items() if not key.startswith(OF_SEARCH)})
    if body.get("EnableNetworkIsolation"):
        # The toolkit cannot download the source, and SageMaker brings it as a channel.
        source = {"S3DataType": "S3Prefix", "S3Uri": archive, "S3DataDistributionType": "FullyReplicated"}
        body.setdefault("InputDataConfig", []).append({"ChannelName": "code", "DataSource": {"S3DataSource": source}})
        body.setdefault("HyperParameters", {})["sagemaker_submit_directory"] = json.dumps(_ISOLATED_ARCHIVE)
    body = {key: value for key, value in body.items() if value not in (None, False, {}, [])}
    return JobRequest(str(body.get("TrainingJobName")), json.dumps(body, indent=2), archive)


def _framework_hyperparameters(settings: LaunchSettings) -> Dict[str, Any]:
    """What SDK v2 adds for ``distribution``, by which the toolkit chooses the launcher."""
    processes = settings.processes_per_host
    unused = {
        "--processes-per-host": processes is not None and settings.distribution not in ("mpi", "smp"),
        "--mpi-options": settings.mpi_options and settings.distribution in ("none", "torch_distributed"),
    }
    for flag in (flag for flag, is_unused in unused.items() if is_unused):
        raise LaunchError(
            f"{flag} has no effect with --distribution {settings.distribution}.",
            hint="Leave it out, or name a distribution that starts mpirun.",
        )
    mpi: Dict[str, Any] = {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_custom_mpi_options": settings.mpi_options,
        **({} if processes is None else {"sagemaker_mpi_num_of_processes_per_host": processes}),
    }
    # SDK 2.221.1 and later rewrite pytorchddp to smdistributed, so the container cannot distinguish them.
    smddp: Dict[str, Any] = {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_distributed_dataparallel_custom_mpi_options": settings.mpi_options,
    }
    sent: Dict[str, Any] = {
        "none": {},
        "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
        "mpi": mpi,
        "smp": {**mpi, "sagemaker_distributed_dataparallel_enabled": False},
        "smdistributed": smddp,
        "pytorchddp": smddp,
    }[settings.distribution]
    groups = settings.distribution_groups
    names = {"sagemaker_distribution_instance_groups": groups} if groups else {}
    kind = {"sagemaker_instance_type": settings.instance_type or None}
    return {**sent, **names, **({} if settings.distribution in ("none", "mpi") else kind)}


def _channels(settings: LaunchSettings, account: Account) -> List[Dict[str, Any]]:
    found = []
    for name, given in settings.channels.items():
        channel = given if isinstance(given, Mapping) else {"uri": given}
        uri = str(channel.get("uri") or "")
        if not uri or not set(channel) <= set(_CHANNEL):
            raise LaunchError(f"The channel {name!r} is {given!r}.", hint=f"Give an address, or {', '.join(_CHANNEL)}.")
        if "://" not in uri:
            uri = address_of_content(Path(uri), f"s3://{account.bucket}/{_base_name(settings)[:39]}/channels/{name}")
        sent = {
            "ChannelName": name,
            "DataSource": _data_source(name, uri, is_sharded=bool(channel.get("sharded"))),
            "InputMode": channel.get("mode"),
            "ContentType": channel.get("content_type"),
        }
        found.append({key: value for key, value in sent.items() if value is not None})
    return found


def _data_source(name: str, uri: str, *, is_sharded: bool) -> Dict[str, Any]:
    match = _FILE_SYSTEM.fullmatch(uri)
    if match is not None:
        return {
            "FileSystemDataSource": {
                "FileSystemId": match["id"],
                "FileSystemType": _FILE_SYSTEM_TYPES[match["kind"]],
                "DirectoryPath": match["path"],
                "FileSystemAccessMode": "ro",
            }
        }
    if not uri.startswith("s3://"):
        raise LaunchError(
            f"The channel {name!r} is {uri!r}.",
            hint="Give s3://BUCKET/PREFIX, fsx://fs-ID/MOUNT/PATH, efs://fs-ID/PATH or a local folder.",
        )
    distribution = "ShardedByS3Key" if is_sharded else "FullyReplicated"
    return {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": distribution}}


def local_channels(settings: LaunchSettings) -> Dict[str, str]:
    """Return the folders, or files, of the channels that ``launch`` uploads, by the names of the channels."""
    places = {
        name: str(given.get("uri", "") if isinstance(given, Mapping) else given)
        for name, given in settings.channels.items()
    }
    return {name: place for name, place in places.items() if "://" not in place}


def _resources(settings: LaunchSettings) -> Dict[str, Any]:
    volume = {"VolumeSizeInGB": settings.volume_size} if settings.volume_size else {}
    if not settings.instance_groups:
        return {"InstanceType": settings.instance_type, "InstanceCount": settings.instances, **volume}
    groups = []
    for text in settings.instance_groups:
        match = _GROUP.fullmatch(text)
        if match is None or settings.instance_type or settings.instances != 1:
            raise LaunchError(
                f"--instance-group is {text!r}, --instance-type {settings.instance_type!r}, and --instances "
                f"{settings.instances}.",
                hint="Write NAME=COUNT:TYPE, as head=1:ml.m5.large, and leave --instance-type and --instances out.",
            )
        groups.append(
            {"InstanceGroupName": match["name"], "InstanceType": match["type"], "InstanceCount": int(match["count"])}
        )
    return {"InstanceGroups": groups, **volume}


def _seconds(given: Any) -> int:
    try:
        return round(read_duration(given))
    except ValueError as error:
        raise LaunchError(f"--max-run: {error}.", hint="Write hours, minutes or seconds, as in 2h30m.") from error


def patch(body: Dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Change fields of a request, each by its path with dots, as a JSON merge patch does (RFC 7396)."""
    for path, value in changes.items():
        change = value
        for key in reversed(path.split(".")):
            change = {key: change}
        _merge(body, change)


def _merge(node: Dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            node.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(node.get(key), dict):
                node[key] = {}
            _merge(node[key], value)
        else:
            node[key] = value
