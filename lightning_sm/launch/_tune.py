"""The command ``lightning-sm tune``."""

from datetime import datetime
from typing import Optional, Sequence

from lightning_sm.errors import LaunchError
from lightning_sm.launch._check import definitions_of, look_at
from lightning_sm.launch._command import pack_and_send, warn_of_secrets
from lightning_sm.launch._line import ReadLine
from lightning_sm.launch._project import is_logged
from lightning_sm.launch._refusals import check_job, check_limits
from lightning_sm.launch._send import account_of, session_for
from lightning_sm.launch._tuning import TuningRequest, TuningSettings, create_tuning_request, default_tuning_name
from lightning_sm.launch._watch import follow_until_interrupted, line_writer
from lightning_sm.launch._words import LaunchArguments, exit_status, read_words

__all__ = ["check_tuning_request", "tune"]

# https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html: those that cannot be raised.
_MAX_RANGES, _MAX_METRICS, _MAX_PARALLEL = 30, 20, 100
_MAX_JOBS = {"Random": 10_000}
_MAX_JOBS_OF_OTHERS = 750


def tune(words: Sequence[str]) -> int:
    """Run ``lightning-sm tune`` and return its exit status: 0, or 1 after an error, which is one line on stderr.

    Args:
        words: The words behind ``lightning-sm tune``.
    """
    return exit_status("lightning-sm tune", lambda: _tune(read_words(words, command="tune")))


def _tune(arguments: LaunchArguments) -> int:
    settings, tuning = arguments.settings, arguments.tuning or TuningSettings()
    session = session_for(settings)
    account = account_of(settings, session)
    name = settings.name or default_tuning_name(settings, datetime.now())

    def made(line: Optional[ReadLine] = None) -> TuningRequest:
        return create_tuning_request(
            settings,
            tuning,
            account,
            name=name,
            hyperparameters=arguments.hyperparameters,
            metric_definitions=definitions_of([tuning.objective, *settings.metrics], line),
        )

    request = made()
    check_tuning_request(request, tuning)
    if arguments.check or "auto" in settings.metrics:
        line = look_at(request.draw(0))
        if tuning.objective not in settings.metrics and not is_logged(tuning.objective, line):
            raise LaunchError(
                f"--objective is {tuning.objective!r}, and {line.model} logs {', '.join(line.logged)}.",
                hint="Name one of these; --metric defines one that a callback logs.",
            )
        request = made(line)
        check_tuning_request(request, tuning)
    shown = request if arguments.draw is None else request.draw(arguments.draw)
    warn_of_secrets(shown, "tune")
    if arguments.dry_run or arguments.draw is not None:
        print(shown)
        return 0
    job = pack_and_send(request, settings, session, account)
    print(job.show(as_json=arguments.as_json))
    return (
        follow_until_interrupted(session, job.name, kind=job.kind, write=line_writer(as_json=arguments.as_json))
        if arguments.wait
        else 0
    )


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
