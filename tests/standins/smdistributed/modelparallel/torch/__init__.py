"""A stand-in for AWS's closed model parallel library 1.15 (SMP v1), for tests. See the README of ``tests/standins``.

It follows the documented API over gloo. What is imitated, and how:

- Each pipeline rank has the whole model and owns every so many-th parameter: others' gradients are dropped before the
  optimizer steps, and the owner's values are sent to the others after it. So the norm of the gradients and the state of
  the optimizer are those of a part.
- A step's Python code runs on the first rank of a pipeline only, which sends gradients and outputs to the others. AWS
  does not document where it runs; this is the harder case for a caller.
- Tensor parallelism: of each matrix, a rank owns some rows.

``calls`` notes the documented steps of a script in their order.
"""

from contextlib import contextmanager

import torch

from smdistributed.modelparallel.torch import amp, model
from smdistributed.modelparallel.torch._state import (
    SMPError,
    barrier,
    calls,
    dp_barrier,
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_process_group,
    init,
    is_initialized,
    local_rank,
    local_size,
    mp_barrier,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    state,
    tp_rank,
    tp_size,
)
from smdistributed.modelparallel.torch.checkpoint import load, resume_from_checkpoint, save, save_checkpoint
from smdistributed.modelparallel.torch.model import DistributedModel
from smdistributed.modelparallel.torch.optimizer import DistributedOptimizer
from smdistributed.modelparallel.torch.step import StepOutput, step

__all__ = [
    "DistributedModel",
    "DistributedOptimizer",
    "SMPError",
    "StepOutput",
    "amp",
    "barrier",
    "calls",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "load",
    "local_rank",
    "local_size",
    "model",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "set_tensor_parallelism",
    "size",
    "state",
    "step",
    "tp_rank",
    "tp_size",
]


@contextmanager
def model_creation(tensor_parallelism=False, dtype=None, **config):
    """Layers are made in this dtype; with tensor parallelism they are replaced when the model is wrapped."""
    calls.append(("model_creation", tensor_parallelism, str(dtype)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def set_tensor_parallelism(module, enabled=True, **config):
    calls.append(("set_tensor_parallelism", enabled))
