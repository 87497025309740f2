"""``BackgroundCheckpointIO``: a thread writes copies of checkpoints while training continues.

Lightning's ``AsyncCheckpointIO`` is not used. Older versions read tensors that training is modifying, and work for one
fit only. That of 2.6 copies the tensors, on the GPU and into new memory each time, for any number of pending saves. All
versions remove the older checkpoint before the newer one has been written, and continue to remove after a failed save.
torch's asynchronous DCP writes directories, which Lightning loads with some strategies only.
"""

import copy
import os
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._logging import log
from lightning_sm._resume.atomic_io import WrappingCheckpointIOMixin, save_options

__all__ = ["BackgroundCheckpointIOMixin", "Snapshot", "background_checkpoint_io"]


class Snapshot:
    """A copy of a checkpoint in host memory, whose buffers are used again for the next one.

    Allocating new memory takes longer than the copy itself, because of its page faults.
    """

    def __init__(self) -> None:
        # By where the original is: weights and states of optimizers stay where they are.
        self._buffers: Dict[Tuple[Any, ...], Any] = {}

    def take(self, checkpoint: Mapping[str, Any]) -> Any:
        """Return a deep copy of ``checkpoint`` in host memory, which invalidates the previous copy.

        Tensors that share memory share it in the copy, too. Everything else is copied as well, because training
        modifies it while the copy is being written.

        Raises:
            Exception: Something in the checkpoint cannot be copied; the type depends on the object.
        """
        import torch

        before, self._buffers = self._buffers, {}
        memo: Dict[int, Any] = {}
        copies: List[Tuple[Any, Any]] = []
        # A callback may save in inference mode; a buffer created there could not be modified later.
        with torch.inference_mode(False), torch.no_grad():
            for tensor in _copyable_tensors(checkpoint, set()):
                key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if key not in self._buffers:
                    buffer = before.get(key)
                    if buffer is None:
                        # Copies from a GPU reach full speed only into pinned memory.
                        buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
                    self._buffers[key] = buffer
                    copies.append((buffer, tensor.detach()))
                memo[id(tensor)] = self._buffers[key]
            for buffer, tensor in copies:
                if tensor.is_cuda:  # after what this thread's stream still computes
                    buffer.copy_(tensor)
            # One thread does not use the full memory bandwidth, and torchrun sets OMP_NUM_THREADS=1.
            with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
                list(threads.map(lambda pair: pair[1].is_cuda or pair[0].copy_(pair[1]), copies))
            return copy.deepcopy(checkpoint, memo)


def _copyable_tensors(value: Any, seen: Set[int]) -> Iterator[Any]:
    """Yield the strided tensors in nested containers; parameters and other subclasses are skipped."""
    import torch

    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) is torch.Tensor:
        if value.layout == torch.strided and not value.is_quantized and value.device.type != "meta":
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in list(value.values()) if isinstance(value, Mapping) else value:
            yield from _copyable_tensors(inner, seen)


# Two callbacks may save after the same batch, such as the best model and the last, without waiting for each other.
_MAX_SNAPSHOTS = 2


class BackgroundCheckpointIOMixin(WrappingCheckpointIOMixin):
    """Copy a checkpoint in the calling thread, and run saves and removals in order in one other thread.

    Between :meth:`start` and :meth:`finish` a save returns when the copy is complete. A third save waits for the first.
    An error is raised by the next save or by :meth:`finish`; pending removals are then skipped, because the older
    checkpoint is the newest complete one. Before and after, saves and removals are synchronous.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._thread: Optional[ThreadPoolExecutor] = None
        self._error: Optional[BaseException] = None
        self._last: Optional[Future[None]] = None
        self._pending: List[str] = []
        # The one that was used last is used first, so that there is a second one only where it is needed.
        self._snapshots: LifoQueue[Snapshot] = LifoQueue()

    def start(self) -> None:
        """Save in the background from now on."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lightning-sm-checkpoints")
            self._snapshots = LifoQueue()
            for _ in range(_MAX_SNAPSHOTS):
                self._snapshots.put(Snapshot())

    def finish(self) -> None:
        """Wait for pending saves, free the buffers, and save synchronously from now on.

        Raises:
            Exception: The error of the last save, such as :class:`~lightning_sm.errors.CheckpointError`.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True)
        self._last, self._snapshots = None, LifoQueue()
        self._wait()

    def is_pending(self, path: Any) -> bool:
        """Whether a save to ``path`` has not completed yet."""
        return os.fspath(path) in self._pending

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Save a copy of the current state of ``checkpoint``."""
        options, name = save_options(storage_options), os.fspath(path)
        if self._thread is not None:
            snapshot = self._snapshots.get()
            if self._error is not None:
                self._snapshots.put(snapshot)
                self._wait()
            try:
                copied = snapshot.take(checkpoint)
            except Exception as error:  # any object in the checkpoint may refuse to be copied
                self._snapshots.put(snapshot)
                log.warning("Saving %s synchronously: the checkpoint cannot be copied (%s)", path, error)
            else:
                self._pending.append(name)
                self._queue(lambda: self.inner.save_checkpoint(copied, path, **options), name, snapshot)
                return
        self._wait()
        self.inner.save_checkpoint(checkpoint, path, **options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for pending saves and removals, and load the checkpoint."""
        self._wait()
        return super().load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove the checkpoint after the pending saves, such as that of its replacement."""
        if self._last is None or (self._last.done() and self._error is None):
            self.inner.remove_checkpoint(path)
        else:
            self._queue(lambda: self.inner.remove_checkpoint(path))

    def teardown(self) -> None:
        """Finish, and tear down the inner ``CheckpointIO``."""
        self.finish()
        super().teardown()

    def _queue(self, task: Callable[[], Any], name: str = "", snapshot: Optional[Snapshot] = None) -> None:
        def run() -> None:
            try:
                if self._error is None:
                    task()
            except BaseException as error:
                self._error = error
            finally:
                if snapshot is not None:
                    self._pending.remove(name)
                    self._snapshots.put(snapshot)

        assert self._thread is not None
        self._last = self._thread.submit(run)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()  # a pending removal must see the error, and skip
        error, self._error = self._error, None
        if error is not None:
            raise error


def background_checkpoint_io(namespace: Namespace) -> type:
    """Return ``BackgroundCheckpointIO`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace,
        "BackgroundCheckpointIO",
        f"{__name__}:{BackgroundCheckpointIOMixin.__name__}",
        "plugins:CheckpointIO",
    )
