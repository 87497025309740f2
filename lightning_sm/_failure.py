"""Puts the reason of a failure where SageMaker reads it."""

import os
from contextlib import contextmanager
from typing import Iterator

from lightning_sm._job import TrainingJob
from lightning_sm._log import log
from lightning_sm.errors import LightningSMError

__all__ = ["failure_reported", "read_job", "write_failure"]

# SageMaker shows this much of the file: DescribeTrainingJob, FailureReason.
_MOST = 1024


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
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    output = os.environ.get("SM_OUTPUT_DIR") or os.path.join(base, "output")
    # Only a container has something to read, so an error comes from one.
    with failure_reported(TrainingJob(in_container=True, failure_file=os.path.join(output, "failure"))):
        return TrainingJob.resolve()


@contextmanager
def failure_reported(job: TrainingJob) -> Iterator[None]:
    """Write each of our own errors that leaves the block as the job's failure reason."""
    try:
        yield
    except LightningSMError as error:
        hint = f" HINT: {error.hint}" if error.hint else ""
        # What to do matters more than the end of a long quotation from a parser.
        write_failure(job, f"{type(error).__name__}: {error.problem}"[: _MOST - len(hint)] + hint)
        raise
