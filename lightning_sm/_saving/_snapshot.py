"""Copies of a checkpoint that stay as they are while training goes on."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

__all__ = ["Snapshot"]


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
