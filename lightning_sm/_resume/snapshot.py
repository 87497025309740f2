"""``Snapshot``: a copy of a checkpoint in host memory, which a thread writes while training continues."""

import copy
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

__all__ = ["Snapshot"]


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
            for owner in _copyable_tensors(checkpoint, set()):
                tensor = owner if type(owner) is torch.Tensor else owner.to_local().detach()
                # Of one place in memory torch may take the conjugate values, or the negative ones.
                values = (tensor.dtype, tensor.is_conj(), tensor.is_neg())
                key = (tensor.device, tensor.data_ptr(), *values, tensor.shape, tensor.stride())
                if key not in self._buffers:
                    buffer = before.get(key)
                    if buffer is None:
                        # Copies from a GPU reach full speed only into pinned memory.
                        buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
                    self._buffers[key] = buffer
                    copies.append((buffer, tensor.detach()))
                buffer = self._buffers[key]
                memo[id(owner)] = buffer if owner is tensor else _with_local(owner, buffer)
            for buffer, tensor in copies:
                if tensor.device.type != "cpu":  # after what this thread's stream still computes
                    buffer.copy_(tensor)
            # One thread does not use the full memory bandwidth, and torchrun sets OMP_NUM_THREADS=1.
            with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
                list(threads.map(lambda pair: pair[1].device.type != "cpu" or pair[0].copy_(pair[1]), copies))
            return copy.deepcopy(checkpoint, memo)


def _copyable_tensors(value: Any, seen: Set[int]) -> Iterator[Any]:
    """Yield the strided tensors in nested containers, ``DTensor`` among them; other subclasses are skipped."""
    import torch

    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) is torch.Tensor or _is_dtensor(value):
        if value.layout == torch.strided and not value.is_quantized and value.device.type != "meta":
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in list(value.values()) if isinstance(value, Mapping) else value:
            yield from _copyable_tensors(inner, seen)


def _is_dtensor(value: Any) -> bool:
    # Since torch 2.5. That of 2.4 is copied as any other object, into new memory.
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor is not None and type(value) is dtensor


def _with_local(dtensor: Any, local: Any) -> Any:
    """Return the same shard of the same tensor, with its values in another place."""
    # The constructor differs from version to version; torch's own copies to the CPU do the same.
    copied = dtensor.detach()
    copied._local_tensor = local
    return copied
