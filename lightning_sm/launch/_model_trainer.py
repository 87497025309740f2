"""The arguments with which SDK v3's ``ModelTrainer`` sends the job that ``lightning-sm launch`` would send."""

import json
import re
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import LaunchError
from lightning_sm.launch._check import definitions_of
from lightning_sm.launch._request import Account, JobRequest
from lightning_sm.launch._sdks import VALUES_FILE, SettingsLike, as_settings, refuse, request_of, staged

__all__ = ["model_trainer_calls", "model_trainer_kwargs"]

# The driver writes `export SM_HP_NAME='value'`: sagemaker/train/container_drivers/scripts/environment.py
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DISTRIBUTIONS = ("none", "torch_distributed", "mpi")


def model_trainer_kwargs(
    settings: SettingsLike,
    command: Union[str, Sequence[str]] = (),
    *,
    account: Optional[Account] = None,
    stage: Optional[Union[str, Path]] = None,
) -> Dict[str, Any]:
    """Return the arguments of SDK v3's ``sagemaker.train.ModelTrainer`` for a job.

    All are plain values, which ``ModelTrainer`` makes into objects of ``sagemaker.train.configs``, but for
    ``distributed``, which is one of ``sagemaker.train.distributed``. :func:`model_trainer_calls` has the rest. Make
    them anew for each job: the checkpoint prefix is the job's own.

    SDK v3's container scripts end a job before the program starts if the name of a hyperparameter has a dot or a value
    has a single quote. So ``model.lr`` is sent as ``model__lr``, which this package reads as ``model.lr``. What has no
    such name (options such as ``sagemaker.save_every``) and values with a quote go into ``launch_values.yaml`` of the
    staged source, as the last config file; without ``stage`` they are refused. SDK v3's driver for MPI fills the first
    host only; an option that it passes on corrects that. SDK v3 starts its own script in the container, so that SIGTERM
    does not reach the training: set ``sagemaker.max_runtime``.

    Args:
        settings: As for :func:`estimator_kwargs`.
        command: See there.
        account: See there.
        stage: See there.

    Raises:
        LaunchError: The settings contradict each other, or SDK v3 cannot send them.

    Source: ``sagemaker/train/model_trainer.py`` and ``sagemaker/train/container_drivers`` of sagemaker-train 1.27.

    Example::

        >>> given = {"image": "pytorch-2.8-gpu", "role": "arn:aws:iam::123456789012:role/Trainer",
        ...          "instance_type": "ml.g5.xlarge", "source_dir": "examples/cifar10"}
        >>> kwargs = model_trainer_kwargs(
        ...     given, "fit --config config.yaml --model.lr 0.1", account=Account("us-east-1", "bucket")
        ... )  # doctest: +SKIP
        >>> kwargs["hyperparameters"]  # doctest: +SKIP
        {'config': 'config.yaml', 'model__lr': 0.1}
    """
    request, hyperparameters = request_of(settings, command, None, account)
    made, body = request.settings, request.as_body()
    inputs = body.get("InputDataConfig", [])
    _refuse_for_v3(request)
    sent, rest = _for_v3(hyperparameters)
    if rest and not stage:
        raise LaunchError(
            f"SDK v3 cannot send {', '.join(rest)}: its container scripts end a job at such a name or value.",
            hint="Write it in a config file, or give stage=FOLDER, which adds a config file to a copy of the source.",
        )
    if rest:
        configs = sent.get("config", [])
        sent["config"] = [*([configs] if isinstance(configs, str) else configs), VALUES_FILE]
    source = Path(staged(made, stage, rest)) if stage else Path(made.source_dir)
    source_code = {"source_dir": str(source), "entry_script": made.entry_point}
    if (source / "requirements.txt").is_file():
        source_code["requirements"] = "requirements.txt"
    isolated = {
        **({"enable_network_isolation": True} if made.network_isolation else {}),
        **({"enable_inter_container_traffic_encryption": True} if made.encrypt_traffic else {}),
    }
    found: Dict[str, Any] = {
        "training_image": request.image.uri,
        "role": made.role,
        "base_job_name": made.name or made.base_name,
        "source_code": source_code,
        "compute": {**_snake(body["ResourceConfig"]), **({"enable_managed_spot_training": True} if made.spot else {})},
        "networking": {**_snake(body.get("VpcConfig", {})), **isolated},
        "stopping_condition": _snake(body["StoppingCondition"]),
        "output_data_config": _snake(body["OutputDataConfig"]),
        "checkpoint_config": _snake(body.get("CheckpointConfig", {})),
        "input_data_config": _snake([each for each in inputs if each["ChannelName"] in made.channels]),
        "training_input_mode": made.input_mode,
        "environment": body.get("Environment", {}),
        "hyperparameters": sent,
        "tags": _snake(body.get("Tags", [])),
    }
    found = {key: value for key, value in found.items() if value}
    if made.distribution != "none":
        found["distributed"] = _distributed_of_v3(request)
    return found


def model_trainer_calls(settings: SettingsLike, command: Union[str, Sequence[str]] = ()) -> Dict[str, Any]:
    """Return what a ``ModelTrainer`` takes by methods and not as arguments: metrics, retries, TensorBoard output.

    Args:
        settings: As for :func:`estimator_kwargs`.
        command: See there.

    Returns:
        The argument of each method by its name, for ``getattr(trainer, name)(argument)``.

    Raises:
        LaunchError: The metrics cannot be read from the model.
    """
    made = as_settings(settings)
    definitions = definitions_of(made.metrics, None)
    if "auto" in made.metrics:
        request, _ = request_of(made, command, "job", Account(made.region or "us-east-1", "bucket"))
        definitions = request.as_body()["AlgorithmSpecification"]["MetricDefinitions"]
    found: Dict[str, Any] = {}
    if not (definitions or made.retries or made.tensorboard_output):
        return found
    from sagemaker.core.training import configs

    if definitions:
        found["with_metric_definitions"] = [
            configs.MetricDefinition(name=each["Name"], regex=each["Regex"]) for each in definitions
        ]
    if made.retries:
        found["with_retry_strategy"] = configs.RetryStrategy(maximum_retry_attempts=made.retries)
    if made.tensorboard_output:
        found["with_tensorboard_output_config"] = configs.TensorBoardOutputConfig(
            s3_output_path=made.tensorboard_output
        )
    return found


def _refuse_for_v3(request: JobRequest) -> None:
    settings = request.settings
    count = sum(each.count for each in request.instances)
    missing = {
        f"--distribution {settings.distribution}": settings.distribution not in _DISTRIBUTIONS,
        "--distribution-group": bool(settings.distribution_groups),
        "--mlflow-arn": settings.mlflow_arn is not None,
        "--from-checkpoint": settings.from_checkpoint is not None,
    }
    refuse("SDK v3", missing)
    if settings.distribution == "mpi" and count > 1 and settings.processes_per_host is None:
        raise LaunchError(
            "SDK v3's driver for MPI fills the first host only, and how many processes the others get is not known.",
            hint="Give --processes-per-host.",
        )
    wrong = [name for name in settings.channels if not re.fullmatch(r"[A-Za-z0-9_]+", name)]
    if wrong:
        raise LaunchError(
            f"SDK v3's container scripts end a job at the channel {wrong[0]!r}.",
            hint="Name it with letters, digits and _: the name becomes a part of a shell variable.",
        )


def _distributed_of_v3(request: JobRequest) -> Any:
    try:
        from sagemaker.train.distributed import MPI, Torchrun
    except ImportError as error:
        raise LaunchError(
            "SDK v3 is not installed, which describes launchers by classes of its own.", hint="pip install sagemaker"
        ) from error
    settings = request.settings
    if settings.distribution == "torch_distributed":
        return Torchrun()
    options = settings.mpi_options.split()
    count = sum(each.count for each in request.instances)
    if count > 1 and settings.processes_per_host:
        # The driver's own -np is that of one host; the last one on mpirun's command line is taken.
        options += ["-np", str(count * settings.processes_per_host)]
    return MPI(process_count_per_node=settings.processes_per_host, mpi_additional_options=options or None)


def _for_v3(hyperparameters: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Hyperparameters by names that SDK v3 can send, and those that it cannot."""
    sent: Dict[str, Any] = {}
    rest: Dict[str, Any] = {}
    for name, value in hyperparameters.items():
        flat = name.replace(".", "__")
        comes_back = flat == name or flat.replace("__", ".") == name
        if comes_back and _NAME.fullmatch(flat) and not is_reserved(flat) and "'" not in _as_exported(value):
            sent[flat] = _as_sent(value)
        else:
            rest[name] = value
    return sent, rest


def _as_sent(value: Any) -> Any:
    """A text that reads as JSON is sent as JSON, because the container decodes it."""
    if not isinstance(value, str):
        return value
    try:
        decoded = json.loads(value)
    except ValueError:
        return value
    return json.dumps(value) if isinstance(decoded, (str, list, dict)) else value


def _as_exported(value: Any) -> str:
    """What the container scripts write between single quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _snake(value: Any) -> Any:
    """Names of the API as SDK v3 spells them: ``S3OutputPath`` is ``s3_output_path``."""
    if isinstance(value, Mapping):
        return {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): _snake(each) for name, each in value.items()}
    return [_snake(each) for each in value] if isinstance(value, list) else value
