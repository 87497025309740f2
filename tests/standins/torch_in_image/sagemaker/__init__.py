"""A stand-in for AWS's closed ``torch.sagemaker`` (SMP v2), for tests on CPUs. See the README of ``tests/standins``.

Its folder is put on torch's own path, as AWS's images have it there. ``calls`` notes the documented steps of a script.
"""

import functools
from types import SimpleNamespace

import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

__all__ = ["calls", "init", "is_initialized", "state", "transform"]

calls: list = []
state = SimpleNamespace(is_initialized=False)


def init(config=None):
    if not dist.is_initialized():
        raise RuntimeError("SMP v2 stand-in: tsm.init() before the process group is initialized")
    state.is_initialized = True
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
