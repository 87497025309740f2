"""Process groups of gloo under another name, which note what goes through them."""

from datetime import timedelta

import torch
import torch.distributed as dist


def first_tensor(value):
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _is_average(options):
    # torch 1.13 compares its operations with nothing else.
    return hasattr(options, "reduceOp") and options.reduceOp == dist.ReduceOp.AVG


class ForwardingProcessGroup(dist.ProcessGroup):
    """Hands every collective on to gloo and notes it in ``calls``; refuses means.

    A call is noted by its name, and the type and number of elements of its first tensor.
    """

    NAME: str
    DEVICE = "cpu"
    NO_AVERAGE: str
    calls: list

    def __init__(self, store, rank, size, timeout=timedelta(minutes=5)):
        super().__init__(rank, size)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)
        backend_type = getattr(dist.ProcessGroup, "BackendType", None)
        if hasattr(self, "_register_backend"):  # torch 2.0
            self._register_backend(torch.device(self.DEVICE), backend_type.CUSTOM, self._gloo)
        if hasattr(self, "_set_default_backend"):  # required from torch 2.15
            self._set_default_backend(backend_type.CUSTOM)

    def getBackendName(self):
        return self.NAME

    def _note(self, name, first, options):
        if any(_is_average(value) for value in options):
            raise RuntimeError(self.NO_AVERAGE)
        tensor = first_tensor(first)
        self.calls.append((name, None, 0) if tensor is None else (name, str(tensor.dtype), tensor.numel()))

    def _forward(self, name, *args, **kwargs):
        self._note(name, args[0] if args else None, (*args, *kwargs.values()))
        return getattr(self._gloo, name)(*args, **kwargs)

    def _allgather_base(self, output, tensor, *options, **more):
        # Gloo has no gathering into one tensor in some versions of torch, so it gets a list of the tensor's parts.
        parts = list(output.view(-1).chunk(self.size()))
        return self._forward("allgather", [parts], [tensor.reshape(-1)])

    all_gather_single = _allgather_base  # its name since torch 2.13


def _forwarding(name):
    return lambda self, *args, **kwargs: self._forward(name, *args, **kwargs)


for _name in ("allreduce", "broadcast", "allgather", "reduce", "gather", "scatter", "barrier", "send", "recv"):
    setattr(ForwardingProcessGroup, _name, _forwarding(_name))
