"""Atomic replacement of files: write under a temporary name, fsync, rename."""

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Iterator, Optional

__all__ = ["DeferredErrorFile", "flush", "remove", "remove_on_error", "replace_atomically"]


class DeferredErrorFile:
    """A file that stores the first ``OSError`` of a write instead of raising it.

    ``torch.save`` hides such an error behind an unrelated one, and before torch 2.0 aborts the process.

    Args:
        file: The file to write to, opened in binary mode.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        """Write ``data``, unless an earlier call has failed. Returns its size in bytes either way."""
        self._try(lambda: self._file.write(data))
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
        # A directory cannot be renamed over another one, so the older one is removed when the newer is complete.
        shutil.rmtree(target, ignore_errors=True)
    else:
        flush(partial)
    os.replace(partial, target)
    flush(os.path.dirname(target) or ".")


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
