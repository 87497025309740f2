"""Atomic replacement of files: write under a temporary name, fsync, rename."""

import errno
import os
import re
import secrets
import shutil
import zlib
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Iterator, List, Optional

__all__ = ["DeferredErrorFile", "flush", "remove", "remove_on_error", "replace_atomically", "restore_replaced"]


class DeferredErrorFile:
    """A file that stores the first ``OSError`` of a write instead of raising it.

    ``torch.save`` hides such an error behind an unrelated one, and before torch 2.0 aborts the process.

    Args:
        file: The file to write to, opened in binary mode.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: Optional[OSError] = None
        #: The CRC-32 of what has been written.
        self.crc32 = 0

    def write(self, data: Any) -> int:
        """Write ``data``, unless an earlier call has failed. Returns its size in bytes either way."""
        self._try(lambda: self._file.write(data))
        self.crc32 = zlib.crc32(data, self.crc32)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush, unless an earlier call has failed."""
        self._try(self._file.flush)

    def raise_error(self) -> None:
        """Raise the stored error, if there is one.

        Raises:
            OSError: The first error of a write or flush.
        """
        if self._error is not None:
            raise self._error

    def _try(self, action: Callable[[], Any]) -> None:
        if self._error is None:
            try:
                action()
            except OSError as error:
                self._error = error


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
    if os.path.isdir(partial):
        _replace_directory(partial, target)
        return
    flush(partial)
    os.replace(partial, target)
    flush(os.path.dirname(target) or ".")


def _replace_directory(partial: str, target: str) -> None:
    parent, name = os.path.split(os.path.abspath(target))
    if not os.path.lexists(target):
        os.rename(partial, target)
        flush(parent)
    elif _exchange(partial, target):
        flush(parent)
        remove(partial)
    else:
        # No rename replaces a directory that is not empty. For a moment only the hidden names exist.
        aside = os.path.join(parent, f".{name}{_REPLACED}{secrets.token_hex(4)}")
        os.rename(target, aside)
        try:
            os.rename(partial, target)
        except BaseException:
            os.rename(aside, target)
            raise
        flush(parent)
        remove(aside)


_REPLACED = ".replaced-"
_REPLACED_NAME = re.compile(r"\.(.+)\.replaced-[0-9a-f]{8}")


def restore_replaced(directory: str) -> List[str]:
    """Rename back the directories that a killed :func:`replace_atomically` had renamed aside, and return their names.

    One that has been replaced is removed. No other process may be replacing a directory there.

    Args:
        directory: The directory that contains them.
    """
    restored = []
    for name in os.listdir(directory):
        match = _REPLACED_NAME.fullmatch(name)
        if match is None:
            continue
        aside, target = os.path.join(directory, name), os.path.join(directory, match.group(1))
        if os.path.lexists(target):
            remove(aside)
            continue
        with suppress(OSError):  # another host on a shared file system was faster
            os.rename(aside, target)
            restored.append(match.group(1))
    return restored


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
    """Remove a file or directory; errors are ignored."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)
