"""A stand-in for AWS's closed ``torch.sagemaker`` (SMP v2), for tests on CPUs. See the README of ``tests/standins``.

Its folder is put on torch's own path, as AWS's images have it there. ``calls`` notes the documented steps of a script.
"""

import functools
import json
import os
from types import SimpleNamespace

import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

__all__ = ["calls", "init", "is_initialized", "state", "transform"]

calls: list = []
state = SimpleNamespace(is_initialized=False)
_DEFAULTS = {
    "hybrid_shard_degree": 0,
    "tensor_parallel_degree": 1,
    "context_parallel_degree": 1,
    "expert_parallel_degree": 1,
}


def init(config=None):
    """The job's configuration overrides the script's."""
    if not dist.is_initialized():
        raise RuntimeError("SMP v2 stand-in: tsm.init() before the process group is initialized")
    given = {**_DEFAULTS, **(config or {}), **json.loads(os.environ.get("SM_HP_MP_PARAMETERS") or "{}")}
    size, rank = dist.get_world_size(), dist.get_rank()
    vars(state).update(given, is_initialized=True, tp_size=given["tensor_parallel_degree"])
    state.tp_rank = rank % state.tp_size
    state.rank, state.world_size = rank, size
    calls.append(("init",))
    _patch()


def is_initialized():
    return state.is_initialized


def transform(model, device=None, dtype=None, config=None, load_state_dict_from_rank0=False, cp_comm_type="p2p"):
    """The layers stay whole here: each process of a tensor parallel group computes the same."""
    if not is_initialized():
        raise RuntimeError("SMP v2 stand-in: tsm.transform() before tsm.init()")
    calls.append(("transform", type(model).__name__, config))
    return model


def _patch():
    """AWS's torch has an argument of FSDP that torch has not."""
    if hasattr(FullyShardedDataParallel, "_smp_init"):
        return
    FullyShardedDataParallel._smp_init = original = FullyShardedDataParallel.__init__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def with_post_init(self, module, *args, post_param_init_fn=None, **kwargs):
        original(self, module, *args, **kwargs)
        if post_param_init_fn is not None:
            post_param_init_fn(module)

    FullyShardedDataParallel.__init__ = with_post_init
