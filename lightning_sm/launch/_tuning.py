"""``TuningRequest``: the CreateHyperParameterTuningJob request of a search, and the training jobs that it may start."""

import json
import random
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError
from lightning_sm.launch._ranges import ParameterRange, RangeKind, as_range
from lightning_sm.launch._request import Account, JobRequest, Request, create_job_request, legal_base
from lightning_sm.launch._settings import LaunchSettings, as_seconds, flag_of, typed_values

__all__ = [
    "TuningRequest",
    "TuningSettings",
    "create_tuning_request",
    "default_tuning_name",
    "tuning_settings_of",
]

_NAME_SIZE = 32
_WARM_STARTS = {"identical": "IdenticalDataAndAlgorithm", "transfer": "TransferLearning"}
# What the definition of training jobs in a tuning job has in common with CreateTrainingJob.
_ALGORITHM = ("TrainingImage", "TrainingInputMode", "MetricDefinitions")
_DEFINITION = (
    "RoleArn", "InputDataConfig", "OutputDataConfig", "StoppingCondition", "VpcConfig", "CheckpointConfig",
    "EnableManagedSpotTraining", "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "RetryStrategy",
    "Environment",
)  # fmt: skip
# Settings for which it has no field.
_NOT_IN_TUNING = (
    "instance_groups", "keep_alive", "training_plan", "tensorboard_output", "mlflow_arn", "from_checkpoint",
)  # fmt: skip


@dataclass
class TuningSettings:
    """What a tuning job searches, as options of ``lightning-sm tune`` or in ``launch.yaml`` below ``tuning``.

    Args:
        objective: The metric that is optimized, by the name under which the model logs it.
        direction: ``maximize`` or ``minimize``.
        ranges: The values of each hyperparameter: a list (``[adam, sgd]``), or a mapping with ``min``, ``max``,
            ``scale`` (``auto``, ``linear``, ``log`` or ``reverse_log``) and ``type`` (``integer`` or ``continuous``;
            it may be left out where an end is no integer).
        max_jobs: How many training jobs are started at most.
        max_parallel_jobs: How many of them run at a time.
        max_tuning_time: The time limit of the tuning job.
        strategy: ``Bayesian``, ``Random``, ``Hyperband`` or ``Grid``.
        early_stopping: ``auto`` to let SageMaker stop training jobs that are not promising, or ``off``.
        warm_start: Tuning jobs whose results are the start of the search.
        warm_start_type: ``identical`` if these had the same data and image, else ``transfer``.
        min_resource: The least epochs of a training job, for ``Hyperband``.
        max_resource: The most epochs of a training job, for ``Hyperband``.
        random_seed: The seed of the search.
    """

    objective: str = ""
    direction: str = ""
    ranges: Dict[str, Any] = field(default_factory=dict)
    max_jobs: Optional[int] = None
    max_parallel_jobs: int = 1
    max_tuning_time: Optional[str] = None
    strategy: str = "Bayesian"
    early_stopping: str = "off"
    warm_start: List[str] = field(default_factory=list)
    warm_start_type: Optional[str] = None
    min_resource: Optional[int] = None
    max_resource: Optional[int] = None
    random_seed: Optional[int] = None


@dataclass(frozen=True)
class TuningRequest(Request):
    """A tuning job as it is sent.

    Args:
        name: The name of the tuning job.
        body: The CreateHyperParameterTuningJob request, as JSON.
        archive_uri: Where the source archive is to be uploaded before.
        job: A training job without the values that are searched.
        ranges: The ranges of the search.
        objective: The metric that is optimized.
    """

    job: JobRequest
    ranges: Tuple[ParameterRange, ...]
    objective: str
    kind: ClassVar[str] = "HyperParameterTuningJob"

    def draw(self, seed: int) -> JobRequest:
        """Return the request of one training job of this tuning job, with values drawn from the ranges.

        The service makes such requests itself: numbers are text without quotes, the name is that of the tuning job with
        a number and a hash, and the hyperparameter ``_tuning_objective_metric`` names the objective.

        Args:
            seed: The seed of the values; the same gives the same.
        """
        numbers = random.Random(seed)
        name = f"{self.name}-001-{numbers.getrandbits(32):08x}"
        body = self.job.as_body()
        body["TrainingJobName"] = name
        body["HyperParameters"].update({each.name: each.draw(numbers) for each in self.ranges})
        body["HyperParameters"]["_tuning_objective_metric"] = self.objective
        return replace(self.job, name=name, body=json.dumps(body, indent=2))


def tuning_settings_of(given: Mapping[str, Any]) -> TuningSettings:
    """Return the settings of a mapping, such as ``tuning`` in ``launch.yaml``.

    Args:
        given: The settings by their names; ``-`` and ``_`` are the same in them.

    Raises:
        LaunchError: A name is unknown, a value has another type, or a word is none of those that are possible.
    """
    values = dict(given)
    for name in ("early_stopping", "early-stopping"):
        if values.get(name) is False:
            values[name] = "off"  # which is how YAML reads `off`
    settings = TuningSettings(**typed_values(TuningSettings, values, "tune"))
    if not settings.objective:
        raise LaunchError("There is no --objective.", hint="Name the metric that the model logs, such as val_acc.")
    if not settings.direction:
        raise LaunchError(
            f"There is no --direction for the objective {settings.objective!r}.", hint="Give maximize or minimize."
        )
    for name, known in (
        ("direction", ("maximize", "minimize")),
        ("early_stopping", ("auto", "off")),
        ("strategy", ("Bayesian", "Random", "Hyperband", "Grid")),
        ("warm_start_type", (None, *_WARM_STARTS)),
    ):
        if getattr(settings, name) not in known:
            words = ", ".join(each for each in known if each)
            raise LaunchError(f"{flag_of(name)} is {getattr(settings, name)!r}.", hint=f"Use one of {words}.")
    if bool(settings.warm_start) != bool(settings.warm_start_type):
        raise LaunchError(
            "--warm-start and --warm-start-type belong together.",
            hint="Name the earlier tuning jobs, and identical if they had the same data and image, else transfer.",
        )
    as_seconds("max_tuning_time", settings.max_tuning_time)
    return settings


def default_tuning_name(settings: LaunchSettings, now: datetime) -> str:
    """Return the name of a tuning job that was given none; names of tuning jobs have 32 characters at most."""
    time = now.strftime("%Y%m%d%H%M%S")
    return f"{legal_base(settings, _NAME_SIZE - len(time) - 1)}-{time}"


def create_tuning_request(
    settings: LaunchSettings,
    tuning: TuningSettings,
    account: Account,
    *,
    name: str,
    hyperparameters: Optional[Mapping[str, Any]] = None,
    metric_definitions: Sequence[Mapping[str, str]] = (),
) -> TuningRequest:
    """Return the request of a tuning job. Nothing is read from AWS, and nothing is sent.

    It equals, key by key, what ``HyperparameterTuner`` of SageMaker's SDK 2.257 sends, except for the hyperparameters
    ``sagemaker_estimator_class_name`` and ``sagemaker_estimator_module``, which only that SDK reads, and for numbers
    and booleans among the values of a list, which that SDK makes text.

    Args:
        settings: What each training job is asked to be.
        tuning: What is searched.
        account: Where it is sent.
        name: The name of the tuning job.
        hyperparameters: More hyperparameters, which win over those of the settings.
        metric_definitions: Names and regular expressions of the metrics, among them the objective's.

    Raises:
        LaunchError: The settings contradict each other, or a tuning job cannot have one of them.

    Example::

        >>> settings = LaunchSettings(image="pytorch-2.8-gpu", role="arn:aws:iam::123456789012:role/Trainer",
        ...                           instance_type=["ml.g5.xlarge"])
        >>> tuning = TuningSettings("val_acc", "maximize", {"model.optimizer": ["adam", "sgd"]}, max_jobs=4)
        >>> definitions = [{"Name": "val_acc", "Regex": "val_acc=(.*)"}]
        >>> request = create_tuning_request(settings, tuning, Account("us-east-1", "bucket"), name="tune-1",
        ...                                 metric_definitions=definitions)
        >>> request.draw(0).as_body()["HyperParameters"]["model.optimizer"] in ('"adam"', '"sgd"')
        True
    """
    for each in _NOT_IN_TUNING:
        if getattr(settings, each):
            raise LaunchError(
                f"A tuning job cannot have {flag_of(each)}: CreateHyperParameterTuningJob has no field for it.",
                hint="Leave it out.",
            )
    if settings.checkpoints == "auto":
        # All training jobs would have one prefix, and a job refuses the checkpoints of another.
        settings = replace(settings, checkpoints="none")
    ranges = tuple(as_range(key, given) for key, given in tuning.ranges.items())
    if not ranges:
        raise LaunchError("There is no --range to search.", hint="Write --range 'model.optimizer=[adam, sgd]'.")
    _refuse_fixed(ranges, {**settings.hyperparameters, **(hyperparameters or {})})
    if tuning.objective not in {each["Name"] for each in metric_definitions}:
        raise LaunchError(
            f"The objective {tuning.objective!r} is not among the metric definitions.",
            hint=f"Define it: metric_definitions([{tuning.objective!r}]).",
        )
    job = create_job_request(
        settings, account, name=name, hyperparameters=hyperparameters, metric_definitions=metric_definitions
    )
    whole = job.as_body()
    algorithm = {key: value for key, value in whole["AlgorithmSpecification"].items() if key in _ALGORITHM}
    shared = {key: whole[key] for key in _DEFINITION if key in whole}
    body: Dict[str, Any] = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": _search(tuning, ranges),
        "TrainingJobDefinition": {
            "StaticHyperParameters": whole["HyperParameters"],
            "AlgorithmSpecification": algorithm,
            "HyperParameterTuningResourceConfig": _resources(whole["ResourceConfig"], settings),
            **shared,
        },
    }
    if tuning.warm_start:
        body["WarmStartConfig"] = {
            "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": each} for each in tuning.warm_start],
            "WarmStartType": _WARM_STARTS[str(tuning.warm_start_type)],
        }
    if "Tags" in whole:
        body["Tags"] = whole["Tags"]
    one = {
        "TrainingJobName": name,
        "AlgorithmSpecification": algorithm,
        "HyperParameters": whole["HyperParameters"],
        "ResourceConfig": _of_one(whole["ResourceConfig"]),
        **shared,
    }
    job = replace(job, body=json.dumps(one, indent=2))
    return TuningRequest(name, json.dumps(body, indent=2), job.archive_uri, job, ranges, tuning.objective)


def _refuse_fixed(ranges: Sequence[ParameterRange], fixed: Mapping[str, Any]) -> None:
    keys = {name.replace("__", "."): name for name in fixed}
    for each in ranges:
        name = keys.get(each.name.replace("__", "."))
        if name is not None:
            raise LaunchError(
                f"--range {each.name} and the hyperparameter {name} = {fixed[name]!r} set one key.",
                hint="Leave one of them out.",
            )


def _search(tuning: TuningSettings, ranges: Sequence[ParameterRange]) -> Dict[str, Any]:
    is_grid, is_hyperband = tuning.strategy == "Grid", tuning.strategy == "Hyperband"
    jobs = tuning.max_jobs
    if is_grid:
        jobs = _grid_size(tuning, ranges)
    if not jobs:
        raise LaunchError("There is no --max-jobs.", hint="Say how many training jobs are started at most.")
    seconds = as_seconds("max_tuning_time", tuning.max_tuning_time)
    found: Dict[str, Any] = {
        "Strategy": tuning.strategy,
        "HyperParameterTuningJobObjective": {"Type": tuning.direction.title(), "MetricName": tuning.objective},
        "ResourceLimits": {
            "MaxNumberOfTrainingJobs": jobs,
            "MaxParallelTrainingJobs": tuning.max_parallel_jobs,
            **({} if seconds is None else {"MaxRuntimeInSeconds": seconds}),
        },
        "ParameterRanges": {
            f"{kind.value}ParameterRanges": [each.as_request() for each in ranges if each.kind is kind]
            for kind in RangeKind
        },
        "TrainingJobEarlyStoppingType": tuning.early_stopping.title(),
    }
    if tuning.min_resource and tuning.max_resource and tuning.min_resource > tuning.max_resource:
        raise LaunchError("--min-resource is greater than --max-resource.", hint="They are numbers of epochs.")
    resources = {"MinResource": tuning.min_resource, "MaxResource": tuning.max_resource}
    given = {key: value for key, value in resources.items() if value is not None}
    if given and not is_hyperband:
        raise LaunchError("--min-resource and --max-resource are for Hyperband.", hint="Set --strategy Hyperband.")
    if is_hyperband and tuning.early_stopping == "auto":
        raise LaunchError(
            "--early-stopping auto with Hyperband, which stops training jobs itself.", hint="Leave it out."
        )
    if given:
        found["StrategyConfig"] = {"HyperbandStrategyConfig": given}
    if tuning.random_seed is not None:
        found["RandomSeed"] = tuning.random_seed
    return found


def _grid_size(tuning: TuningSettings, ranges: Sequence[ParameterRange]) -> int:
    """The number of training jobs of a grid search, which has one for each combination."""
    wrong = [each.name for each in ranges if each.kind is not RangeKind.CATEGORICAL]
    if wrong:
        raise LaunchError(
            f"--strategy Grid searches lists of values; {', '.join(wrong)} has no list.", hint="Give [a, b, c]."
        )
    size = 1
    for each in ranges:
        size *= len(each.values)
    if tuning.max_jobs not in (None, size):
        raise LaunchError(
            f"--max-jobs is {tuning.max_jobs}, and the grid has {size} combinations.", hint="Leave --max-jobs out."
        )
    return size


def _resources(resources: Mapping[str, Any], settings: LaunchSettings) -> Dict[str, Any]:
    """``HyperParameterTuningResourceConfig``: of several types of instances SageMaker takes the first that it has."""
    several = resources.get("InstancePreferences")
    if not several:
        return dict(resources)
    volume = {"VolumeSizeInGB": settings.volume_size} if settings.volume_size else {}
    key = {"VolumeKmsKeyId": settings.volume_kms_key} if settings.volume_kms_key else {}
    return {**key, "InstanceConfigs": [{**each, **volume} for each in several]}


def _of_one(resources: Mapping[str, Any]) -> Dict[str, Any]:
    """The instances of one training job."""
    rest = {key: value for key, value in resources.items() if key != "InstancePreferences"}
    return {**rest, **resources["InstancePreferences"][0]} if "InstancePreferences" in resources else rest
