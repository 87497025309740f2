"""Sends a job, follows it to its end, looks at it, and removes what it made."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, List, Sequence, Set

from lightning_sm.launch import follow, send
from lightning_sm.launch._send import call
from tools.acceptance.jobs import AcceptanceJob
from tools.acceptance.seen import Seen, keys_below, look_at

__all__ = ["remove", "run_job", "stop_job"]

_LOGS = "/aws/sagemaker/TrainingJobs"


def run_job(job: AcceptanceJob, archive: Path, session: Any, tell: Callable[[str], None]) -> Seen:
    """Send a job, wait until it has ended, and return what is to be seen of it.

    Args:
        job: The job. One with ``stop_at`` is stopped when its log has that text.
        archive: The source archive.
        session: A boto3 session of the calling thread's own.
        tell: Takes a line for each state of the job.

    Raises:
        LaunchError: It could not be sent, or a call of the API failed.
    """
    request = job.request
    log: List[str] = []
    tell(f"{job.title}: sent, {send(request, archive, session)['console']}")
    stopping: Set[str] = set()

    def take(line: str) -> None:
        log.append(line)
        if not line.startswith("["):
            tell(f"{job.title}: {line}")
        if job.stop_at is not None and job.stop_at in line and not stopping:
            stopping.add(request.name)
            stop_job(job, session)

    follow(session, request.name, request.kind, write=take)
    return look_at(session, request.name, request.kind, log)


def stop_job(job: AcceptanceJob, session: Any) -> None:
    """Stop a job; one that has ended, or was never sent, stays as it is."""
    from botocore.exceptions import ClientError

    kind = job.request.kind
    with suppress(ClientError):
        call(session.client("sagemaker"), f"Stop{kind}")(**{f"{kind}Name": job.request.name})


def remove(job: AcceptanceJob, seen: Seen, bucket: str, session: Any) -> Sequence[str]:
    """Delete what a job has made: its objects, its log streams and the job itself.

    Returns:
        What could not be deleted, and why.
    """
    from botocore.exceptions import ClientError

    left: List[str] = []

    def attempt(what: str, method: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return method(**arguments)
        except ClientError as error:
            left.append(f"{what} ({error})")
            return {}

    s3, logs, client = (session.client(name) for name in ("s3", "logs", "sagemaker"))
    names = [each.name for each in seen.trainings]
    for name in dict.fromkeys([job.request.name, *names]):
        for key in attempt(f"objects of {name}", keys_below, s3=s3, uri=f"s3://{bucket}/{name}/"):
            attempt(f"s3://{bucket}/{key}", s3.delete_object, Bucket=bucket, Key=key)
    for name in names:
        found = attempt(
            f"log streams of {name}", logs.describe_log_streams, logGroupName=_LOGS, logStreamNamePrefix=f"{name}/"
        )
        for stream in found.get("logStreams", ()):
            stream_name = stream["logStreamName"]
            attempt(f"log stream {stream_name}", logs.delete_log_stream, logGroupName=_LOGS, logStreamName=stream_name)
    for name in names:
        attempt(f"training job {name}", client.delete_training_job, TrainingJobName=name)
    if job.request.kind != "TrainingJob":
        name = job.request.name
        attempt(f"tuning job {name}", client.delete_hyper_parameter_tuning_job, HyperParameterTuningJobName=name)
    return left
