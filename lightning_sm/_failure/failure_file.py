"""``/opt/ml/output/failure``: what SageMaker shows as the reason of a failed job."""

import os
import re
from contextlib import suppress
from typing import Optional

from lightning_sm._logging import log

__all__ = [
    "MAX_LENGTH",
    "count_oom_kills",
    "escape_unprintable",
    "may_restart",
    "will_be_restarted",
    "write_failure",
]

# SageMaker shows this many characters of the failure file: DescribeTrainingJob, FailureReason.
MAX_LENGTH = 1024

# Terminal colours and cursor movements; and characters that a log does not show, or that change its lines or direction.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# cgroup v2, then v1: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events; cgroup-v1/memory.html,
# memory.oom_control. In a container these are the files of the container's own cgroup.
_CGROUP_FILES = ("memory.events", os.path.join("memory", "memory.oom_control"))
_OOM_KILL = re.compile(r"^oom_kill\s+(\d+)\s*$", re.MULTILINE)


def write_failure(path: Optional[str], reason: str) -> None:
    """Write ``reason`` to the job's failure file unless it exists, or torchrun will start failed workers again.

    SageMaker's training toolkit does not overwrite the file. Its own reason would be the log from the first line on
    that contains the name of any exception, and would be empty for an argument error: ``sagemaker_training/files.py``,
    ``write_failure_file``, and ``process.py``, ``watch``.

    Args:
        path: The failure file; ``None`` outside a container, where nothing is written.
        reason: The reason without secrets, cause first; its first 1,024 characters are written.
    """
    if path is None or will_be_restarted():
        return
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Unbuffered, in one write: a reader sees nothing or all of the text while ranks are being killed.
        with open(path, "xb", buffering=0) as file:
            try:
                file.write(escape_unprintable(reason)[:MAX_LENGTH].encode("utf-8"))
            except OSError:
                # An empty one, on a disk that is full, would keep later reasons out.
                os.unlink(path)
                raise
    except OSError as error:
        if not os.path.isfile(path):
            log.warning("The failure reason could not be written to %s: %s", path, error)


def escape_unprintable(text: str) -> str:
    """Escape characters that cannot be encoded as UTF-8 or that change how a log is displayed."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), _TERMINAL.sub("", text))


def will_be_restarted() -> bool:
    """Whether torchrun starts its workers again after a failure of this one, so that the job has not failed.

    It reads ``TORCHELASTIC_RESTART_COUNT`` and ``TORCHELASTIC_MAX_RESTARTS``, which torchrun sets for its workers;
    SageMaker's own torchrun has no ``--max-restarts``, and then both are 0.
    """
    return _count("TORCHELASTIC_RESTART_COUNT") < _count("TORCHELASTIC_MAX_RESTARTS")


def may_restart() -> bool:
    """Whether torchrun was told to start failed workers again; the same on every host (``--max-restarts``)."""
    return _count("TORCHELASTIC_MAX_RESTARTS") > 0


def _count(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


def count_oom_kills(cgroup_root: str = "/sys/fs/cgroup") -> int:
    """Return how many processes of this container the kernel's OOM killer has killed; 0 if that is unknown.

    Args:
        cgroup_root: Where the cgroup file system is mounted.
    """
    for name in _CGROUP_FILES:
        with suppress(OSError), open(os.path.join(cgroup_root, name), encoding="ascii", errors="replace") as file:
            found = _OOM_KILL.search(file.read())
            if found is not None:
                return int(found.group(1))
    return 0
