"""Writes the failure reason where SageMaker reads it: ``/opt/ml/output/failure``."""

import os
import re
from contextlib import suppress
from dataclasses import replace
from typing import Dict, Optional

from lightning_sm._failure.reason import MAX_LENGTH, FailureReason, escape_unprintable
from lightning_sm._failure.redact import Redactor
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["count_oom_kills", "withdraw_failure", "withdraw_unconfirmed", "with_oom_kills", "write_failure"]

# Reasons that this process wrote for errors that the program may still catch, by file.
_unconfirmed: Dict[str, str] = {}

# cgroup v2, then v1: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events; cgroup-v1/memory.html,
# memory.oom_control. In a container these are the files of the container's own cgroup.
_CGROUP_FILES = ("memory.events", os.path.join("memory", "memory.oom_control"))
_OOM_KILL = re.compile(r"^oom_kill\s+(\d+)\s*$", re.MULTILINE)


def write_failure(job: TrainingJob, reason: str, *, is_final: bool = True) -> None:
    """Write ``reason`` to the job's failure file unless the file exists. Outside a container do nothing.

    Secrets are redacted. SageMaker's training toolkit does not overwrite the file. Its own reason would be the log from
    the first line on that contains the name of any exception, and would be empty for an argument error:
    ``sagemaker_training/files.py``, ``write_failure_file``, and ``process.py``, ``watch``.

    Args:
        job: The job.
        reason: The reason, cause first; its first 1,024 characters are written.
        is_final: Whether the program can no longer catch the error. The next reason replaces one that is not final.
    """
    if job.failure_file is None:
        return
    text = escape_unprintable(Redactor(job)(reason))[:MAX_LENGTH]
    withdraw_unconfirmed(job)
    try:
        os.makedirs(os.path.dirname(job.failure_file), exist_ok=True)
        # Unbuffered, in one write: a reader never sees a part of the text while ranks are being killed.
        with open(job.failure_file, "xb", buffering=0) as file:
            file.write(text.encode("utf-8"))
        if not is_final:
            _unconfirmed[job.failure_file] = text
    except OSError as error:
        if not os.path.isfile(job.failure_file):
            log.warning("The failure reason could not be written to %s: %s", job.failure_file, error)


def withdraw_unconfirmed(job: TrainingJob) -> None:
    """Remove the failure file if this process wrote it for an error that the program then caught."""
    text = _unconfirmed.pop(job.failure_file or "", None)
    if text is not None:
        withdraw_failure(job, text)


def withdraw_failure(job: TrainingJob, prefix: str) -> None:
    """Remove the failure file if its text starts with ``prefix``: the event reported there was not a failure.

    Args:
        job: The job.
        prefix: The beginning of the reason to remove; a file with any other text is kept.
    """
    if job.failure_file is None:
        return
    with suppress(OSError):
        with open(job.failure_file, encoding="utf-8") as file:
            matches = file.read().startswith((prefix, Redactor(job)(prefix)))
        if matches:
            os.unlink(job.failure_file)


def count_oom_kills(cgroup_root: str = "/sys/fs/cgroup") -> Optional[int]:
    """Return how many processes of this container the kernel's OOM killer has killed, or ``None`` if unknown.

    Args:
        cgroup_root: Where the cgroup file system is mounted.
    """
    for name in _CGROUP_FILES:
        try:
            with open(os.path.join(cgroup_root, name), encoding="ascii", errors="replace") as file:
                found = _OOM_KILL.search(file.read())
        except OSError:
            continue
        if found is not None:
            return int(found.group(1))
    return None


def with_oom_kills(reason: FailureReason, host: Optional[str]) -> FailureReason:
    """Add the container's count of OOM kills to the loss of a rank that ran on this host.

    Args:
        reason: The reason; any other than the loss of a rank on ``host`` is returned unchanged.
        host: This host's name.
    """
    kills = count_oom_kills() if reason.is_loss and reason.host == host else None
    if not kills:
        return reason
    return replace(reason, cause=f"{reason.cause}; OOM kills in this container (cgroup oom_kill): {kills}")
