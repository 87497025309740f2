"""Atomic replacement of files: write under a temporary name, fsync, rename; and whether a directory can be written."""

import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import Iterator, Set

from lightning_sm._logging import log
from lightning_sm.errors import OutputError

__all__ = [
    "check_writable",
    "flush",
    "partial_path",
    "remove",
    "remove_at_once",
    "remove_on_error",
    "remove_stale",
    "replace_atomically",
]

_STALE = re.compile(r"\..+\.(partial|removed)-[0-9a-f]{16}")
# How much of a name its hidden names keep: a character takes up to 4 bytes, and a name 255.
_KEPT = 50
# About the start of this process.
_STARTED = time.time()
# Where this process has looked for what earlier ones left.
_cleaned: Set[str] = set()


def partial_path(target: str, save_id: str, directory: str = "") -> str:
    """Return the hidden name of a checkpoint while it is being written.

    Args:
        target: Its final path.
        save_id: 16 hexadecimal digits.
        directory: Where it is written; by default beside ``target``.
    """
    parent, name = os.path.split(target)
    return os.path.join(directory or parent, f".{name[:_KEPT]}.partial-{save_id}")


def remove_stale(directory: str, save_id: str) -> None:
    """Remove what earlier runs that were killed have left of files under hidden names, once in a process.

    What has been written since this process started may be another one's, which saves there at the same time.

    Args:
        directory: The directory.
        save_id: The digits of what is being written there now.
    """
    if directory in _cleaned:
        return
    _cleaned.add(directory)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if _STALE.fullmatch(name) and not name.endswith(save_id):
            with suppress(OSError):  # another process has renamed or removed it
                within = (os.path.join(base, file) for base, _, files in os.walk(path) for file in files)
                if max(os.lstat(each).st_mtime for each in (path, *within)) < _STARTED:
                    log.info("Removing the incomplete checkpoint of an interrupted run: %s", path)
                    remove(path)


@contextmanager
def remove_on_error(partial: str) -> Iterator[None]:
    """Remove a partial file or directory if the block raises."""
    try:
        yield
    except BaseException:
        remove(partial)
        raise


def replace_atomically(partial: str, target: str) -> None:
    """Flush a file, or take a directory as it is, and rename it to ``target``, replacing what is there."""
    is_directory = os.path.isdir(partial)
    if not is_directory:
        flush(partial)
    # No rename replaces a directory that is not empty, or puts one in the place of a file.
    is_in_the_way = os.path.lexists(target) if is_directory else os.path.isdir(target)
    if not is_in_the_way:
        os.replace(partial, target)
    else:
        # Without an exchange no one is there for a moment.
        if not _exchange(partial, target):
            remove_at_once(target)
            os.rename(partial, target)
        remove(partial)
    flush(os.path.dirname(target) or ".")


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _exchange(one: str, other: str) -> bool:
    """Exchange two names in one step, if the file system can do that: renameat2(2), which Python does not have."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # a C library without it
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def flush(path: str) -> None:
    """Call ``fsync`` on a file or directory, where its file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without fsync
            raise
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file, link or directory; errors are ignored."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def remove_at_once(path: str) -> None:
    """Remove a file or directory: first its name, so that nobody sees a part of it. Errors are ignored."""
    parent, name = os.path.split(os.path.abspath(path))
    hidden = os.path.join(parent, f".{name[:_KEPT]}.removed-{secrets.token_hex(8)}")
    with suppress(OSError):  # another host on a shared file system was faster, or nothing is there
        os.rename(path, hidden)
        remove(hidden)


def check_writable(directory: str, what: str) -> None:
    """Create a directory and a temporary file in it, so that a job fails before training and not after it.

    Args:
        directory: The directory.
        what: What it is, for the error, such as ``model directory``.

    Raises:
        OutputError: The directory is not writable, or is a URL.
    """
    if "://" in directory:
        raise OutputError(
            f"The {what} {directory} is not on this host.", hint="Set a local directory; SageMaker uploads it to S3."
        )
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(
            f"The {what} {directory} cannot be written ({error}).",
            hint="Check the directory's mount and owner, and what else is configured to be there.",
        ) from error
