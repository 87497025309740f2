"""``BackgroundCheckpointIO``: checkpoints are written by a thread while training goes on.

Lightning's ``AsyncCheckpointIO`` is not used. Older ones read tensors that training is changing, and work for one fit
only. That of 2.6 copies them, on the GPU and into new memory each time, for as many saves as are waiting. All of them
remove the older checkpoint before the newer one has been written, and go on removing after a save has failed. torch's
asynchronous DCP writes folders, which Lightning reads with some strategies only.
"""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, List, NamedTuple, Optional

from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._lightning._shims import strategy_of
from lightning_sm._log import log
from lightning_sm._saving._snapshot import Snapshot
from lightning_sm._saving._wrapping_io import WrappingIOMixin, save_options

__all__ = ["BackgroundCheckpointIOMixin", "background_checkpoint_io", "finish_saves"]

# Two callbacks that save at the same moment, such as the best model and the last, need not wait for each other.
_MOST_SNAPSHOTS = 2


class _Save(NamedTuple):
    path: str
    done: "Future[None]"
    snapshot: Snapshot


class BackgroundCheckpointIOMixin(WrappingIOMixin):
    """Copy a checkpoint in the calling thread and let one other thread do, in order, what was asked for.

    Between :meth:`start` and :meth:`finish` a save returns when the copy is made. A third save waits for the first. An
    error is raised by the next save or by :meth:`finish`; after an error nothing is removed any more, because the
    older checkpoint is then the newest. At other times everything is done at once.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._is_active = False
        self._thread: Optional[ThreadPoolExecutor] = None
        self._error: Optional[BaseException] = None
        self._saves: Deque[_Save] = deque()
        self._last: Optional[Future[None]] = None
        self._free: List[Snapshot] = []

    def start(self) -> None:
        """From now on, save in the background."""
        self._is_active = True

    def finish(self) -> None:
        """Wait for everything, give the memory back, and save in the calling thread from now on.

        Raises:
            Exception: What the last save failed of, such as :class:`~lightning_sm.errors.CheckpointError`.
        """
        self._is_active = False
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._thread, self._last = None, None
        self._saves.clear()
        self._free.clear()
        self._raise_error()

    def is_being_saved(self, path: Any) -> bool:
        """Whether a checkpoint of that name is still to be written."""
        return any(save.path == os.fspath(path) and not save.done.done() for save in self._saves)

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Save a copy of ``checkpoint`` as it is now."""
        options = save_options(storage_options)
        snapshot = self._free_snapshot() if self._is_active else None
        self._raise_error()
        if snapshot is not None:
            try:
                checkpoint = snapshot.take(checkpoint)
            except Exception as error:  # whatever an object in the checkpoint raises when it is copied
                log.warning("%s is saved while training waits, for it cannot be copied (%s)", path, error)
                snapshot = None
        if snapshot is None:
            self._wait()
            self.inner.save_checkpoint(checkpoint, path, **options)
            return
        done = self._queue(lambda: self.inner.save_checkpoint(checkpoint, path, **options))
        self._saves.append(_Save(os.fspath(path), done, snapshot))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load what is there when everything that was asked for before has been done."""
        self._wait()
        return super().load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove what is there, after everything that was asked for before, such as the save that replaces it."""
        if self._last is None or (self._last.done() and self._error is None):
            self.inner.remove_checkpoint(path)
        else:
            self._queue(lambda: self.inner.remove_checkpoint(path))

    def teardown(self) -> None:
        """Finish, and tear down the other one."""
        self.finish()
        super().teardown()

    def _queue(self, task: Callable[[], None]) -> "Future[None]":
        def run() -> None:
            if self._error is None:
                try:
                    task()
                except BaseException as error:
                    self._error = error

        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lightning-sm-checkpoints")
        self._last = self._thread.submit(run)
        return self._last

    def _free_snapshot(self) -> Snapshot:
        """A snapshot that no save needs any more; its buffers are kept for this."""
        while self._saves and (self._saves[0].done.done() or len(self._saves) == _MOST_SNAPSHOTS):
            save = self._saves.popleft()
            save.done.result()
            self._free.append(save.snapshot)
        return self._free.pop() if self._free else Snapshot()

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is None:
            return
        if self._last is not None:
            self._last.result()  # a removal that still waits must find the error, and not remove
        error, self._error = self._error, None
        raise error


def finish_saves(trainer: Any) -> None:
    """Wait for what is being saved in the background, and save in the calling thread from now on.

    Raises:
        Exception: What the last save failed of.
    """
    checkpoint_io = getattr(strategy_of(trainer), "checkpoint_io", None)
    if isinstance(checkpoint_io, BackgroundCheckpointIOMixin):
        checkpoint_io.finish()


def background_checkpoint_io(namespace: Namespace) -> type:
    """Return ``BackgroundCheckpointIO`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace,
        "BackgroundCheckpointIO",
        f"{__name__}:{BackgroundCheckpointIOMixin.__name__}",
        "plugins:CheckpointIO",
    )
