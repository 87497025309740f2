"""``AtomicCheckpointIO``: a checkpoint appears under its final name complete, or not at all; also in the background.

Lightning's ``AsyncCheckpointIO`` is not used. Older versions read tensors that training is modifying, and work for one
fit only. That of 2.6 copies the tensors, on the GPU and into new memory each time, for any number of pending saves. All
versions remove the older checkpoint before the newer one has been written, and continue to remove after a failed save.
torch's asynchronous DCP writes directories, which Lightning loads with some strategies only.
"""

import os
import secrets
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pickle import PicklingError
from queue import LifoQueue
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional

from lightning_sm._atomic_file import partial_path, remove_on_error, remove_stale, replace_atomically
from lightning_sm._lightning import Namespace, has_base, namespaced_class
from lightning_sm._logging import log
from lightning_sm._resume.ranks import ROOM_HINT
from lightning_sm._resume.record import CheckpointRecord, SavedFile
from lightning_sm._resume.series import complete_record, saved_record
from lightning_sm._resume.snapshot import Snapshot
from lightning_sm._resume.storage import Storage, absolute_path, is_remote, storage_error
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AtomicCheckpointIOMixin", "atomic_checkpoint_io"]

if TYPE_CHECKING:
    from pytorch_lightning.plugins import CheckpointIO as _Base
else:
    _Base = object

# Two callbacks may save after the same batch, such as the best model and the last, without waiting for each other.
_MAX_SNAPSHOTS = 2


class AtomicCheckpointIOMixin(_Base):
    """Write to a hidden file or folder in the same directory, and rename it to the final name when it is complete.

    Neither SageMaker's uploader nor a process that searches for a checkpoint sees an incomplete file, and a save that
    fails or is killed leaves the older file intact. Lightning's ``TorchCheckpointIO`` does not guarantee that: older
    versions write to the final name, newer ones with ``fsspec`` to ``/tmp`` and then *copy* to another file system.

    Between :meth:`start` and :meth:`finish` a save returns when the checkpoint has been copied in host memory, and one
    other thread runs saves and removals in order; a third save waits for the first. An error is raised by the next save
    or by :meth:`finish`; pending removals are then skipped, because the older checkpoint is the newest complete one.

    At a URL, an upload replaces the older checkpoint when all of it has arrived. Where the inner ``CheckpointIO`` is
    Lightning's, it sends a temporary file (in ``TMPDIR``), and so it does with the job's own series; another one gets
    the URL. For local files, Lightning's is used in place of s3torchconnector's, which has URLs only; and for the job's
    own series in place of any but XLA's, as a project's may leave out what another program does not need.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    namespace: Namespace

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self._thread: Optional[ThreadPoolExecutor] = None
        self._error: Optional[BaseException] = None
        self._last: Optional[Future[None]] = None
        self._pending: List[str] = []
        # The one that was used last is used first, so that there is a second one only where it is needed.
        self._snapshots: LifoQueue[Snapshot] = LifoQueue()
        #: The path of the job's own save that is about to be loaded.
        self.resumed = ""
        #: How many seconds the slowest save in the thread has taken.
        self.slowest = 0.0

    def __getstate__(self) -> Any:
        """A copy, such as one of the whole trainer, saves synchronously: threads cannot be copied."""
        return self.inner

    def __setstate__(self, inner: Any) -> None:
        AtomicCheckpointIOMixin.__init__(self, inner)

    def start(self) -> None:
        """Save in the background from now on."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lightning-sm-checkpoints")
            for _ in range(_MAX_SNAPSHOTS):
                self._snapshots.put(Snapshot())

    def finish(self, *, failed: bool = False) -> None:
        """Wait for pending saves, free the memory, and save synchronously from now on.

        Args:
            failed: Whether the training has failed: an error of a save is only logged.

        Raises:
            Exception: The error of the last save, such as :class:`~lightning_sm.errors.CheckpointError`.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True)
        self._last, self._snapshots = None, LifoQueue()
        try:
            self._wait()
        except Exception as error:
            if not failed:
                raise
            log.error("%s", error)

    def is_pending(self, path: Any) -> bool:
        """Whether a save to ``path`` has not completed yet."""
        return absolute_path(path) in self._pending

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Save ``checkpoint`` to ``path``, or a copy of it as it is now.

        Raises:
            CheckpointError: The file could not be written. The previous file is unchanged.
        """
        target = absolute_path(path)
        if self._thread is not None:
            snapshot = self._snapshots.get()
            try:
                copied = None if self._error is not None else snapshot.take(checkpoint)
            except Exception as error:  # any object in the checkpoint may refuse to be copied
                copied = None
                log.warning("Saving %s synchronously: the checkpoint cannot be copied (%s)", path, error)
            if copied is not None:
                self._pending.append(target)
                self._queue(partial(self._save, copied, target, storage_options), target, snapshot)
                return
            self._snapshots.put(snapshot)
        self._wait()
        self._save(checkpoint, target, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for pending saves and removals, and load the checkpoint with the inner ``CheckpointIO``."""
        self._wait()
        is_own = os.fspath(path) == self.resumed
        return self._io_for(path, is_own=is_own).load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove the checkpoint, after the pending saves, such as that of its replacement."""
        if self._last is None or (self._last.done() and self._error is None):
            self._remove(path)
        else:
            self._queue(partial(self._remove, absolute_path(path)))

    def teardown(self) -> None:
        """Finish, and tear down the inner ``CheckpointIO``; before Lightning 1.6 it has no ``teardown``."""
        self.finish()
        if hasattr(self.inner, "teardown"):
            self.inner.teardown()

    def __getattr__(self, name: str) -> Any:
        # A project's own CheckpointIO may have attributes that Lightning's class has not.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _queue(self, task: Callable[[], Any], target: str = "", snapshot: Optional[Snapshot] = None) -> None:
        def run() -> None:
            started = time.monotonic()
            try:
                if self._error is None:
                    task()
                    self.slowest = max(self.slowest, time.monotonic() - started)
            except BaseException as error:
                self._error = error
            finally:
                if snapshot is not None:
                    self._pending.remove(target)
                    self._snapshots.put(snapshot)

        assert self._thread is not None
        self._last = self._thread.submit(run)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()  # a pending removal must see the error, and skip
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _save(self, checkpoint: Any, target: str, storage_options: Any) -> None:
        # A CheckpointIO of Lightning 1.5 has no such parameter.
        options = {} if storage_options is None else {"storage_options": storage_options}
        record = saved_record(checkpoint)
        if is_remote(target):
            self._save_remote(checkpoint, target, options, record)
            return
        directory, name = os.path.split(target)
        save_id = secrets.token_hex(8)
        hidden = partial_path(target, save_id)
        with _checkpoint_errors(target), remove_on_error(hidden):
            os.makedirs(directory, exist_ok=True)
            remove_stale(directory, save_id)
            checkpoint_io = self._io_for(target, is_own=record is not None)
            if self._is_lightnings(checkpoint_io, options):
                _write_file(checkpoint_io, checkpoint, hidden)
                replace_atomically(hidden, target)
            else:
                # It may give the path another ending, or write files beside it.
                os.mkdir(hidden)
                checkpoint_io.save_checkpoint(checkpoint, os.path.join(hidden, name), **options)
                written = sorted(os.listdir(hidden), key=lambda each: each == name)
                if not written:
                    raise CheckpointError(
                        f"{type(checkpoint_io).__name__}.save_checkpoint has returned without writing {target}.",
                        hint="Let it return when all is written; with sagemaker.async_save a thread calls it.",
                    )
                for each in written:
                    replace_atomically(os.path.join(hidden, each), os.path.join(directory, each))
                os.rmdir(hidden)
            if record is not None:
                complete_record(record, directory, [SavedFile.read(directory, name)])

    def _remove(self, path: Any) -> None:
        """Remove a checkpoint. A remote one that cannot be removed is named in the log: training goes on."""
        try:
            self._io_for(path).remove_checkpoint(path)
        except Exception as error:  # of the package for this kind of URL
            if not is_remote(path):
                raise
            log.warning("%s", storage_error(str(path), "cannot be removed", error))

    def _save_remote(self, checkpoint: Any, url: str, options: Any, record: Optional[CheckpointRecord]) -> None:
        """Write a temporary file and upload it, or let a project's own ``CheckpointIO`` write to the URL.

        Of a save of the series the record must tell the size and CRC-32.
        """
        if self._is_lightnings(self.inner, options) or record is not None:
            with tempfile.TemporaryDirectory(prefix="lightning-sm-") as folder:
                part = os.path.join(folder, "checkpoint")
                with _checkpoint_errors(url):
                    _write_file(self._io_for(part, is_own=record is not None), checkpoint, part)
                parent, _, name = url.rpartition("/")
                Storage(parent).upload(part, name)
                if record is not None:
                    complete_record(record, parent, [replace(SavedFile.read(folder, "checkpoint"), name=name)])
            return
        try:
            self.inner.save_checkpoint(checkpoint, url, **options)
        except (LightningSMError, AttributeError, TypeError, PicklingError):  # the program's, not the storage's
            raise
        except Exception as error:
            raise storage_error(url, "could not be saved; an older checkpoint is unchanged", error) from error

    def _io_for(self, path: Any, *, is_own: bool = False) -> Any:
        is_of_s3 = type(self.inner).__module__.partition(".")[0] == "s3torchconnector" and not is_remote(path)
        # Only that of XLA moves the device's tensors, which could not be loaded.
        is_replaced = is_of_s3 or (is_own and not has_base(type(self.inner), "XLACheckpointIO"))
        return self.namespace.module("plugins").TorchCheckpointIO() if is_replaced else self.inner

    def _is_lightnings(self, checkpoint_io: Any, options: Any) -> bool:
        return type(checkpoint_io) is self.namespace.module("plugins").TorchCheckpointIO and not options


def atomic_checkpoint_io(namespace: Namespace) -> type:
    """Return ``AtomicCheckpointIO`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace, "AtomicCheckpointIO", f"{__name__}:{AtomicCheckpointIOMixin.__name__}", "plugins:CheckpointIO"
    )


@contextmanager
def _checkpoint_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a failed write
        raise CheckpointError(
            f"The checkpoint {path} could not be saved ({type(error).__name__}: {error}). An older one is unchanged.",
            hint=ROOM_HINT,
        ) from error


def _write_file(checkpoint_io: Any, checkpoint: Any, path: str) -> None:
    """Write a file as Lightning's own class does."""
    import torch

    if has_base(type(checkpoint_io), "XLACheckpointIO"):
        checkpoint_io.save_checkpoint(checkpoint, path)
        return
    try:
        # TorchCheckpointIO makes two more copies of the checkpoint in memory and one in /tmp before this file.
        torch.save(checkpoint, path)
    except AttributeError:  # a hyperparameter that cannot be pickled, which older Lightnings leave out
        checkpoint_io.save_checkpoint(checkpoint, path)
