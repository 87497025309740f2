"""A file that comes to stand under its name whole."""

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Callable, Iterator, Optional

__all__ = ["PatientFile", "flush", "put_in_place", "remove", "removed_on_error"]


class PatientFile:
    """A file that keeps an error of writing to itself until it is asked.

    torch's writer makes a riddle of such an error, and before 2.0 ends the process.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        """Write, unless that has failed before."""
        self._try(lambda: self._file.write(data))
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush, unless something has failed before."""
        self._try(self._file.flush)

    def raise_error(self) -> None:
        """Raise what failed first.

        Raises:
            OSError: Something could not be written.
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
def removed_on_error(partial: str) -> Iterator[None]:
    """Remove what is there of a file or folder when an error leaves the block."""
    try:
        yield
    except BaseException:
        remove(partial)
        raise


def put_in_place(partial: str, target: str) -> None:
    """Flush a file, or take a folder as it is, and rename it to ``target``, in place of what is there."""
    if os.path.isdir(partial):
        # Some write a folder. It cannot be renamed over another; the older one goes when the newer is complete.
        shutil.rmtree(target, ignore_errors=True)
    else:
        flush(partial)
    os.replace(partial, target)
    flush(os.path.dirname(target) or ".")


def flush(path: str) -> None:
    """Have a file or folder on the disk, where its mount can be told to."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # mounts that cannot be told to flush
            raise
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file or folder, as far as that can be done."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)
