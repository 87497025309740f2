"""The arguments with which an estimator of SageMaker's SDK v2 sends the job that ``lightning-sm launch`` would send."""

from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from lightning_sm.launch._request import Account, JobRequest
from lightning_sm.launch._sdks import SettingsLike, as_settings, refuse, request_of, staged
from lightning_sm.launch._settings import LaunchSettings, as_channel, data_source, local_channels
from lightning_sm.launch._upload import bucket_and_key

__all__ = ["estimator_inputs", "estimator_kwargs"]


def estimator_kwargs(
    settings: SettingsLike,
    command: Union[str, Sequence[str]] = (),
    *,
    name: Optional[str] = None,
    account: Optional[Account] = None,
    stage: Optional[Union[str, Path]] = None,
) -> Dict[str, Any]:
    """Return the arguments of SDK v2's ``sagemaker.pytorch.PyTorch`` for a job.

    The estimator then sends, key by key, what ``lightning-sm launch`` sends for the same settings. The SDK is imported
    only for instance groups and a TensorBoard output, which it wants as objects of its own.

    Args:
        settings: The path of a ``launch.yaml``, its content, or settings.
        command: The words of the command that the job runs, such as ``fit --config config.yaml``.
        name: The name of the job, which its checkpoint prefix contains: give the same as ``job_name`` to ``fit``.
        account: Where the job is sent; by default as the AWS configuration says.
        stage: A new or empty folder, into which the source is copied as ``launch`` packs it: without what git ignores,
            with a wheel of this package. By default the SDK packs the source folder as it is.

    Raises:
        LaunchError: The settings contradict each other, or SDK v2 cannot send them.

    Source: ``sagemaker/pytorch/estimator.py`` and ``sagemaker/estimator.py`` of aws/sagemaker-python-sdk 2.257.

    Example::

        >>> given = {"image": "pytorch-2.8-gpu", "role": "arn:aws:iam::123456789012:role/Trainer", "spot": True,
        ...          "instance_type": "ml.g5.xlarge", "source_dir": "examples/cifar10"}
        >>> kwargs = estimator_kwargs(
        ...     given, "fit --config config.yaml", name="job-1", account=Account("us-east-1", "bucket")
        ... )  # doctest: +SKIP
        >>> kwargs["hyperparameters"], kwargs["checkpoint_s3_uri"]  # doctest: +SKIP
        ({'config': 'config.yaml'}, 's3://bucket/job-1/checkpoints')
    """
    request, hyperparameters = request_of(settings, command, name, account)
    made = request.settings
    _refuse_for_v2(request)
    body = request.as_body()
    algorithm, resources, limits = body["AlgorithmSpecification"], body["ResourceConfig"], body["StoppingCondition"]
    bucket, _ = bucket_and_key(request.archive_uri)
    found: Dict[str, Any] = {
        "entry_point": made.entry_point,
        "source_dir": staged(made, stage, {}) if stage else made.source_dir,
        "code_location": f"s3://{bucket}",
        "role": made.role,
        "image_uri": request.image.uri,
        "hyperparameters": hyperparameters,
        "base_job_name": made.base_name,
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "keep_alive_period_in_seconds": resources.get("KeepAlivePeriodInSeconds"),
        "training_plan": resources.get("TrainingPlanArn"),
        "volume_kms_key": made.volume_kms_key,
        "max_run": limits["MaxRuntimeInSeconds"],
        "max_wait": limits.get("MaxWaitTimeInSeconds"),
        "use_spot_instances": made.spot or None,
        "max_retry_attempts": made.retries or None,
        "input_mode": made.input_mode,
        "output_path": body["OutputDataConfig"]["S3OutputPath"],
        "output_kms_key": made.output_kms_key,
        "checkpoint_s3_uri": body.get("CheckpointConfig", {}).get("S3Uri"),
        "environment": body.get("Environment"),
        "metric_definitions": algorithm.get("MetricDefinitions"),
        "enable_sagemaker_metrics": algorithm.get("EnableSageMakerMetricsTimeSeries"),
        "subnets": made.subnets or None,
        "security_group_ids": made.security_groups or None,
        "encrypt_inter_container_traffic": made.encrypt_traffic or None,
        "enable_network_isolation": made.network_isolation or None,
        "tags": body.get("Tags"),
        "container_entry_point": algorithm.get("ContainerEntrypoint"),
        "container_arguments": algorithm.get("ContainerArguments"),
        "disable_profiler": True,
    }
    found = {key: value for key, value in found.items() if value is not None}
    groups = _groups_of_v2(request)
    if groups:
        found["instance_groups"] = list(groups.values())
    if made.distribution != "none":
        found["distribution"] = _distribution_of_v2(made, groups)
    if made.tensorboard_output:
        from sagemaker.debugger import TensorBoardOutputConfig

        found["tensorboard_output_config"] = TensorBoardOutputConfig(made.tensorboard_output)
    # Its hooks need smdebug in the container, and fail with the torch of today.
    return {**found, "volume_size": made.volume_size or None, "debugger_hook_config": False}


def estimator_inputs(settings: SettingsLike) -> Dict[str, Any]:
    """Return the inputs of SDK v2's ``fit`` for the channels of the settings.

    Args:
        settings: As for :func:`estimator_kwargs`.

    Raises:
        LaunchError: A channel has no address.

    Example::

        >>> estimator_inputs({"channels": {"training": "s3://bucket/cifar10"}})
        {'training': 's3://bucket/cifar10'}
    """
    found: Dict[str, Any] = {}
    made = as_settings(settings)
    refuse("SDK v2", {"a local folder as a channel": bool(local_channels(made))})
    for name, given in made.channels.items():
        channel = as_channel(name, given)
        files = data_source(channel).get("FileSystemDataSource")
        if files is not None:
            from sagemaker.inputs import FileSystemInput

            found[name] = FileSystemInput(files["FileSystemId"], files["FileSystemType"], files["DirectoryPath"])
        elif channel.mode or channel.sharded or channel.content_type:
            from sagemaker.inputs import TrainingInput

            found[name] = TrainingInput(
                channel.uri,
                distribution="ShardedByS3Key" if channel.sharded else "FullyReplicated",
                content_type=channel.content_type,
                input_mode=channel.mode,
            )
        else:
            found[name] = channel.uri
    return found


def _refuse_for_v2(request: JobRequest) -> None:
    settings = request.settings
    is_grouped = bool(settings.instance_groups)
    missing = {
        "several instance types": len(settings.instance_type) > 1,
        "--max-pending": settings.max_pending is not None,
        "--mlflow-arn": settings.mlflow_arn is not None,
        "--from-checkpoint": settings.from_checkpoint is not None,
        "--instance-group with checkpoints": is_grouped and "CheckpointConfig" in request.as_body(),
        "--instance-group with torch_distributed": is_grouped and settings.distribution == "torch_distributed",
    }
    refuse("SDK v2", missing)


def _groups_of_v2(request: JobRequest) -> Dict[str, Any]:
    if not request.instances[0].group:
        return {}
    from sagemaker.instance_group import InstanceGroup

    return {str(each.group): InstanceGroup(each.group, each.type, each.count) for each in request.instances}


def _distribution_of_v2(settings: LaunchSettings, groups: Mapping[str, Any]) -> Dict[str, Any]:
    options = {"custom_mpi_options": settings.mpi_options} if settings.mpi_options else {}
    chosen = [groups[name] for name in settings.distribution_groups]
    among = {"instance_groups": chosen} if chosen else {}
    if settings.distribution == "mpi":
        count = settings.processes_per_host
        processes = {} if count is None else {"processes_per_host": count}
        return {"mpi": {"enabled": True, **processes, **options}, **among}
    if settings.distribution == "smdistributed":
        return {"smdistributed": {"dataparallel": {"enabled": True, **options}, **among}}
    return {settings.distribution: {"enabled": True, **options}, **among}
