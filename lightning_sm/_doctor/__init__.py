"""The doctor: examines the machine and the job, and says what stops a training, slows it down or loses results.

``finding`` holds the values and runs the checks; each ``*_checks`` module exports its ``CHECKS``; ``command`` is
``lightning-sm doctor``; ``at_start`` is ``sagemaker.doctor: true``.
"""

from typing import Mapping, Sequence, Tuple

from lightning_sm._doctor import (
    argument_checks,
    at_start,
    command,
    container_checks,
    hardware_checks,
    job_checks,
    lifecycle_checks,
    nccl_checks,
    network_checks,
    smddp_checks,
    software_checks,
    storage_checks,
    world_checks,
)
from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["SECTIONS", "Check", "Finding", "Machine", "Status", "check_host", "main"]

#: The checks by the sections of the table.
SECTIONS: Mapping[str, Tuple[Check, ...]] = {
    "Job and ranks": (*job_checks.CHECKS, *world_checks.CHECKS),
    "Hyperparameters": argument_checks.CHECKS,
    "Start and end": lifecycle_checks.CHECKS,
    "Network": network_checks.CHECKS,
    "Channels and directories": storage_checks.CHECKS,
    "Software": (*software_checks.CHECKS, *container_checks.CHECKS),
    "Hardware": hardware_checks.CHECKS,
    "Communication of GPUs": (*nccl_checks.CHECKS, *smddp_checks.CHECKS),
}


def main(words: Sequence[str]) -> int:
    """Run ``lightning-sm doctor``, and return its exit code.

    Args:
        words: The words behind the command.
    """
    return command.run(words, SECTIONS)


def check_host(job: TrainingJob, topology: Topology) -> None:
    """Examine this host at the start of a job.

    Args:
        job: The job.
        topology: The processes.

    Raises:
        DoctorError: There are errors.
    """
    at_start.check_host(SECTIONS, job, topology)
