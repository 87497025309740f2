"""How a rehearsal went, as frozen values: what the stage hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

__all__ = ["Attempt", "HostOutcome", "Outcome", "Upload"]

#: The service shows this much of ``output/failure``.
REASON_LENGTH = 1024


@dataclass(frozen=True)
class HostOutcome:
    """How one host ended. ``exit_code`` is ``None`` when it was ended by the rehearsal; ``ended_because`` says why.

    ``error_line`` is the line of its log that tells best why it failed.
    """

    host: str
    group: str
    exit_code: Optional[int]
    seconds: float
    ended_because: Optional[str] = None
    failure: Optional[str] = None
    error_line: Optional[str] = None
    topologies: Tuple[Tuple[int, Dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One start of the job. Managed spot training makes a second one after an interruption.

    ``ended_by`` is ``exit`` (the hosts ended by themselves, or because one failed), ``timeout``, ``interruption``
    (spot), ``stopped`` (``--stop-…``) or ``stop`` (Ctrl-C, or the command that asked for the rehearsal went away).
    """

    hosts: Tuple[HostOutcome, ...]
    ended_by: str
    seconds: float

    @property
    def failed_host(self) -> Optional[HostOutcome]:
        """The host that failed first."""
        failed = [host for host in self.hosts if host.exit_code not in (None, 0)]
        return min(failed, key=lambda host: host.seconds) if failed else None


@dataclass(frozen=True)
class Upload:
    """A file that the service would upload: the archive or folder it goes to, its name there, its size, its host."""

    target: str
    name: str
    size: int
    host: str


@dataclass(frozen=True)
class Outcome:
    """Everything that was seen."""

    attempts: Tuple[Attempt, ...]
    uploads: Tuple[Upload, ...] = ()
    warnings: Tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """As DescribeTrainingJob would say it, or ``TimedOut`` for this rehearsal's own limit."""
        last = self.attempts[-1]
        if last.ended_by == "timeout":
            return "TimedOut"
        if last.ended_by in ("stop", "stopped"):
            return "Stopped"
        return "Failed" if last.failed_host is not None else "Completed"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        stopped = 143 if self.attempts[-1].ended_by == "stopped" else 130
        return {"Completed": 0, "Failed": 1, "TimedOut": 124, "Stopped": stopped}[self.status]

    @property
    def reason(self) -> Optional[str]:
        """The failure reason as the console would show it: what the first host to fail left in ``output/failure``."""
        last = self.attempts[-1]
        if self.status == "TimedOut":
            return _timeout_reason(last)
        failed = last.failed_host
        # A stopped job has no failure reason, whatever its hosts ended with.
        if failed is None or self.status == "Stopped":
            return None
        return failed.failure[:REASON_LENGTH] if failed.failure else ""


def _timeout_reason(attempt: Attempt) -> str:
    running = [host.host for host in attempt.hosts if host.exit_code is None]
    done = [
        f"{host.host} with {host.exit_code} after {host.seconds:.0f} s" for host in attempt.hosts if host.exit_code == 0
    ]
    text = f"Still running after {attempt.seconds:.0f} s (--timeout): {', '.join(running)}."
    if done:
        text += f" Ended before: {', '.join(done)}; the others may wait for it."
    return text
