"""A stand-in for AWS's closed model parallel library 1.15 (SMP v1), for tests. See the README of ``tests/standins``.

It follows those parts of the documented API that ``SMPStrategy`` calls, over gloo. What is imitated, and how:

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

from smdistributed.modelparallel.torch import amp
from smdistributed.modelparallel.torch._state import (
    calls,
    dp_rank,
    dp_size,
    get_mp_group,
    get_mp_process_group,
    init,
    is_initialized,
    rank,
    rdp_rank,
    rdp_size,
    size,
)
from smdistributed.modelparallel.torch.checkpoint import resume_from_checkpoint, save_checkpoint
from smdistributed.modelparallel.torch.model import DistributedModel
from smdistributed.modelparallel.torch.optimizer import DistributedOptimizer
from smdistributed.modelparallel.torch.step import step

__all__ = [
    "DistributedModel",
    "DistributedOptimizer",
    "amp",
    "calls",
    "dp_rank",
    "dp_size",
    "get_mp_group",
    "get_mp_process_group",
    "init",
    "is_initialized",
    "model_creation",
    "rank",
    "rdp_rank",
    "rdp_size",
    "resume_from_checkpoint",
    "save_checkpoint",
    "set_tensor_parallelism",
    "size",
    "step",
]


@contextmanager
def model_creation(tensor_parallelism=False, dtype=None):
    """Layers are made in this dtype; with tensor parallelism they are replaced when the model is wrapped."""
    calls.append(("model_creation", tensor_parallelism, str(dtype)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def set_tensor_parallelism(module, enabled=True):
    calls.append(("set_tensor_parallelism", enabled))
