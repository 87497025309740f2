"""Locks of torch's builds of C++ extensions, which DeepSpeed needs at its first use.

A build that is killed leaves its lock behind, and every later process waits for it forever without a line in the log.
"""

import os
import time
from pathlib import Path
from typing import Iterator, List, Mapping

from lightning_sm._logging import log
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["build_locks", "extensions_folder", "remove_left_locks"]

# File systems that other hosts may write to, whose processes cannot be seen from here.
_SHARED = ("nfs", "lustre", "fuse", "ceph", "cifs", "efs", "9p")
# A build closes its lock right before it removes it.
_CLOSING_SECONDS = 0.2


def extensions_folder(environ: Mapping[str, str]) -> str:
    """Where torch builds extensions: ``TORCH_EXTENSIONS_DIR``, by default ``torch_extensions`` in the user's cache.

    Args:
        environ: The environment variables.
    """
    caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '/root'}/.cache"
    return environ.get("TORCH_EXTENSIONS_DIR") or f"{caches}/torch_extensions"


def build_locks(folder: Path) -> Iterator[Path]:
    """Find locks as torch lays them out: ``<extension>/lock`` and ``<Python and CUDA>/<extension>/lock``.

    Args:
        folder: The folder of the extensions, which need not exist.
    """
    for first in _names(folder):
        for extension in (folder / first, *(folder / first / second for second in _names(folder / first))):
            lock = extension / "lock"
            if os.path.isfile(lock):
                yield lock


def _names(folder: Path) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        # ValueError: a name that no file can have, from the saved variables of a job.
        return []


def remove_left_locks(folder: Path) -> None:
    """Remove the locks of builds that were killed, with a line for each. One process of each host should call it.

    torch keeps the file open while it builds, so a lock that no process of this host has open was left behind, unless
    another host builds in the same folder. Source: ``torch/utils/file_baton.py``.

    Args:
        folder: The folder of the extensions, which need not exist.

    Raises:
        StrategyUnavailableError: Whether a build goes on cannot be known here, or a lock cannot be removed.
    """
    left = [lock for lock in build_locks(folder) if not _is_open(lock)]
    if not left:
        return
    time.sleep(_CLOSING_SECONDS)
    for lock in left:
        try:
            age = time.time() - lock.stat().st_mtime
        except OSError:
            continue
        if _is_open(lock):
            continue
        text = f"{lock} is {age / 60:.0f} minutes old, and no process of this host builds"
        hint = "Delete the file, unless a build runs on another host at this moment."
        if _is_shared(lock):
            raise StrategyUnavailableError(f"{text}: torch would wait for it forever.", hint=hint)
        try:
            lock.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StrategyUnavailableError(f"{text}; removing it failed: {error}.", hint=hint) from error
        log.warning("Removed a lock that a killed build left behind: %s.", text)


def _is_open(path: Path) -> bool:
    """Whether a process of this host, of those that may be read, has a file open."""
    try:
        wanted = os.stat(path)
    except OSError:
        return False
    for process in filter(str.isdecimal, os.listdir("/proc")):
        descriptors = f"/proc/{process}/fd"
        for name in _names(Path(descriptors)):
            try:
                found = os.stat(f"{descriptors}/{name}")
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def _is_shared(path: Path) -> bool:
    """Whether a file is on a file system of the network, by the longest mount point above it."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    target = os.path.realpath(path)
    found = [
        (fields[1], fields[2])
        for fields in (line.split() for line in lines)
        if len(fields) > 2 and os.path.commonpath([target, fields[1]]) == fields[1]
    ]
    return bool(found) and max(found, key=lambda mount: len(mount[0]))[1].startswith(_SHARED)
