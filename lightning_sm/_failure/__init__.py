"""Why the job failed: the first error of any rank, in SageMaker's failure file on every host.

``speaker`` decides whether this process speaks for the job. ``reason`` is the value; ``failure_file`` writes it with
secrets redacted. ``report`` reports what ends the program.
``monitor`` in every rank and ``server`` in the ``guard`` process beside global rank 0 pass the first failure on to all
ranks; ``process`` holds this process's monitor.
"""

from lightning_sm._failure.failure_file import Redactor, write_failure
from lightning_sm._failure.process import (
    ask_who_has_joined,
    before_forced_exit,
    set_joining,
    set_training,
    watch_failures,
)
from lightning_sm._failure.rank_ranges import RankRanges, RendezvousState
from lightning_sm._failure.report import (
    describe_failure,
    failure_reported,
    read_job,
    report_exit,
    report_uncaught,
)

__all__ = [
    "Redactor",
    "before_forced_exit",
    "describe_failure",
    "RankRanges",
    "RendezvousState",
    "ask_who_has_joined",
    "failure_reported",
    "read_job",
    "report_exit",
    "report_uncaught",
    "set_joining",
    "set_training",
    "watch_failures",
    "write_failure",
]
