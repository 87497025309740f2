"""The outcome of a rehearsal, as frozen values, and its summary as text and JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Literal, Optional, Tuple

from lightning_sm.launch._settings import Distribution
from lightning_sm.rehearse._log import USAGE_ERROR
from lightning_sm.rehearse._request import Isolation

__all__ = ["EndedBy", "HostOutcome", "Outcome", "Status", "Upload", "rank_in"]

# The service shows this much of ``output/failure``.
_REASON_LENGTH = 1024
_SHOWN_UPLOADS = 20


#: Why the job ended. ``exit``: the hosts ended by themselves, or because one of them failed. ``timeout``: the option.
#: ``stopped``: ``stop_after`` or ``stop_at``. ``stop``: Ctrl-C, or the process that asked for the rehearsal has ended.
EndedBy = Literal["exit", "timeout", "stopped", "stop"]
#: The job's status as DescribeTrainingJob says it, or ``TimedOut`` for the rehearsal's own limit.
Status = Literal["Completed", "Failed", "Stopped", "TimedOut"]

# Of a job that the rehearsal has ended.
_STATUS: Dict[EndedBy, Status] = {"timeout": "TimedOut", "stop": "Stopped", "stopped": "Stopped"}


@dataclass(frozen=True)
class HostOutcome:
    """How one host ended.

    Args:
        host: The host's name.
        group: Its instance group.
        exit_code: The container's exit code; ``None`` if the rehearsal ended it.
        seconds: How long it ran.
        ended_because: Why the rehearsal ended it; ``None`` if it ended by itself.
        failure: The content of ``output/failure``; ``None`` without that file.
        error_line: The line of its log that best explains a failure.
        worlds: The sizes of the process groups that its ranks told of.
        topologies: What each rank printed after :data:`TOPOLOGY_MARKER`, by its global rank.

    Example::

        >>> HostOutcome("algo-1", "homogeneousCluster", exit_code=1, seconds=2.5, failure="KeyError: 'x'").failure
        "KeyError: 'x'"
    """

    host: str
    group: str
    exit_code: Optional[int]
    seconds: float
    ended_because: Optional[str] = None
    failure: Optional[str] = None
    error_line: Optional[str] = None
    topologies: Tuple[Dict[str, Any], ...] = ()
    worlds: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Upload:
    """A file that the service would upload.

    Args:
        target: The archive, or ``checkpoints``.
        name: Its path there.
        size: Its bytes.
        host: The host that wrote it, or ``all``.

    Example::

        >>> Upload("model.tar.gz", "model.pt", 1024, "algo-1").name
        'model.pt'
    """

    target: str
    name: str
    size: int
    host: str


@dataclass(frozen=True)
class Outcome:
    """How a rehearsal ended.

    Args:
        hosts: How each host ended.
        ended_by: Why the job ended.
        seconds: How long it took.
        uploads: The files that the service would upload.
        warnings: What is different on SageMaker, and files that would be lost.
        job_name: The training job's name.
        isolation: How hosts were separated.
        distribution: The launcher.
        sdk: The SDK whose request was rehearsed.
        collected: The local folder or ``s3://`` prefix with the results; ``None`` if there is none.
        problems: What is wrong with a job that may have completed, such as processes that trained alone.

    Example::

        >>> hosts = tuple(HostOutcome(f"algo-{k}", "group", k - 1, seconds=9.0 - k) for k in (1, 2, 3))
        >>> outcome = Outcome(hosts, "exit", 9.0)
        >>> outcome.status, outcome.exit_code, outcome.failed_host.host
        ('Failed', 1, 'algo-3')
    """

    hosts: Tuple[HostOutcome, ...]
    ended_by: EndedBy
    seconds: float
    uploads: Tuple[Upload, ...] = ()
    warnings: Tuple[str, ...] = ()
    job_name: str = "rehearsal"
    isolation: Isolation = "loopback"
    distribution: Distribution = "none"
    sdk: str = "v2"
    collected: Optional[str] = None
    problems: Tuple[str, ...] = ()

    @property
    def failed_host(self) -> Optional[HostOutcome]:
        """The host that failed first."""
        failed = [host for host in self.hosts if host.exit_code not in (None, 0)]
        return min(failed, key=lambda host: host.seconds) if failed else None

    @property
    def status(self) -> Status:
        """The job's status."""
        return _STATUS.get(self.ended_by, "Completed" if self.failed_host is None else "Failed")

    @property
    def exit_code(self) -> int:
        """The exit code of ``lightning-sm rehearse``: 0, 1 (failed), 124 (timeout), 130 (Ctrl-C), 143 (stopped)."""
        stopped = 143 if self.ended_by == "stopped" else 130
        return {"Completed": 0, "Failed": 1, "TimedOut": 124, "Stopped": stopped}[self.status]

    @property
    def failure_reason(self) -> Optional[str]:
        """``FailureReason`` as the console shows it: what the first host to fail wrote into ``output/failure``.

        Empty if that host wrote none; ``None`` for a job that completed or was stopped.
        """
        if self.status == "TimedOut":
            return _timeout_reason(self)
        failed = self.failed_host
        # A stopped job has no failure reason, whatever exit codes its hosts have.
        if failed is None or self.status == "Stopped":
            return None
        return failed.failure[:_REASON_LENGTH] if failed.failure else ""

    def as_dict(self) -> Dict[str, Any]:
        """The summary for ``--json``: the arguments of this class, the status and the failure reason."""
        return {**asdict(self), "status": self.status, "failure_reason": self.failure_reason}

    def as_json(self) -> str:
        """The summary as one JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def as_text(self) -> str:
        """The summary in a few lines."""
        lines = ["", f"{self.job_name}: {self.status}"]
        if self.failure_reason is not None:
            reason = self.failure_reason or "(empty, as the console would show it)"
            lines += ["Failure reason:", *(f"  {line}" for line in reason.splitlines()), *_log_excerpt(self)]
        lines += [
            *_host_table(self.hosts),
            *(f"WARNING: {problem}" for problem in self.problems),
            *_topology_lines(self.hosts),
            *_upload_lines(self.uploads),
        ]
        if self.collected:
            lines.append(f"Collected in {self.collected}")
        if self.warnings:
            lines += ["Differences from SageMaker:", *(f"  - {warning}" for warning in self.warnings)]
        return "\n".join(lines)


def rank_in(topology: Dict[str, Any]) -> int:
    """Return the global rank in a topology, -1 if it has none."""
    rank = topology.get("global_rank")
    return rank if isinstance(rank, int) else -1


def _timeout_reason(outcome: Outcome) -> str:
    running = [host.host for host in outcome.hosts if host.exit_code is None]
    done = [f"{host.host} after {host.seconds:.0f} s" for host in outcome.hosts if host.exit_code == 0]
    text = f"Still running after {outcome.seconds:.0f} s (--timeout): {', '.join(running)}."
    if done:
        text += f" Ended with exit code 0: {', '.join(done)}; the others may be waiting for it."
    return text


def _log_excerpt(outcome: Outcome) -> List[str]:
    """The log's last error, when the reason is empty or is the toolkit's and has no message."""
    failed = outcome.failed_host
    if failed is None or (outcome.failure_reason and 'ErrorMessage ""' not in outcome.failure_reason):
        return []
    lines = [f"  Last error in the log of {failed.host}: {failed.error_line or '(the log is empty)'}"]
    if USAGE_ERROR.match(failed.error_line or ""):
        lines.append(
            "  HINT: SageMaker sends no subcommand, and hyperparameters as text. lightning_sm.cli reads both: use its "
            "SageMakerCLI in place of LightningCLI."
        )
    return lines


def _host_table(hosts: Tuple[HostOutcome, ...]) -> List[str]:
    width = max(len("host"), *(len(host.host) for host in hosts))
    lines = [f"  {'host':<{width}}  exit  seconds"]
    for host in hosts:
        code = "-" if host.exit_code is None else str(host.exit_code)
        note = f"  ended: {host.ended_because}" if host.ended_because else ""
        lines.append(f"  {host.host:<{width}}  {code:>4}  {host.seconds:>7.1f}{note}")
    return lines


def _topology_lines(hosts: Tuple[HostOutcome, ...]) -> List[str]:
    found = [
        (rank_in(topology), host.host, ", ".join(f"{key}={value}" for key, value in topology.items()))
        for host in hosts
        for topology in host.topologies
    ]
    lines = [f"  rank {rank} on {host}: {text}" for rank, host, text in sorted(found)]
    return ["Topology that each rank resolved:", *lines] if lines else []


def _upload_lines(uploads: Tuple[Upload, ...]) -> List[str]:
    if not uploads:
        return ["SageMaker would upload nothing: the model, output and checkpoint folders are empty."]
    shown = [f"  {each.target}: {each.name} ({each.size} bytes, {each.host})" for each in uploads[:_SHOWN_UPLOADS]]
    rest = len(uploads) - len(shown)
    return ["SageMaker would upload:", *shown, *([f"  and {rest} more"] if rest else [])]
