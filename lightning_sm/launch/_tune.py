"""The command ``lightning-sm tune``."""

import sys
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Dict, Iterator, Sequence

from lightning_sm.errors import LaunchError
from lightning_sm.launch._command import pack_and_send
from lightning_sm.launch._refusals import check_job, check_limits
from lightning_sm.launch._request import definitions_of
from lightning_sm.launch._send import account_of, api_errors, clients
from lightning_sm.launch._tuning import TuningRequest, TuningSettings, create_tuning_request, default_tuning_name
from lightning_sm.launch._watch import line_writer, patiently
from lightning_sm.launch._words import LaunchArguments, exit_status, read_words

__all__ = ["check_tuning_request", "follow_tuning", "tune"]

# https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html: those that cannot be raised.
_MAX_RANGES, _MAX_METRICS, _MAX_PARALLEL = 30, 20, 100
_MAX_JOBS = {"Random": 10_000}
_MAX_JOBS_OF_OTHERS = 750
_ENDED = ("Completed", "Failed", "Stopped", "DeleteFailed")
# What the API's counters of training jobs mean.
_COUNTERS = {
    "Completed": "completed",
    "InProgress": "in progress",
    "RetryableError": "to be retried",
    "NonRetryableError": "failed",
    "Stopped": "stopped",
}


def tune(words: Sequence[str]) -> int:
    """Run ``lightning-sm tune`` and return its exit status: 0, or 1 after an error, which is one line on stderr.

    Args:
        words: The words behind ``lightning-sm tune``.
    """
    return exit_status("lightning-sm tune", lambda: _tune(read_words(words, command="tune")))


def _tune(arguments: LaunchArguments) -> int:
    settings, tuning = arguments.settings, arguments.tuning or TuningSettings()
    session, _ = clients(settings.region)
    measured = replace(settings, metrics=[tuning.objective, *settings.metrics])
    request = create_tuning_request(
        settings,
        tuning,
        account_of(settings, session),
        name=settings.name or default_tuning_name(settings, datetime.now()),
        hyperparameters=arguments.hyperparameters,
        metric_definitions=definitions_of(measured, {**settings.hyperparameters, **arguments.hyperparameters}),
    )
    check_tuning_request(request, tuning)
    if arguments.dry_run or arguments.draw is not None:
        print(request if arguments.draw is None else request.draw(arguments.draw))
        return 0
    job = pack_and_send(request, settings, session)
    print(job.show(as_json=arguments.as_json))
    if not arguments.wait:
        return 0
    try:
        return 0 if follow_tuning(session, job.name, write=line_writer(as_json=arguments.as_json)) == "Completed" else 1
    except KeyboardInterrupt:
        print(f"\nThe tuning job goes on: {job.console_url}", file=sys.stderr)
        return 130


def check_tuning_request(request: TuningRequest, tuning: TuningSettings) -> None:
    """Raise if the tuning job, or the training jobs that it starts, could not run as requested.

    Args:
        request: The request.
        tuning: What it was made from.

    Raises:
        LaunchError: They could not. The message says what is set and what is possible.
    """
    job = request.draw(0)
    check_job(job)
    body = request.as_body()
    limits = body["HyperParameterTuningJobConfig"]["ResourceLimits"]
    metrics = body["TrainingJobDefinition"]["AlgorithmSpecification"]["MetricDefinitions"]
    for flag, found, most in (
        ("--range", len(request.ranges), _MAX_RANGES),
        ("--metric", len(metrics), _MAX_METRICS),
        ("--max-jobs", limits["MaxNumberOfTrainingJobs"], _MAX_JOBS.get(tuning.strategy, _MAX_JOBS_OF_OTHERS)),
        ("--max-parallel-jobs", limits["MaxParallelTrainingJobs"], _MAX_PARALLEL),
    ):
        if found > most:
            raise LaunchError(
                f"{flag}: there are {found}, and a tuning job of the strategy {tuning.strategy} has {most} at most.",
                hint="Leave out what matters least.",
            )
    check_limits(body, "CreateHyperParameterTuningJob")
    check_limits(job.as_body(), "CreateTrainingJob")


def follow_tuning(session: Any, name: str, *, poll_seconds: float = 15.0, write: Callable[[str], None] = print) -> str:
    """Show the numbers of training jobs and the best one whenever they change, until the tuning job has ended.

    Args:
        session: A boto3 session.
        name: The name of the tuning job.
        poll_seconds: The time between two looks, in seconds.
        write: Takes each line.

    Returns:
        The last state of the tuning job, such as ``Completed``.

    Raises:
        LaunchError: A call of the API failed.
    """
    client = session.client("sagemaker")
    shown: Dict[str, str] = {}
    while True:
        with api_errors(f"sagemaker:DescribeHyperParameterTuningJob for {name}"):
            job = patiently(client.describe_hyper_parameter_tuning_job, HyperParameterTuningJobName=name)
        for line in _lines(job):
            what = line.partition(":")[0]
            if shown.get(what) != line:
                write(line)
            shown[what] = line
        state = str(job["HyperParameterTuningJobStatus"])
        if state in _ENDED:
            reason = str(job.get("FailureReason") or "")
            write(f"Tuning job {name}: {state}{'. ' + reason if reason else ''}")
            return state
        time.sleep(poll_seconds)


def _lines(job: Dict[str, Any]) -> Iterator[str]:
    counters = job.get("TrainingJobStatusCounters") or {}
    counted = [f"{counters[key]} {text}" for key, text in _COUNTERS.items() if counters.get(key)]
    most = job["HyperParameterTuningJobConfig"]["ResourceLimits"].get("MaxNumberOfTrainingJobs")
    yield f"Training jobs of {most or '?'}: {', '.join(counted) or 'none yet'}"
    best = job.get("BestTrainingJob") or {}
    metric = best.get("FinalHyperParameterTuningJobObjectiveMetric")
    if metric:
        values = ", ".join(f"{key}={value}" for key, value in sorted((best.get("TunedHyperParameters") or {}).items()))
        yield f"Best so far: {best['TrainingJobName']}, {metric['MetricName']}={metric['Value']:g} ({values})"
