"""The end of a rehearsal, for a person and for a machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from ._outcome import HostOutcome, Outcome, Upload

__all__ = ["Summary"]

_SHOWN_UPLOADS = 20


@dataclass(frozen=True)
class Summary:
    """What is told at the end. ``kept`` and ``collected`` name folders that were left on purpose."""

    job_name: str
    isolation: str
    distribution: str
    sdk: str
    outcome: Outcome
    warnings: Tuple[str, ...] = ()
    collected: Optional[str] = None
    kept: Optional[str] = None

    def as_dict(self) -> Dict[str, Any]:
        """For ``--json``. Keys are added in later versions, never renamed."""
        return {
            "job_name": self.job_name,
            "isolation": self.isolation,
            "distribution": self.distribution,
            "sdk": self.sdk,
            "status": self.outcome.status,
            "failure_reason": self.outcome.reason,
            "attempts": [
                {"ended_by": attempt.ended_by, "seconds": attempt.seconds, "hosts": [_host(h) for h in attempt.hosts]}
                for attempt in self.outcome.attempts
            ],
            "uploads": [
                {"target": each.target, "name": each.name, "size": each.size, "host": each.host}
                for each in self.outcome.uploads
            ],
            "warnings": list(self.warnings),
            "collected": self.collected,
            "kept": self.kept,
        }

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def as_text(self) -> str:
        """A few lines for a person."""
        lines = ["", f"{self.job_name}: {self.outcome.status}"]
        if self.outcome.reason is not None:
            lines.append("Failure reason:")
            reason = self.outcome.reason or "(empty, as the console would show it)"
            lines += [f"  {line}" for line in reason.splitlines()]
            lines += _instead(self.outcome)
        for number, attempt in enumerate(self.outcome.attempts, start=1):
            if len(self.outcome.attempts) > 1:
                lines.append(f"Start {number}, ended by {attempt.ended_by} after {attempt.seconds} s")
            lines += _table(attempt.hosts)
        lines += _topologies(self.outcome)
        lines += _uploads(self.outcome.uploads)
        if self.collected:
            lines.append(f"Collected in {self.collected}")
        if self.warnings:
            lines.append("Otherwise on SageMaker:")
            lines += [f"  - {warning}" for warning in self.warnings]
        if self.kept:
            lines.append(f"Kept: {self.kept}")
        return "\n".join(lines)


def _instead(outcome: Outcome) -> List[str]:
    """Where to look when the reason is empty, or is the toolkit's and has no message."""
    failed = outcome.attempts[-1].failed_host
    if failed is None or (outcome.reason and 'ErrorMessage ""' not in outcome.reason):
        return []
    told = "nothing" if failed.error_line is None else failed.error_line
    return [f"  The log of {failed.host} tells more: {told}"]


def _host(host: HostOutcome) -> Dict[str, Any]:
    return {
        "host": host.host,
        "group": host.group,
        "exit_code": host.exit_code,
        "seconds": host.seconds,
        "ended_because": host.ended_because,
        "failure": host.failure,
        "error_line": host.error_line,
        "topologies": [{"rank": rank, "topology": topology} for rank, topology in host.topologies],
    }


def _table(hosts: Tuple[HostOutcome, ...]) -> List[str]:
    width = max(len("host"), *(len(host.host) for host in hosts))
    lines = [f"  {'host':<{width}}  exit  seconds"]
    for host in hosts:
        code = "-" if host.exit_code is None else str(host.exit_code)
        note = f"  ended: {host.ended_because}" if host.ended_because else ""
        lines.append(f"  {host.host:<{width}}  {code:>4}  {host.seconds:>7.1f}{note}")
    return lines


def _topologies(outcome: Outcome) -> List[str]:
    found = [(rank, host.host, told) for host in outcome.attempts[-1].hosts for rank, told in host.topologies]
    if not found:
        return []
    lines = ["Topology that each rank resolved:"]
    for rank, host, told in sorted(found, key=lambda each: each[0]):
        lines.append(f"  rank {rank} on {host}: " + ", ".join(f"{key}={value}" for key, value in told.items()))
    return lines


def _uploads(uploads: Tuple[Upload, ...]) -> List[str]:
    if not uploads:
        return ["SageMaker would upload nothing: the model, output and checkpoint folders are empty."]
    lines = ["SageMaker would upload:"]
    for each in uploads[:_SHOWN_UPLOADS]:
        lines.append(f"  {each.target}: {each.name} ({each.size} bytes, {each.host})")
    if len(uploads) > _SHOWN_UPLOADS:
        lines.append(f"  and {len(uploads) - _SHOWN_UPLOADS} more")
    return lines
