"""Shows what a job does: its states, the lines that its hosts write to CloudWatch, the numbers of a tuning job."""

import heapq
import json
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from lightning_sm.launch._send import api_errors, is_transient

__all__ = ["LogReader", "follow", "follow_tuning", "follow_until_interrupted", "line_writer"]

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
# What Open MPI's --tag-output writes before each line; the name of the host is there too.
_MPI = re.compile(r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[^\]]*)?\]<std\w+>:\s?")
# CloudWatch shows the last lines of a job some seconds after its end.
_QUIET_POLLS = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 60.0
# Events of one request; the service's own maximum.
_EVENTS = 10_000


@dataclass
class LogReader:
    """Reads the new lines of all hosts of a job, in the order of their times.

    Args:
        client: boto3's client of CloudWatch Logs.
        job_name: The name of the job.
        persists: Whether it goes on when the network has been away.
    """

    client: Any
    job_name: str
    persists: bool = True
    _tokens: Dict[str, Optional[str]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the lines that are new since the last call, each with its host and, under mpirun, its rank.

        A page of each host is in memory at a time.

        Raises:
            ClientError: CloudWatch refused a call.
        """
        self._find_streams()
        for _, _, line in heapq.merge(*(self._events(stream) for stream in sorted(self._tokens))):
            yield line

    def _find_streams(self) -> None:
        token: Optional[str] = None
        while True:
            more = {"nextToken": token} if token else {}
            try:
                page = patiently(
                    self.client.describe_log_streams,
                    persists=self.persists,
                    logGroupName=_GROUP,
                    logStreamNamePrefix=f"{self.job_name}/",
                    **more,
                )
            except self.client.exceptions.ResourceNotFoundException:
                return  # the group appears with the first line of the account's first job
            for stream in page["logStreams"]:
                self._tokens.setdefault(stream["logStreamName"], None)
            token = page.get("nextToken")
            if token is None:
                return

    def _events(self, stream: str) -> Iterator[Tuple[int, str, str]]:
        host = re.sub(r"-\d+$", "", stream.rpartition("/")[2])
        while True:
            token = self._tokens[stream]
            more = {"nextToken": token} if token else {}
            page = patiently(
                self.client.get_log_events,
                persists=self.persists,
                logGroupName=_GROUP,
                logStreamName=stream,
                startFromHead=True,
                limit=_EVENTS,
                **more,
            )
            for event in page["events"]:
                yield event["timestamp"], host, _with_place(host, event["message"].rstrip("\n"))
            # Pages before the last may be empty; the last one is given again, with the token that was sent.
            self._tokens[stream] = page["nextForwardToken"]
            if page["nextForwardToken"] == token:
                return


def follow(
    session: Any, name: str, *, poll_seconds: float = 5.0, write: Callable[[str], None] = print, wait: bool = True
) -> str:
    """Show the states and lines of a job until it ends, and return its last state.

    Where AWS limits the calls, or the network is away, it asks less often and goes on where it was.

    Args:
        session: A boto3 session.
        name: The name of the job.
        poll_seconds: The time between two looks, in seconds.
        write: Takes each line.
        wait: Whether to go on until the job ends; otherwise what is there is shown.

    Raises:
        LaunchError: A call failed otherwise.
    """
    jobs, reader = session.client("sagemaker"), LogReader(session.client("logs"), name, persists=False)
    shown: List[str] = []
    quiet = 0
    while True:
        with api_errors(f"sagemaker:DescribeTrainingJob for {name}"):
            job = patiently(jobs.describe_training_job, persists=reader.persists, TrainingJobName=name)
            state = str(job["TrainingJobStatus"])
        lines = _transitions(job)
        # SageMaker writes the message of a state again while it lasts.
        for line in (new for place, new in enumerate(lines) if shown[place : place + 1] != [new]):
            write(line)
        shown = lines
        quiet += 1
        with api_errors(f"logs:GetLogEvents for {name}"):
            for line in reader.lines():
                write(line)
                quiet = 0
        if not wait or (state in _ENDED and quiet >= _QUIET_POLLS):
            write(_last_line(job))
            return state
        reader.persists = True
        time.sleep(poll_seconds)


def follow_tuning(
    session: Any, name: str, *, poll_seconds: float = 15.0, write: Callable[[str], None] = print, wait: bool = True
) -> str:
    """Show the numbers of training jobs and the best one whenever they change, until the tuning job has ended.

    Args:
        session: A boto3 session.
        name: The name of the tuning job.
        poll_seconds: The time between two looks, in seconds.
        write: Takes each line.
        wait: Whether to go on until it ends.

    Returns:
        The last state of the tuning job, such as ``Completed``.

    Raises:
        LaunchError: A call of the API failed.
    """
    client, persists = session.client("sagemaker"), False
    shown: Dict[str, str] = {}
    while True:
        with api_errors(f"sagemaker:DescribeHyperParameterTuningJob for {name}"):
            job = patiently(
                client.describe_hyper_parameter_tuning_job, persists=persists, HyperParameterTuningJobName=name
            )
            state = str(job["HyperParameterTuningJobStatus"])
        for line in _tuning_lines(job):
            what = line.partition(":")[0]
            if shown.get(what) != line:
                write(line)
            shown[what] = line
        if not wait or state in _ENDED:
            reason = str(job.get("FailureReason") or "")
            write(f"Tuning job {name}: {state}{'. ' + reason if reason else ''}")
            return state
        persists = True
        time.sleep(poll_seconds)


def _tuning_lines(job: Dict[str, Any]) -> Iterator[str]:
    counters = job.get("TrainingJobStatusCounters") or {}
    counted = [f"{counters[key]} {text}" for key, text in _COUNTERS.items() if counters.get(key)]
    most = job["HyperParameterTuningJobConfig"]["ResourceLimits"].get("MaxNumberOfTrainingJobs")
    yield f"Training jobs of {most or '?'}: {', '.join(counted) or 'none yet'}"
    best = job.get("BestTrainingJob") or {}
    metric = best.get("FinalHyperParameterTuningJobObjectiveMetric")
    if metric:
        values = ", ".join(f"{key}={value}" for key, value in sorted((best.get("TunedHyperParameters") or {}).items()))
        yield f"Best so far: {best['TrainingJobName']}, {metric['MetricName']}={metric['Value']:g} ({values})"


def patiently(call: Callable[..., Dict[str, Any]], *, persists: bool = True, **arguments: Any) -> Dict[str, Any]:
    """Make a call of the API again, later each time, as long as there are too many, or nothing answers.

    Args:
        call: The call.
        persists: Whether to wait for a network that is away; otherwise only for AWS's limits.
        **arguments: Those of the call.

    Raises:
        ClientError: It was refused for another reason.
        BotoCoreError: Nothing has answered.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    pause = _FIRST_WAIT
    while True:
        try:
            return call(**arguments)
        except (BotoCoreError, ClientError) as error:
            if not is_transient(error) or not (persists or isinstance(error, ClientError)):
                raise
            if pause == _FIRST_WAIT and not isinstance(error, ClientError):
                print(f"Nothing answers, the job goes on; trying again: {error}", file=sys.stderr)
        time.sleep(pause)
        pause = min(_LONGEST_WAIT, 2 * pause)


def _transitions(job: Dict[str, Any]) -> List[str]:
    """The states that the job has had, in their order, each as a line."""
    lines = []
    for each in job.get("SecondaryStatusTransitions", ()):
        text = str(each.get("StatusMessage") or "")
        lines.append(f"{_time(each['StartTime'])} {each['Status']}{': ' + text if text else ''}")
    return lines


def _last_line(job: Dict[str, Any]) -> str:
    parts = [f"Training job {job['TrainingJobName']}: {job['TrainingJobStatus']}"]
    if job.get("BillableTimeInSeconds"):
        parts.append(f"billed {job['BillableTimeInSeconds']} s")
    if job.get("FailureReason"):
        parts.append(str(job["FailureReason"]))
    return ". ".join(parts)


def _with_place(host: str, text: str) -> str:
    match = _MPI.match(text)
    return f"[{host} rank {match['rank']}] {text[match.end() :]}" if match else f"[{host}] {text}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def line_writer(*, as_json: bool) -> Callable[[str], None]:
    """Return what prints each line of a job at once, as it is or as a JSON string."""
    return lambda line: print(json.dumps(line) if as_json else line, flush=True)


def follow_until_interrupted(session: Any, name: str, *, kind: str = "TrainingJob", **options: Any) -> int:
    """Show a job as :func:`follow` or :func:`follow_tuning` does.

    Returns:
        An exit status: 0 completed, 1 otherwise, 130 after Ctrl-C.
    """
    show = follow if kind == "TrainingJob" else follow_tuning
    try:
        return 0 if show(session, name, **options) == "Completed" else 1
    except KeyboardInterrupt:
        print(
            f"\nThe job goes on. `lightning-sm logs {name} --follow` shows it, `lightning-sm stop {name}` ends it.",
            file=sys.stderr,
        )
        return 130
