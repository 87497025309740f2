"""The body of a CreateHyperParameterTuningJob request, and the training jobs that such a tuning job may start."""

import json
import math
import random
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Tuple

from lightning_sm._options import as_number
from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import LaunchError
from lightning_sm.launch._request import OF_SEARCH, Account, JobRequest, create_job_request, patch
from lightning_sm.launch._settings import LaunchSettings, TuningSettings

__all__ = ["create_tuning_request", "draw"]

_SCALES = {"auto": "Auto", "linear": "Linear", "log": "Logarithmic", "reverse_log": "ReverseLogarithmic"}


def create_tuning_request(
    settings: LaunchSettings,
    tuning: TuningSettings,
    account: Account,
    *,
    name: str,
) -> JobRequest:
    """Return the request of a tuning job. Nothing is read from AWS, and nothing is sent.

    Its training jobs are those of :func:`create_job_request`, without what the API of tuning jobs has no field for: the
    entry point of the container. All of them would have one prefix for checkpoints, so that they have none unless
    ``checkpoints`` is an address. ``set`` may name fields of the tuning job, too.

    It equals, key by key, what ``HyperparameterTuner`` of SageMaker's SDK 2.257 sends, except for the address of the
    archive, the hyperparameters ``sagemaker_estimator_class_name`` and ``sagemaker_estimator_module``, which only that
    SDK reads, and numbers and booleans among the values of a list, which that SDK makes text.

    Args:
        settings: What each training job is asked to be.
        tuning: What is searched.
        account: Where it is sent.
        name: The name of the tuning job.

    Raises:
        LaunchError: The settings contradict each other.
        MetricDefinitionError: SageMaker does not accept the metrics.
    """
    if settings.from_checkpoint:
        raise LaunchError("--from-checkpoint is for one training job.", hint="Leave it out.")
    fixed = {key.replace("__", ".") for key in settings.hyperparameters}
    for key in tuning.ranges:
        if key.replace("__", ".") in fixed:
            raise LaunchError(f"--range {key} and a hyperparameter set one key.", hint="Leave one of them out.")
    settings = replace(
        settings,
        forward_sigterm=False,
        checkpoints="none" if settings.checkpoints == "auto" else settings.checkpoints,
        metrics=[tuning.objective, *settings.metrics],
    )
    job = create_job_request(settings, account, name=name)
    definition = job.as_body()
    for key in ("TrainingJobName", "ProfilerConfig"):
        definition.pop(key, None)
    definition.get("AlgorithmSpecification", {}).pop("EnableSageMakerMetricsTimeSeries", None)
    definition["StaticHyperParameters"] = definition.pop("HyperParameters", {})
    definition["HyperParameterTuningResourceConfig"] = definition.pop("ResourceConfig", {})
    tags = {"Tags": definition.pop("Tags")} if "Tags" in definition else {}
    body: Dict[str, Any] = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": _search(tuning),
        "TrainingJobDefinition": definition,
        **tags,
    }
    patch(body, {key: value for key, value in settings.set.items() if key.startswith(OF_SEARCH)})
    return JobRequest(name, json.dumps(body, indent=2), job.archive_uri, "HyperParameterTuningJob")


def _search(tuning: TuningSettings) -> Dict[str, Any]:
    ranges: Dict[str, List[Dict[str, Any]]] = {"Categorical": [], "Continuous": [], "Integer": []}
    for name, given in tuning.ranges.items():
        kind, sent = _range(name, given)
        ranges[kind].append({"Name": name, **sent})
    jobs = tuning.max_jobs
    # https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-how-it-works.html
    if tuning.strategy == "Grid" and (ranges["Continuous"] or ranges["Integer"]):
        raise LaunchError(
            "--strategy Grid takes lists of values, and a range has ends.", hint="Write it as a list, as [1, 2, 4]."
        )
    if tuning.strategy == "Grid" and jobs is None:
        jobs = math.prod(len(each["Values"]) for each in ranges["Categorical"])
    return {
        "Strategy": tuning.strategy,
        "HyperParameterTuningJobObjective": {"Type": str(tuning.direction).title(), "MetricName": tuning.objective},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": jobs, "MaxParallelTrainingJobs": tuning.max_parallel_jobs},
        "ParameterRanges": {f"{kind}ParameterRanges": found for kind, found in ranges.items()},
        "TrainingJobEarlyStoppingType": "Off",
    }


def _range(name: str, given: Any) -> Tuple[str, Dict[str, Any]]:
    """Return the kind of a range and the range as the API has it."""
    if is_reserved(name):
        raise LaunchError(
            f"--range has the name {name!r}.", hint="It is one of SageMaker's own; name a key as model.lr."
        )
    if isinstance(given, list):
        return "Categorical", {"Values": list(dict.fromkeys(json.dumps(as_number(each)) for each in given))}
    wanted = dict(given) if isinstance(given, Mapping) else {}
    low, high = (as_number(wanted.pop(end, None)) for end in ("min", "max"))
    scale, kind = wanted.pop("scale", "auto"), wanted.pop("type", None)
    if wanted or not all(type(end) in (int, float) for end in (low, high)) or scale not in _SCALES:
        raise LaunchError(
            f"--range {name} is {given!r}.",
            hint=f"Give a list of values, or {{min: 1e-5, max: 0.1, scale: log}}; scales are {', '.join(_SCALES)}.",
        )
    has_float = float in (type(low), type(high))
    if kind is None and has_float:
        kind = "continuous"
    if kind not in ("integer", "continuous") or (kind == "integer" and has_float):
        raise LaunchError(
            f"--range {name} from {low} to {high} has the type {kind}.",
            hint="Give type: continuous, or type: integer with integer ends.",
        )
    # https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-define-ranges.html
    is_scaled = {"log": low > 0, "reverse_log": 0 <= low <= high < 1}.get(scale, True)
    if not (is_scaled and -math.inf < low <= high < math.inf):
        raise LaunchError(
            f"--range {name} from {low} to {high} cannot have the scale {scale}.",
            hint="Ends are finite, max is not below min; log needs numbers above 0, reverse_log from 0 to below 1.",
        )
    return kind.title(), {"MinValue": str(low), "MaxValue": str(high), "ScalingType": _SCALES[scale]}


def draw(request: JobRequest, seed: int) -> JobRequest:
    """Return the request of one training job of a tuning job, with values drawn from its ranges.

    The service makes such requests itself: numbers are text without quotes, the name is that of the tuning job with a
    number and a hash, and the hyperparameter ``_tuning_objective_metric`` names the objective.

    Args:
        request: The request of the tuning job.
        seed: The seed of the values; the same gives the same.
    """
    numbers, body = random.Random(seed), request.as_body()
    search, job = body["HyperParameterTuningJobConfig"], body["TrainingJobDefinition"]
    name = f"{request.name}-001-{numbers.getrandbits(32):08x}"
    values = {
        each["Name"]: _drawn(kind, each, numbers) for kind, found in search["ParameterRanges"].items() for each in found
    }
    values["_tuning_objective_metric"] = search["HyperParameterTuningJobObjective"]["MetricName"]
    job["HyperParameters"] = {**job.pop("StaticHyperParameters"), **values}
    job["ResourceConfig"] = job.pop("HyperParameterTuningResourceConfig")
    return JobRequest(name, json.dumps({"TrainingJobName": name, **job}, indent=2), request.archive_uri)


def _drawn(kind: str, given: Mapping[str, Any], numbers: random.Random) -> str:
    """A value of a range as a training job gets it. The scale ``Auto`` is taken for ``Linear``."""
    if kind == "AutoParameters":  # for which Autotune finds a range around this value; `set` names them
        return str(given["ValueHint"])
    if "Values" in given:
        return str(numbers.choice(given["Values"]))
    low, high = float(given["MinValue"]), float(given["MaxValue"])
    if given["ScalingType"] == "Logarithmic":
        value = math.exp(numbers.uniform(math.log(low), math.log(high)))
    elif given["ScalingType"] == "ReverseLogarithmic":
        value = 1 - math.exp(numbers.uniform(math.log(1 - high), math.log(1 - low)))
    else:
        value = numbers.uniform(low, high)
    value = min(high, max(low, value))
    return str(round(value)) if kind.startswith("Integer") else str(value)
