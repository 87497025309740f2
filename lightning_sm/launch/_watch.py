"""Shows what a job does: its states, the lines that its hosts write to CloudWatch, the numbers of a tuning job."""

import heapq
import re
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from lightning_sm.launch._log_lines import parse_lines
from lightning_sm.launch._send import api_errors, call

__all__ = ["follow"]

_GROUP = "/aws/sagemaker/TrainingJobs"
_ENDED = ("Completed", "Failed", "Stopped", "DeleteFailed")
# What the API's counters of a tuning job's training jobs mean.
_COUNTERS = {
    "Completed": "completed",
    "InProgress": "in progress",
    "RetryableError": "to be retried",
    "NonRetryableError": "failed",
    "Stopped": "stopped",
}
# CloudWatch shows the last lines of a job some seconds after its end.
_QUIET_POLLS = 3
# boto3 waits longer each time, up to 20 seconds: half an hour in all.
_RETRIES = {"mode": "standard", "total_max_attempts": 100}
# Events of one request; the service's own maximum.
_EVENTS = 10_000


def follow(
    session: Any,
    name: str,
    kind: str = "TrainingJob",
    *,
    poll_seconds: float = 5.0,
    write: Callable[[str], None] = partial(print, flush=True),
    wait: bool = True,
) -> int:
    """Show a job until it ends: the states and lines of a training job, the numbers and best job of a tuning job.

    Where AWS limits the calls, or the network is away for less than half an hour, it goes on where it was. Ctrl-C
    detaches.

    Args:
        session: A boto3 session.
        name: The name of the job.
        kind: ``TrainingJob`` or ``HyperParameterTuningJob``.
        poll_seconds: The time between two looks, in seconds.
        write: Takes each line; by default it is printed at once, also where a file or a CI job reads.
        wait: Whether to go on until the job ends; otherwise what is there is shown.

    Returns:
        An exit status: 1 where the job has ended otherwise than completed, 130 after Ctrl-C, else 0.

    Raises:
        LaunchError: A call failed otherwise.
    """
    try:
        for line in _lines(session, name, kind, poll_seconds, wait):
            write(line)
    except KeyboardInterrupt:
        print(
            f"\nThe job goes on. `lightning-sm logs {name} --follow` shows it, `lightning-sm stop {name}` ends it.",
            file=sys.stderr,
        )
        return 130
    return int(line.startswith(tuple(f"{name}: {state}" for state in _ENDED if state != "Completed")))


def _lines(session: Any, name: str, kind: str, poll_seconds: float, wait: bool) -> Iterator[str]:
    """Yield what is new about a job; the last line is its name and state."""
    from botocore.config import Config

    patient, trains = Config(retries=_RETRIES), kind == "TrainingJob"
    describe = call(session.client("sagemaker", config=patient), f"Describe{kind}")
    logs = session.client("logs", config=patient)
    tokens: Dict[str, Optional[str]] = {}
    shown: Dict[str, str] = {}
    quiet = 0
    while True:
        with api_errors(f"sagemaker:Describe{kind} for {name}"):
            job = describe(**{f"{kind}Name": name})
            state = str(job[f"{kind}Status"])
        quiet += 1
        # SageMaker writes the message of a state again while it lasts.
        for what, line in _transitions(job) if trains else _numbers(job):
            if shown.get(what) != line:
                yield line
            shown[what] = line
        with api_errors(f"logs:GetLogEvents for {name}"):
            for line in _new_lines(logs, name, tokens) if trains else ():
                yield line
                quiet = 0
        if not wait or (state in _ENDED and (quiet >= _QUIET_POLLS or not trains)):
            billed = f"billed {job['BillableTimeInSeconds']} s" if job.get("BillableTimeInSeconds") else ""
            yield ". ".join(filter(None, (f"{name}: {state}", billed, str(job.get("FailureReason") or ""))))
            return
        time.sleep(poll_seconds)


def _new_lines(client: Any, name: str, tokens: Dict[str, Optional[str]]) -> Iterator[str]:
    """Yield the lines of all hosts since the last call, in the order of their times, with host and, of mpirun, rank.

    A page of each host is in memory at a time.

    Args:
        client: boto3's client of CloudWatch Logs.
        name: The name of the job.
        tokens: Where the log of each host was read to, which is changed.
    """
    pages = client.get_paginator("describe_log_streams")
    # The group appears with the first line of the account's first job.
    with suppress(client.exceptions.ResourceNotFoundException):
        for page in pages.paginate(logGroupName=_GROUP, logStreamNamePrefix=f"{name}/"):
            for stream in page["logStreams"]:
                tokens.setdefault(stream["logStreamName"], None)
    for _, _, line in heapq.merge(*(_events(client, stream, tokens) for stream in sorted(tokens))):
        yield line


def _events(client: Any, stream: str, tokens: Dict[str, Optional[str]]) -> Iterator[Tuple[int, str, str]]:
    host = re.sub(r"-\d+$", "", stream.rpartition("/")[2])
    while True:
        token = tokens[stream]
        more = {"nextToken": token} if token else {}
        page = client.get_log_events(
            logGroupName=_GROUP, logStreamName=stream, startFromHead=True, limit=_EVENTS, **more
        )
        for event in page["events"]:
            for line in parse_lines(host, event["message"]):
                yield event["timestamp"], host, str(line)
        # Pages before the last may be empty; the last one is given again, with the token that was sent.
        tokens[stream] = page["nextForwardToken"]
        if page["nextForwardToken"] == token:
            return


def _transitions(job: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    """The states that a training job has had, each with its place and as a line."""
    for place, each in enumerate(job.get("SecondaryStatusTransitions", ())):
        text = str(each.get("StatusMessage") or "")
        yield str(place), f"{each['StartTime']:%Y-%m-%d %H:%M:%S} {each['Status']}{': ' + text if text else ''}"


def _numbers(job: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    """The numbers of a tuning job's training jobs, and the best one."""
    counters = job.get("TrainingJobStatusCounters") or {}
    counted = [f"{counters[key]} {text}" for key, text in _COUNTERS.items() if counters.get(key)]
    most = job["HyperParameterTuningJobConfig"]["ResourceLimits"].get("MaxNumberOfTrainingJobs")
    yield "jobs", f"Training jobs of {most or '?'}: {', '.join(counted) or 'none yet'}"
    best = job.get("BestTrainingJob") or {}
    metric = best.get("FinalHyperParameterTuningJobObjectiveMetric")
    if metric:
        values = ", ".join(f"{key}={value}" for key, value in sorted((best.get("TunedHyperParameters") or {}).items()))
        yield "best", f"Best so far: {best['TrainingJobName']}, {metric['MetricName']}={metric['Value']:g} ({values})"
