"""Shows what a training job does: its states, and the lines that its hosts write to CloudWatch."""

import heapq
import json
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from lightning_sm.launch._send import api_errors, is_throttled

__all__ = ["LogReader", "follow", "follow_until_interrupted", "line_writer"]

_GROUP = "/aws/sagemaker/TrainingJobs"
_ENDED = ("Completed", "Failed", "Stopped")
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
    """

    client: Any
    job_name: str
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
                logGroupName=_GROUP,
                logStreamName=stream,
                startFromHead=True,
                limit=_EVENTS,
                **more,
            )
            for event in page["events"]:
                yield event["timestamp"], host, _with_place(host, event["message"].rstrip("\n"))
            # The last page is given again, with the token that was sent.
            self._tokens[stream] = page["nextForwardToken"]
            if page["nextForwardToken"] == token or not page["events"]:
                return


def follow(
    session: Any, name: str, *, poll_seconds: float = 5.0, write: Callable[[str], None] = print, wait: bool = True
) -> str:
    """Show the states and lines of a job until it ends, and return its last state.

    Where AWS limits the calls, it asks less often and goes on where it was.

    Args:
        session: A boto3 session.
        name: The name of the job.
        poll_seconds: The time between two looks, in seconds.
        write: Takes each line.
        wait: Whether to go on until the job ends; otherwise what is there is shown.

    Raises:
        LaunchError: A call failed otherwise.
    """
    jobs, reader = session.client("sagemaker"), LogReader(session.client("logs"), name)
    shown, quiet = 0, 0
    while True:
        with api_errors(f"sagemaker:DescribeTrainingJob for {name}"):
            job = patiently(jobs.describe_training_job, TrainingJobName=name)
        for line in _transitions(job)[shown:]:
            write(line)
            shown += 1
        quiet += 1
        with api_errors(f"logs:GetLogEvents for {name}"):
            for line in reader.lines():
                write(line)
                quiet = 0
        if not wait or (job["TrainingJobStatus"] in _ENDED and quiet >= _QUIET_POLLS):
            write(_last_line(job))
            return str(job["TrainingJobStatus"])
        time.sleep(poll_seconds)


def patiently(call: Callable[..., Dict[str, Any]], **arguments: Any) -> Dict[str, Any]:
    """Make a call of the API again, later each time, as long as AWS answers that there are too many.

    Raises:
        ClientError: It was refused for another reason.
    """
    from botocore.exceptions import ClientError

    pause = _FIRST_WAIT
    while True:
        try:
            return call(**arguments)
        except ClientError as error:
            if not is_throttled(error):
                raise
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


def follow_until_interrupted(session: Any, name: str, **options: Any) -> int:
    """Show a job as :func:`follow` does, and return an exit status: 0 completed, 1 otherwise, 130 after Ctrl-C."""
    try:
        return 0 if follow(session, name, **options) == "Completed" else 1
    except KeyboardInterrupt:
        print(
            f"\nThe job goes on. `lightning-sm logs {name} --follow` shows it, `lightning-sm stop {name}` ends it.",
            file=sys.stderr,
        )
        return 130
