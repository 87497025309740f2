"""Puts the reason of a failure where SageMaker reads it."""

import os
from contextlib import suppress
from typing import Dict

from lightning_sm._failure._reason import MOST, printable
from lightning_sm._failure._secrets import Masker
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["withdraw_failure", "withdraw_unconfirmed", "write_failure"]

# What this process wrote of errors that the program may yet catch, by file.
_unconfirmed: Dict[str, str] = {}


def write_failure(job: TrainingJob, reason: str, *, is_final: bool = True) -> None:
    """Write ``reason`` into the job's failure file, unless somebody wrote one before. Outside a container do nothing.

    The toolkit keeps what the script wrote. Its own reason is whatever was logged from the first line on that names
    any exception, a harmless one too, and nothing at all of an argument error: ``sagemaker_training/files.py``,
    ``write_failure_file``, and ``process.py``, ``watch``. Secrets are masked.

    Args:
        job: The job.
        reason: The reason, cause first; its first 1,024 characters are kept.
        is_final: Whether the program cannot catch it any more. A reason that is not gives way to the next one.
    """
    if job.failure_file is None:
        return
    text = printable(Masker(job)(reason))[:MOST]
    withdraw_unconfirmed(job)
    try:
        os.makedirs(os.path.dirname(job.failure_file), exist_ok=True)
        # Whole from the first moment on, for whoever looks at it while ranks are being killed.
        with open(job.failure_file, "xb", buffering=0) as file:
            file.write(text.encode("utf-8"))
        if not is_final:
            _unconfirmed[job.failure_file] = text
    except OSError as error:
        if not os.path.isfile(job.failure_file):
            log.warning("The failure reason could not be written to %s: %s", job.failure_file, error)


def withdraw_unconfirmed(job: TrainingJob) -> None:
    """Remove what this process wrote of an error that the program caught."""
    text = _unconfirmed.pop(job.failure_file or "", None)
    if text is not None:
        withdraw_failure(job, text)


def withdraw_failure(job: TrainingJob, beginning: str) -> None:
    """Remove the failure file if its text begins so: what was written there turned out to be no failure.

    Args:
        job: The job.
        beginning: How the reason begins that may be removed; any other stays.
    """
    if job.failure_file is None:
        return
    with suppress(OSError):
        with open(job.failure_file, encoding="utf-8") as file:
            is_that = file.read().startswith((beginning, Masker(job)(beginning)))
        if is_that:
            os.unlink(job.failure_file)
