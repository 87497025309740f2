"""Copies of a checkpoint that stay as they are while training goes on.

``BackgroundCheckpointIO``: checkpoints are written by a thread while training goes on.

Lightning's ``AsyncCheckpointIO`` is not used. Older ones read tensors that training is changing, and work for one fit
only. That of 2.6 copies them, on the GPU and into new memory each time, for as many saves as are waiting. All of them
remove the older checkpoint before the newer one has been written, and go on removing after a save has failed. torch's
asynchronous DCP writes folders, which Lightning reads with some strategies only.
"""

import copy
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from lightning_sm._checkpoint.atomic_io import WrappingIOMixin, save_options
from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._logging import log

__all__ = ["Snapshot", "BackgroundCheckpointIOMixin", "background_checkpoint_io", "finish_saves"]


class Snapshot:
    """A copy of a checkpoint in main memory, whose buffers serve again for the next one.

    New memory costs more time than what is copied into it, because the system hands it out page by page.
    """

    def __init__(self) -> None:
        self._buffers: Dict[Tuple[Any, ...], List[Any]] = {}

    def take(self, checkpoint: Mapping[str, Any]) -> Any:
        """Return a copy that shares nothing with ``checkpoint`` that could change, and ends the copy taken before.

        Tensors come to lie in main memory, wherever they were; those that share their values still do. Everything
        else is copied too, because training goes on to change it while the copy is being written.

        Raises:
            Exception: Something in the checkpoint cannot be copied. Objects have exceptions of their own for that.
        """
        import torch

        available, self._buffers = self._buffers, {}
        memo: Dict[int, Any] = {}
        at: Dict[Tuple[Any, ...], Any] = {}
        copies: List[Tuple[Any, Any]] = []
        # A callback may save under inference mode, and a buffer that is made there could not be written again.
        with torch.inference_mode(False), torch.no_grad():
            for tensor in _plain_tensors(checkpoint, set()):
                place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if place not in at:
                    at[place] = self._buffer(tensor, available)
                    copies.append((at[place], tensor.detach()))
                memo[id(tensor)] = at[place]
            _copy_all(copies)
            return copy.deepcopy(checkpoint, memo)

    def _buffer(self, tensor: Any, available: Dict[Tuple[Any, ...], List[Any]]) -> Any:
        import torch

        kind = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cuda)
        if available.get(kind):
            buffer = available[kind].pop()
        else:
            # Only into pinned memory does a GPU copy at full speed.
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
        self._buffers.setdefault(kind, []).append(buffer)
        return buffer


def _copy_all(copies: Sequence[Tuple[Any, Any]]) -> None:
    import torch

    on_gpu = [(buffer, tensor) for buffer, tensor in copies if tensor.is_cuda]
    others = [(buffer, tensor) for buffer, tensor in copies if not tensor.is_cuda]
    for buffer, tensor in on_gpu:
        buffer.copy_(tensor, non_blocking=True)
    # One core does not use all that the memory can do, and torchrun leaves torch itself one only.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        list(threads.map(_copy, others))
    for device in {tensor.device for _, tensor in on_gpu}:
        torch.cuda.current_stream(device).synchronize()


def _copy(pair: Tuple[Any, Any]) -> None:
    buffer, tensor = pair
    buffer.copy_(tensor)


def _plain_tensors(value: Any, seen: Set[int]) -> Iterator[Any]:
    """Every tensor in nested containers that a buffer can hold; parameters and other subclasses are left out."""
    import torch

    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) is torch.Tensor:
        if value.layout == torch.strided and not value.is_quantized and value.device.type != "meta":
            yield value
    elif isinstance(value, Mapping):
        for inner in list(value.values()):
            yield from _plain_tensors(inner, seen)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _plain_tensors(inner, seen)


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
