"""``sagemaker.doctor: true``: examines each host of a job at its start, and stops the job on errors."""

import os
from typing import Sequence

from lightning_sm._doctor.finding import Check, Machine, count_findings, examine
from lightning_sm._failure import failure_reported
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import DoctorError

__all__ = ["examine_host"]

# Set for the processes that this one starts: the training listens at the main port by then.
_EXAMINED = "LIGHTNING_SM_EXAMINED"


def examine_host(checks: Sequence[Check], job: TrainingJob, topology: Topology) -> None:
    """Examine this host once, in its first process. Outside a container do nothing.

    Each finding is a line of the log. An error ends this process; its reason is passed on to all ranks of all hosts
    before they wait for each other.

    Args:
        checks: The checks.
        job: The job.
        topology: The processes.

    Raises:
        DoctorError: There are errors.
    """
    if _EXAMINED in os.environ or not job.in_container or topology.local_rank != 0:
        return
    os.environ[_EXAMINED] = "1"
    findings = examine(checks, Machine(os.environ, job, topology))
    for each in findings:
        (log.error if each.is_error else log.warning)("Doctor on %s: %s", job.current_host, each)
    log.info("Doctor on %s: %d checks, %s.", job.current_host, len(checks), count_findings(findings))
    errors = [each for each in findings if each.is_error]
    if errors:
        listed = "; ".join(f"{each.check}: {each.text}" for each in errors)
        with failure_reported(job):
            raise DoctorError(f"The doctor found errors on {job.current_host}: {listed}", hint=errors[0].hint)
