"""Broadcasts objects as tensors, for backends whose object collectives are undocumented."""

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["broadcast_object"]


def broadcast_object(obj: Any, src: int, rank: int, device: "torch.device") -> Any:
    """Return the object of rank ``src`` on every rank of the default group.

    Args:
        obj: What rank ``src`` has to say.
        src: The rank that speaks.
        rank: This process's rank.
        device: Where the backend's tensors live.
    """
    import torch
    import torch.distributed as dist

    payload = bytearray(pickle.dumps(obj)) if rank == src else bytearray()
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    dist.broadcast(size, src)
    content = torch.zeros(int(size.item()), dtype=torch.uint8)
    if rank == src:
        content = torch.frombuffer(payload, dtype=torch.uint8)
    content = content.to(device)
    dist.broadcast(content, src)
    return obj if rank == src else pickle.loads(content.cpu().numpy().tobytes())
