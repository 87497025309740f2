"""``smp.save``, ``smp.load``, ``smp.save_checkpoint`` and ``smp.resume_from_checkpoint`` of the stand-in."""

import os

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import SMPError, calls, pp_rank, rank, rdp_rank, state, tp_rank, tp_size


def _part():
    """A partial file's suffix."""
    return f"_{pp_rank()}_{tp_rank()}" if tp_size() > 1 else f"_{pp_rank()}"


def save(obj, f, partial=True, **options):
    torch.save(obj, f + _part() if partial else f)


def load(f, map_location=None, partial=True, **options):
    return torch.load(f + _part() if partial else f, map_location=map_location, weights_only=False)


def save_checkpoint(
    path,
    tag,
    partial=True,
    model=None,
    optimizer=None,
    user_content=None,
    translate_if_full=True,
    num_kept_partial_checkpoints=None,
):
    """``path/tag_partial/{model,optimizer}_<ranks>.pt`` and ``user_content.pt``, or ``path/tag`` for a full one."""
    calls.append(("save_checkpoint", partial))
    if not partial and optimizer is not None and (tp_size() > 1 or state.cfg.shard_optimizer_state):
        raise SMPError("SMP stand-in: no full optimizer state with tensor parallelism or optimizer sharding")
    folder = os.path.join(path, f"{tag}_partial") if partial else path
    os.makedirs(folder, exist_ok=True)
    writes = rdp_rank() == 0
    if partial:
        model_state, optimizer_state = model.local_state_dict(), optimizer and optimizer.local_state_dict()
        if writes:
            torch.save(model_state, os.path.join(folder, f"model{_part()}.pt"))
        if optimizer is not None and (writes or state.cfg.shard_optimizer_state):
            shard = f"_{rdp_rank()}" if state.cfg.shard_optimizer_state else ""
            torch.save(optimizer_state, os.path.join(folder, f"optimizer{_part()}{shard}.pt"))
        content = os.path.join(folder, "user_content.pt")
    else:
        whole = model.state_dict()
        if rank() == 0:
            torch.save({**whole, "_smp_is_partial": False}, os.path.join(path, tag))
        content = os.path.join(path, f"user_content_{tag}")
    if rank() == 0:
        torch.save(user_content, content)
        with open(os.path.join(path, "newest"), "w") as newest:
            newest.write(tag)
    dist.barrier()


def resume_from_checkpoint(
    path,
    tag=None,
    partial=True,
    strict=True,
    load_optimizer=True,
    load_sharded_optimizer_state=True,
    translate_function=None,
):
    if tag is None:
        with open(os.path.join(path, "newest")) as newest:
            tag = newest.read()
    if not partial:
        state.model.load_state_dict(torch.load(os.path.join(path, tag), weights_only=False))
        return torch.load(os.path.join(path, f"user_content_{tag}"), weights_only=False)
    folder = os.path.join(path, f"{tag}_partial")
    model_state = torch.load(os.path.join(folder, f"model{_part()}.pt"), weights_only=False)
    if state.model.partitioned:
        state.model.load_local(model_state)
    else:
        state.model.register_post_partition_hook(lambda model, optimizer: model.load_local(model_state))
    if load_optimizer:
        shard = f"_{rdp_rank()}" if state.cfg.shard_optimizer_state else ""
        path = os.path.join(folder, f"optimizer{_part()}{shard}.pt")
        state.optimizer.load_state_dict(torch.load(path, weights_only=False))
    return torch.load(os.path.join(folder, "user_content.pt"), weights_only=False)
