"""Puts the reason of a failure where SageMaker reads it."""

import os
import sys
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Iterator, Optional, Type

from lightning_sm._job import TrainingJob
from lightning_sm._log import log
from lightning_sm.errors import LightningSMError

__all__ = ["failure_reported", "read_job", "report_uncaught", "write_failure"]

# SageMaker shows this much of the file: DescribeTrainingJob, FailureReason.
_MOST = 1024

_is_watching = False


def write_failure(job: TrainingJob, reason: str) -> None:
    """Write ``reason`` into the job's failure file, unless somebody wrote one before. Outside a container do nothing.

    The toolkit keeps what the script wrote; by itself it finds no reason in an argument error, because that names no
    exception: ``sagemaker_training/files.py``, ``write_failure_file``.
    """
    if job.failure_file is None:
        return
    try:
        os.makedirs(os.path.dirname(job.failure_file), exist_ok=True)
        with open(job.failure_file, "x", encoding="utf-8") as file:
            file.write(reason[:_MOST])
    except OSError as error:
        if not os.path.isfile(job.failure_file):
            log.warning("The failure reason could not be written to %s: %s", job.failure_file, error)


def read_job() -> TrainingJob:
    """Read the job; where its files are broken, that is the failure reason.

    Raises:
        JobConfigError: A file or variable of the job is broken.
    """
    with failure_reported(_unread_job()):
        return TrainingJob.resolve()


def _unread_job() -> TrainingJob:
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    output = os.environ.get("SM_OUTPUT_DIR") or os.path.join(base, "output")
    # Only a container has something to read, so an error comes from one.
    return TrainingJob(in_container=True, failure_file=os.path.join(output, "failure"))


@contextmanager
def failure_reported(job: TrainingJob) -> Iterator[None]:
    """Write each of our own errors that leaves the block as the job's failure reason."""
    try:
        yield
    except LightningSMError as error:
        _report(job, error)
        raise


def report_uncaught() -> None:
    """From now on, an error of ours that ends the program is the job's failure reason. The toolkit knows only Python's.

    For the parts that work within a script of somebody else, where no block of ours is around.
    """
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    before = sys.excepthook

    def report(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        if isinstance(error, LightningSMError):
            job = _unread_job()
            with suppress(LightningSMError):
                job = TrainingJob.resolve()
            _report(job, error)
        before(kind, error, trace)

    sys.excepthook = report


def _report(job: TrainingJob, error: LightningSMError) -> None:
    hint = f" HINT: {error.hint}" if error.hint else ""
    # What to do matters more than the end of a long quotation from a parser.
    write_failure(job, f"{type(error).__name__}: {error.problem}"[: _MOST - len(hint)] + hint)
