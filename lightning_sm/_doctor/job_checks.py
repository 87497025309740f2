"""Checks of the job: what kind of container this is, its launcher, and its ranks with their evidence."""

from typing import Iterator, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status

__all__ = ["CHECKS"]


def _files_of_the_job(machine: Machine) -> Iterator[Finding]:
    for problem in machine.problems:
        yield Finding("job", Status.ERROR, problem.problem, problem.hint or "")


CHECKS: Tuple[Check, ...] = (_files_of_the_job,)
