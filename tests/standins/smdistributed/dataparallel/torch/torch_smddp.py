"""A stand-in for AWS's closed library, for tests: registers backend ``smddp`` over gloo. See the README of this folder.

The recipe serves torch 1.12 and later.
"""

import inspect
import os
import sys

import torch.distributed as dist

from smdistributed.forwarding_group import ForwardingProcessGroup

SUPPORTED = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
# Each collective that went through a group: its name, and the type and number of elements of its first tensor. A group
# that is created beside the default one is noted as ("new_group", its backend, its number of processes).
calls = []

_instance_type = os.environ.get("SM_CURRENT_INSTANCE_TYPE") or os.environ.get("SAGEMAKER_INSTANCE_TYPE") or "unknown"
if _instance_type not in SUPPORTED:
    raise RuntimeError(f"SMDDP stand-in: instance type {_instance_type} is not supported, only {', '.join(SUPPORTED)}")


_NO_GROUPS = "SMDDP stand-in: SMDDP does not support further process groups (new_group) in DDP jobs"


class StandInProcessGroup(ForwardingProcessGroup):
    """Refuses what SMDDP refuses."""

    NAME = "smddp"
    NO_AVERAGE = "SMDDP stand-in: SMDDP does not support: ReduceOp.AVG"
    calls = calls

    def _reduce_scatter_base(self, output, tensor, *options, **more):
        # Gloo has it in some versions of torch only, so the whole is reduced and each rank takes its part.
        self._note("_reduce_scatter_base", tensor, (*options, *more.values()))
        total = tensor.reshape(-1).clone()
        work = self._gloo.allreduce([total])
        work.wait()
        output.copy_(total.chunk(self.size())[self.rank()].view_as(output))
        return work

    reduce_scatter_single = _reduce_scatter_base  # its name since torch 2.13


def _is_in_use():
    return dist.is_initialized() and dist.get_backend() == "smddp"


def _without_device_ids(barrier):
    def guarded(*args, **kwargs):
        if _is_in_use() and kwargs.get("device_ids"):
            raise RuntimeError("SMDDP stand-in: SMDDP does not support device_ids in barriers")
        return barrier(*args, **kwargs)

    return guarded


def _not_in_ddp_jobs(new_group):
    def guarded(*args, **kwargs):
        if not _is_in_use():
            return new_group(*args, **kwargs)
        if not os.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP"):  # jobs that gather parameters have it
            raise RuntimeError(_NO_GROUPS)
        group = new_group(*args, **kwargs)
        ranks = args[0] if args else kwargs.get("ranks")
        size = dist.get_world_size() if ranks is None else len(ranks)
        calls.append(("new_group", kwargs.get("backend") or "smddp", size))
        return group

    return guarded


_more = {"devices": ["cpu"]} if "devices" in inspect.signature(dist.Backend.register_backend).parameters else {}
dist.Backend.register_backend("smddp", StandInProcessGroup, **_more)
# Modules of torch take these functions by name.
_guarded = {dist.new_group: _not_in_ddp_jobs(dist.new_group), dist.barrier: _without_device_ids(dist.barrier)}
for _module in [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed")]:
    for _name in ("new_group", "barrier"):
        if vars(_module).get(_name) in _guarded:
            setattr(_module, _name, _guarded[vars(_module)[_name]])
