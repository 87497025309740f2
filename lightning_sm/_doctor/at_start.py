"""``sagemaker.doctor: true``: examines each host of a job at its start, and stops the job on errors."""

import os
from typing import Mapping, Optional, Sequence

from lightning_sm._doctor.command import Findings, count, examine, summary
from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._failure import failure_reported
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import DoctorError

__all__ = ["check_host"]

_MAX_ERRORS = 3
# Set for the processes that this one starts: the training listens at the main port by then.
_EXAMINED = "LIGHTNING_SM_EXAMINED"


def check_host(sections: Mapping[str, Sequence[Check]], job: TrainingJob, topology: Topology) -> None:
    """Examine this host once, in its first process. Outside a container do nothing.

    Warnings and errors are logged, one line each. An error ends this process; its reason is passed on to all ranks of
    all hosts before they wait for each other.

    Args:
        sections: The checks by section.
        job: The job.
        topology: The processes.

    Raises:
        DoctorError: There are errors.
    """
    if _EXAMINED in os.environ or not job.in_container or topology.local_rank != 0:
        return
    os.environ[_EXAMINED] = "1"
    findings = examine(sections, Machine.read(job=job, topology=topology))
    host = job.current_host
    for each in _found(findings, Status.WARNING):
        log.warning("Doctor on %s: %s", host, _line(each))
    for each in _found(findings, Status.ERROR):
        log.error("Doctor on %s: %s", host, _line(each))
    log.info("Doctor on %s: %s.", host, summary(findings))
    error = _error(findings, host)
    if error is not None:
        with failure_reported(job):
            raise error


def _found(findings: Findings, status: Status) -> Sequence[Finding]:
    return [each for found in findings.values() for each in found if each.status == status]


def _line(finding: Finding) -> str:
    return f"{finding.check}: {finding.text}" + (f" HINT: {finding.hint}" if finding.hint else "")


def _error(findings: Findings, host: Optional[str]) -> Optional[DoctorError]:
    errors = _found(findings, Status.ERROR)
    if not errors:
        return None
    number = count(findings, Status.ERROR)
    listed = "; ".join(f"{each.check}: {each.text}" for each in errors[:_MAX_ERRORS])
    more = f"; and {number - _MAX_ERRORS} more" if number > _MAX_ERRORS else ""
    noun = "an error" if number == 1 else f"{number} errors"
    return DoctorError(f"The doctor found {noun} on {host}: {listed}{more}.", hint=errors[0].hint or None)
