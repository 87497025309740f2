"""Why the job failed: the first error of any rank, in SageMaker's failure file on every host.

``speaker`` decides whether this process speaks for the job. ``report`` reports what ends the program, with the
``reason`` as a value, and ``redact`` removes secrets from it; ``failure_file`` writes it. The ``monitor`` of each rank
starts a ``guard`` process beside it that survives it; the ``server`` in the guard of global rank 0 passes the first
failure on to all guards, at an ``address`` that all know, in ``messages``. ``process`` holds this process's monitor.
"""

from lightning_sm._failure.failure_file import escape_unprintable
from lightning_sm._failure.messages import RendezvousState
from lightning_sm._failure.process import (
    ask_who_has_joined,
    before_forced_exit,
    is_group_initialized,
    set_joining,
    set_training,
    stop_watching,
    watch_failures,
)
from lightning_sm._failure.redact import REDACTED, Redactor, is_secret_name, redact_patterns
from lightning_sm._failure.report import (
    describe_failure,
    failure_reported,
    forget_exit,
    read_job,
    report_exit,
    report_noted,
    report_uncaught,
)

__all__ = [
    "REDACTED",
    "Redactor",
    "RendezvousState",
    "ask_who_has_joined",
    "before_forced_exit",
    "describe_failure",
    "escape_unprintable",
    "failure_reported",
    "forget_exit",
    "is_group_initialized",
    "is_secret_name",
    "read_job",
    "redact_patterns",
    "report_exit",
    "report_noted",
    "report_uncaught",
    "set_joining",
    "set_training",
    "stop_watching",
    "watch_failures",
]
