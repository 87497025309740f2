"""``JobRequest``: the CreateTrainingJob request of a job, made from the settings before anything is sent."""

import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._sagemaker.entrypoint import DLC_COMMAND, TOOLKIT_COMMAND, make_entrypoint
from lightning_sm.errors import LaunchError
from lightning_sm.launch._framework import encode_hyperparameters, framework_hyperparameters
from lightning_sm.launch._images import Image, find_image
from lightning_sm.launch._settings import (
    Instances,
    LaunchSettings,
    as_channel,
    as_instances,
    data_source,
    local_channels,
    refuse_missing,
)
from lightning_sm.launch._upload import address_of_content

__all__ = ["Account", "JobRequest", "Request", "create_job_request", "default_name", "legal_base"]

_CODE_CHANNEL = "code"
_ISOLATED_ARCHIVE = "/opt/ml/input/data/code/sourcedir.tar.gz"
_DAY = 86_400


@dataclass(frozen=True)
class Account:
    """Where the job is sent.

    Args:
        region: The region.
        bucket: The bucket for source, checkpoints and output.
        number: The number of the account where the bucket is the account's default one, which is made if it is missing.
    """

    region: str
    bucket: str
    number: Optional[str] = None


@dataclass(frozen=True)
class Request:
    """What is sent to SageMaker.

    Args:
        name: The name of the job.
        body: The request of ``Create`` and the kind, such as CreateTrainingJob, as JSON.
        archive_uri: Where the source archive is to be uploaded before.
    """

    name: str
    body: str
    archive_uri: str
    kind: ClassVar[str] = "TrainingJob"

    def as_body(self) -> Dict[str, Any]:
        """The arguments of boto3's method, such as ``create_training_job``."""
        read: Dict[str, Any] = json.loads(self.body)
        return read

    def __str__(self) -> str:
        return self.body


@dataclass(frozen=True)
class JobRequest(Request):
    """A training job as it is sent.

    Args:
        name: The name of the job.
        body: The CreateTrainingJob request, as JSON.
        archive_uri: Where the source archive is to be uploaded before.
        image: The training image.
        instances: The instances.
        settings: What the request was made from.
    """

    image: Image
    instances: Tuple[Instances, ...]
    settings: LaunchSettings


def default_name(settings: LaunchSettings, now: datetime) -> str:
    """Return the name of a job that was given none: its base name and the time."""
    return f"{legal_base(settings, 39)}-{now.strftime('%Y-%m-%d-%H-%M-%S')}-{now.microsecond // 1000:03d}"


def legal_base(settings: LaunchSettings, size: int) -> str:
    """Return what a default name begins with: letters, digits and hyphens, ``size`` at most."""
    base = settings.base_name or Path(settings.source_dir).resolve().name
    legal = re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-") or "job"
    return legal[:size].rstrip("-")


def create_job_request(
    settings: LaunchSettings,
    account: Account,
    *,
    name: str,
    hyperparameters: Optional[Mapping[str, Any]] = None,
    metric_definitions: Sequence[Mapping[str, str]] = (),
) -> JobRequest:
    """Return the request of a job. Nothing is read from AWS, and nothing is sent.

    It equals, key by key, what an estimator of SageMaker's SDK 2.257 sends for the same job without debugger and
    profiler, except for the container's entry point.

    Args:
        settings: What the job is asked to be.
        account: Where it is sent.
        name: The name of the job.
        hyperparameters: More hyperparameters, which win over those of the settings.
        metric_definitions: Names and regular expressions of the metrics.

    Raises:
        LaunchError: The settings contradict each other.

    Example::

        >>> settings = LaunchSettings(image="pytorch-2.8-gpu", role="arn:aws:iam::123456789012:role/Trainer",
        ...                           instance_type=["ml.g5.xlarge"])
        >>> request = create_job_request(settings, Account("us-east-1", "bucket"), name="job-1")
        >>> request.as_body()["ResourceConfig"]["InstanceType"], request.archive_uri
        ('ml.g5.xlarge', 's3://bucket/job-1/source/sourcedir.tar.gz')
    """
    refuse_missing(settings)
    image = find_image(settings.image, account.region)
    instances = as_instances(settings)
    archive = f"s3://{account.bucket}/{name}/source/sourcedir.tar.gz"
    body: Dict[str, Any] = {
        "TrainingJobName": name,
        "AlgorithmSpecification": _algorithm(settings, image, metric_definitions),
        "RoleArn": settings.role,
        "HyperParameters": _hyperparameters(settings, account, name, archive, instances, hyperparameters or {}),
        "InputDataConfig": _inputs(settings, account, archive),
        "OutputDataConfig": _without_nothing(
            S3OutputPath=settings.output_path or f"s3://{account.bucket}/", KmsKeyId=settings.output_kms_key
        ),
        "ResourceConfig": _resources(settings, instances),
        "StoppingCondition": _limits(settings),
        "ProfilerConfig": {"DisableProfiler": True},
        "CheckpointConfig": _checkpoints(settings, account, name),
        "Environment": {**({"LIGHTNING_SM_AUTO": "1"} if settings.auto else {}), **settings.environment},
        "Tags": [{"Key": key, "Value": value} for key, value in settings.tags.items()],
        "EnableManagedSpotTraining": settings.spot,
        "EnableNetworkIsolation": settings.network_isolation,
        "EnableInterContainerTrafficEncryption": settings.encrypt_traffic,
    }
    if settings.subnets or settings.security_groups:
        body["VpcConfig"] = {"Subnets": settings.subnets, "SecurityGroupIds": settings.security_groups}
    if settings.retries:
        body["RetryStrategy"] = {"MaximumRetryAttempts": settings.retries}
    if settings.tensorboard_output:
        body["TensorBoardOutputConfig"] = {"S3OutputPath": settings.tensorboard_output}
    if settings.mlflow_arn:
        body["MlflowConfig"] = _without_nothing(
            MlflowResourceArn=settings.mlflow_arn, MlflowExperimentName=settings.mlflow_experiment, MlflowRunName=name
        )
    body = {key: value for key, value in body.items() if value not in (None, False, {}, [])}
    return JobRequest(name, json.dumps(body, indent=2), archive, image, instances, settings)


def _algorithm(settings: LaunchSettings, image: Image, metrics: Sequence[Mapping[str, str]]) -> Dict[str, Any]:
    found = _without_nothing(TrainingImage=image.uri, TrainingInputMode=settings.input_mode)
    if metrics:
        found["MetricDefinitions"] = [dict(each) for each in metrics]
    if settings.metrics_time_series and (metrics or image.is_aws):
        found["EnableSageMakerMetricsTimeSeries"] = True
    if settings.forward_sigterm:
        found.update(make_entrypoint(DLC_COMMAND if image.is_aws else TOOLKIT_COMMAND).as_request())
    return found


def _hyperparameters(
    settings: LaunchSettings,
    account: Account,
    name: str,
    archive: str,
    instances: Sequence[Instances],
    given: Mapping[str, Any],
) -> Dict[str, str]:
    framework = framework_hyperparameters(
        settings.distribution,
        instance_type=None if instances[0].group else instances[0].type,
        processes=settings.processes_per_host if settings.distribution == "mpi" else None,
        mpi_options=settings.mpi_options,
        groups=settings.distribution_groups,
    )
    script = {
        "sagemaker_submit_directory": _ISOLATED_ARCHIVE if settings.network_isolation else archive,
        "sagemaker_program": settings.entry_point,
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": name,
        "sagemaker_region": account.region,
    }
    # Also after an interruption: the job prefers checkpoints of its own.
    resume = {"sagemaker.resume": "require"} if settings.from_checkpoint else {}
    return encode_hyperparameters({**resume, **settings.hyperparameters, **given, **script, **framework})


def _inputs(settings: LaunchSettings, account: Account, archive: str) -> List[Dict[str, Any]]:
    prefix = f"s3://{account.bucket}/{legal_base(settings, 39)}/channels"
    local = {
        name: address_of_content(Path(folder), f"{prefix}/{name}") for name, folder in local_channels(settings).items()
    }
    channels = [as_channel(name, given) for name, given in settings.channels.items()]
    channels = [replace(channel, uri=local.get(channel.name, channel.uri)) for channel in channels]
    found = [
        _without_nothing(
            ChannelName=channel.name,
            DataSource=data_source(channel),
            InputMode=channel.mode,
            ContentType=channel.content_type,
        )
        for channel in channels
    ]
    if settings.network_isolation:
        if any(channel.name == _CODE_CHANNEL for channel in channels):
            raise LaunchError(
                "With --network-isolation the channel 'code' brings the source.", hint="Name your channel otherwise."
            )
        source = {"S3DataType": "S3Prefix", "S3Uri": archive, "S3DataDistributionType": "FullyReplicated"}
        found.append({"ChannelName": _CODE_CHANNEL, "DataSource": {"S3DataSource": source}})
    return found


def _resources(settings: LaunchSettings, instances: Sequence[Instances]) -> Dict[str, Any]:
    found = _without_nothing(
        VolumeSizeInGB=settings.volume_size or None,
        VolumeKmsKeyId=settings.volume_kms_key,
        KeepAlivePeriodInSeconds=settings.seconds("keep_alive"),
    )
    if instances[0].group:
        found["InstanceGroups"] = [
            {"InstanceGroupName": each.group, "InstanceType": each.type, "InstanceCount": each.count}
            for each in instances
        ]
    elif len(instances) > 1:
        plans = {"TrainingPlanArns": [settings.training_plan]} if settings.training_plan else {}
        found["InstancePreferences"] = [
            {"InstanceType": each.type, "InstanceCount": each.count, **plans} for each in instances
        ]
        return found
    else:
        found.update(InstanceType=instances[0].type, InstanceCount=instances[0].count)
    if settings.training_plan:
        found["TrainingPlanArn"] = settings.training_plan
    return found


def _limits(settings: LaunchSettings) -> Dict[str, int]:
    run = settings.seconds("max_run")
    wait = settings.seconds("max_wait")
    if settings.spot and wait is None and run is not None:
        wait = run + _DAY
    if wait is not None and not settings.spot:
        raise LaunchError("--max-wait is for spot instances.", hint="Set --spot, or --max-pending for the wait.")
    if wait is not None and run is not None and wait < run:
        raise LaunchError(
            f"--max-wait {settings.max_wait} is shorter than --max-run {settings.max_run}.",
            hint="It includes the run: give at least as much.",
        )
    return _without_nothing(
        MaxRuntimeInSeconds=run, MaxWaitTimeInSeconds=wait, MaxPendingTimeInSeconds=settings.seconds("max_pending")
    )


def _checkpoints(settings: LaunchSettings, account: Account, name: str) -> Dict[str, str]:
    if settings.checkpoints == "none":
        return {}
    return {
        "S3Uri": f"s3://{account.bucket}/{name}/checkpoints" if settings.checkpoints == "auto" else settings.checkpoints
    }


def _without_nothing(**values: Any) -> Dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
