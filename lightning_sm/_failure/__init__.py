"""Why the job failed: the first error of any rank, in SageMaker's failure file, on every host.

``_reason`` is the value and ``_secrets`` what is masked in it. ``_uncaught`` makes what ends the program the reason.
``_monitor`` in every rank and ``_server`` in the guard beside global rank 0 pass the first failure on; ``_watching``
holds this process's.
"""

from lightning_sm._failure._file import write_failure
from lightning_sm._failure._uncaught import (
    failure_reported,
    read_job,
    report_exit,
    report_uncaught,
    report_usage_errors,
)
from lightning_sm._failure._watching import is_started_by_rank, set_joining, set_training, watch_failures

__all__ = [
    "failure_reported",
    "is_started_by_rank",
    "read_job",
    "report_exit",
    "report_uncaught",
    "report_usage_errors",
    "set_joining",
    "set_training",
    "watch_failures",
    "write_failure",
]
