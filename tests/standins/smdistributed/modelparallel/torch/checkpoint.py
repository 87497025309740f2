"""``smp.save_checkpoint`` and ``smp.resume_from_checkpoint`` of the stand-in, for partial checkpoints."""

import os

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import calls, pp_rank, rank, rdp_rank, state, tp_rank, tp_size


def _paths(path, tag):
    """This rank's files ``path/tag_partial/{model,optimizer}_<ranks>.pt``, and ``user_content.pt``."""
    folder = os.path.join(path, f"{tag}_partial")
    part = f"_{pp_rank()}_{tp_rank()}" if tp_size() > 1 else f"_{pp_rank()}"
    return [os.path.join(folder, name) for name in (f"model{part}.pt", f"optimizer{part}.pt", "user_content.pt")]


def save_checkpoint(path, tag, partial, model, optimizer, user_content):
    calls.append(("save_checkpoint", partial))
    model_path, optimizer_path, content = _paths(path, tag)
    os.makedirs(os.path.dirname(content), exist_ok=True)
    if rdp_rank() == 0:
        torch.save(model.local_state_dict(), model_path)
        torch.save(optimizer.local_state_dict(), optimizer_path)
    if rank() == 0:
        torch.save(user_content, content)
        with open(os.path.join(path, "newest"), "w") as newest:
            newest.write(tag)
    dist.barrier()


def resume_from_checkpoint(path, tag, partial, load_optimizer):
    model_path, optimizer_path, content = _paths(path, tag)
    state.model.load_local(torch.load(model_path, weights_only=False))
    if load_optimizer:
        state.optimizer.load_state_dict(torch.load(optimizer_path, weights_only=False))
    return torch.load(content, weights_only=False)
