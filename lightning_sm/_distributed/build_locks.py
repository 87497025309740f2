"""Locks of torch's builds of C++ extensions, which DeepSpeed needs at its first use.

A build that is killed leaves its lock behind, and every later process waits for it forever without a line in the log.
"""

import os
import time
from pathlib import Path

from lightning_sm._logging import log

__all__ = ["remove_left_locks"]

# A build closes its lock right before it removes it.
_CLOSING_SECONDS = 0.2


def remove_left_locks(folder: Path, *, shared: bool) -> None:
    """Remove the locks of builds that were killed, with a line for each. One process of each host should call it.

    torch keeps the file open while it builds, so a lock that no process of this host has open was left behind, unless
    another host builds in the same folder. Source: ``torch/utils/file_baton.py``.

    Args:
        folder: The folder of the extensions, which need not exist.
        shared: Whether other hosts may build in it. Then the lines say what to do, and nothing is removed.
    """
    # <extension>/lock and <Python and CUDA>/<extension>/lock
    locks = [path for pattern in ("*/lock", "*/*/lock") for path in folder.glob(pattern) if path.is_file()]
    left = [lock for lock in locks if not _is_open(lock)]
    if left:
        time.sleep(_CLOSING_SECONDS)
    for lock in left:
        if not lock.exists() or _is_open(lock):
            continue
        if shared:
            log.warning(
                "%s is there, no process of this host builds, and torch waits for it forever. "
                "HINT: Delete the file, unless a build runs on another host.",
                lock,
            )
        else:
            lock.unlink()
            log.warning("Removed a lock that a killed build left behind: %s.", lock)


def _is_open(path: Path) -> bool:
    """Whether a process of this host has a file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.path.samefile(descriptor, path):
                return True
        except OSError:  # it has been closed, or the process has ended
            continue
    return False
