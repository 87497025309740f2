"""A stand-in for AWS's closed library, for tests: registers backend ``smddp`` over gloo. See the README of this folder.

The recipe serves torch 1.12 and later.
"""

import inspect
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SUPPORTED = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
# Each collective that went through a group: its name, and the type and number of elements of its first tensor. A group
# that is created beside the default one is noted as ("new_group", its backend, its number of processes).
calls = []

_instance_type = os.environ.get("SM_CURRENT_INSTANCE_TYPE") or os.environ.get("SAGEMAKER_INSTANCE_TYPE") or "unknown"
if _instance_type not in SUPPORTED:
    raise RuntimeError(f"SMDDP stand-in: instance type {_instance_type} is not supported, only {', '.join(SUPPORTED)}")


_NO_AVERAGE = "SMDDP stand-in: SMDDP does not support: ReduceOp.AVG"
_NO_GROUPS = "SMDDP stand-in: SMDDP does not support further process groups (new_group) in DDP jobs"


def _first_tensor(value):
    while isinstance(value, (list, tuple)):
        if not value:
            return None
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _is_average(options):
    # torch 1.13 compares its operations with nothing else.
    return hasattr(options, "reduceOp") and options.reduceOp == dist.ReduceOp.AVG


class StandInProcessGroup(dist.ProcessGroup):
    """Hands every collective on to gloo and notes it; refuses what SMDDP refuses."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        self._inner = dist.ProcessGroupGloo(store, rank, size, options)
        backend_type = getattr(dist.ProcessGroup, "BackendType", None)
        if hasattr(self, "_register_backend"):  # torch 2.0
            self._register_backend(torch.device("cpu"), backend_type.CUSTOM, self._inner)
        if hasattr(self, "_set_default_backend"):  # required from torch 2.15
            self._set_default_backend(backend_type.CUSTOM)

    def getBackendName(self):
        return "smddp"

    def allreduce(self, *args, **kwargs):
        return self._reduction("allreduce", *args, **kwargs)

    def reduce(self, *args, **kwargs):
        return self._reduction("reduce", *args, **kwargs)

    def reduce_scatter(self, outputs, inputs, *options, **more):
        for output, parts in zip(outputs, inputs):
            work = self._reduce_scatter("reduce_scatter", output, torch.stack(list(parts)), *options, **more)
        return work

    def _reduce_scatter_base(self, output, tensor, *options, **more):
        return self._reduce_scatter("_reduce_scatter_base", output, tensor, *options, **more)

    reduce_scatter_single = _reduce_scatter_base  # its name since torch 2.13

    def reduce_scatter_tensor_coalesced(self, outputs, tensors, *options, **more):
        for output, tensor in zip(outputs, tensors):
            work = self._reduce_scatter("reduce_scatter_tensor_coalesced", output, tensor, *options, **more)
        return work

    def _reduce_scatter(self, name, output, tensor, *options, **more):
        # Gloo has it in some versions of torch only, so the whole is reduced and each rank takes its part.
        if any(_is_average(value) for value in (*options, *more.values())):
            raise RuntimeError(_NO_AVERAGE)
        calls.append((name, str(tensor.dtype), tensor.numel()))
        total = tensor.reshape(-1).clone()
        work = self._inner.allreduce([total])  # type: ignore[attr-defined]
        work.wait()
        output.copy_(total.chunk(self.size())[self.rank()].view_as(output))
        return work

    def _reduction(self, name, *args, **kwargs):
        if any(_is_average(value) for value in (*args, *kwargs.values())):
            raise RuntimeError(_NO_AVERAGE)
        return self._forward(name, *args, **kwargs)

    def _allgather_base(self, output, tensor, *options, **more):
        # Gloo has no gathering into one tensor in some versions of torch, so it gets a list of the tensor's parts.
        calls.append(("_allgather_base", str(tensor.dtype), tensor.numel()))
        parts = list(output.view(-1).chunk(self.size()))
        return self._inner.allgather([parts], [tensor.reshape(-1)])  # type: ignore[attr-defined]

    all_gather_single = _allgather_base  # its name since torch 2.13

    def allgather_into_tensor_coalesced(self, outputs, tensors, *options, **more):
        return [self._allgather_base(output, tensor) for output, tensor in zip(outputs, tensors)][-1]

    def _forward(self, name, *args, **kwargs):
        tensor = _first_tensor(args[0]) if args else None
        calls.append((name, None, 0) if tensor is None else (name, str(tensor.dtype), tensor.numel()))
        return getattr(self._inner, name)(*args, **kwargs)


def _forwarding(name):
    def method(self, *args, **kwargs):
        return self._forward(name, *args, **kwargs)

    method.__name__ = name
    return method


for _name in ("broadcast", "allgather", "gather", "scatter", "alltoall", "barrier", "send", "recv"):
    if hasattr(dist.ProcessGroupGloo, _name):
        setattr(StandInProcessGroup, _name, _forwarding(_name))


def _make(store, rank, size, timeout=timedelta(minutes=5)):
    return StandInProcessGroup(store, rank, size, timeout)


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
dist.Backend.register_backend("smddp", _make, **_more)
# Modules of torch take these functions by name.
_guarded = {dist.new_group: _not_in_ddp_jobs(dist.new_group), dist.barrier: _without_device_ids(dist.barrier)}
for _module in [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed")]:
    for _name in ("new_group", "barrier"):
        if vars(_module).get(_name) in _guarded:
            setattr(_module, _name, _guarded[vars(_module)[_name]])
