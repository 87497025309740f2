"""A stand-in for AWS's TorchNeuron, for tests: device and backend ``neuron``. See the README of the folder above.

Importing it builds the device by ``g++``, once for each folder that ``NEURON_STANDIN_BUILD`` names, and registers both.
"""

import fcntl
import os
import subprocess
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Each collective: its name, and the type and number of elements of its first tensor.
calls = []

_SOURCE = Path(__file__).with_name("device.cpp")
_LIBRARY = Path(os.environ["NEURON_STANDIN_BUILD"]) / "libneuron_standin.so"


def build():
    """Compile the device, and return the library. ``FileNotFoundError``: there is no compiler."""
    with open(f"{_LIBRARY}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process builds it, and the others wait
        if not _LIBRARY.exists():
            root = Path(torch.__file__).parent
            standard = "c++20" if torch.__version__ >= "2.1" else "c++17"
            include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
            flags = ["-O0", f"-std={standard}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
            built = _LIBRARY.with_suffix(".built")
            links = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
            command = ["g++", "-shared", "-fPIC", *flags, *include, str(_SOURCE), "-o", str(built), *links]
            subprocess.run(command, check=True, capture_output=True)
            os.replace(built, _LIBRARY)
    return _LIBRARY


def _index(device):
    return device if isinstance(device, int) else torch.device(device).index


class _Current:
    """``torch.neuron.device``: makes a device the current one for a while."""

    def __init__(self, device):
        self._index = _index(device)

    def __enter__(self):
        self._before = torch.ops.neuron_standin.current_device()
        torch.ops.neuron_standin.set_device(self._index)

    def __exit__(self, *_):
        torch.ops.neuron_standin.set_device(self._before)


def _device_module():
    """What TorchNeuron registers as ``torch.neuron``, as far as Hugging Face's accelerate uses it."""
    device = torch.ops.neuron_standin
    module: Any = types.ModuleType("torch.neuron")
    module.is_available = lambda: device.device_count() > 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = device.device_count
    module.current_device = device.current_device
    module.set_device = lambda index: device.set_device(_index(index))
    module.device = _Current
    module.manual_seed = module.manual_seed_all = device.seed
    module.get_rng_state = lambda device_index=None: device.get_rng_state()
    module.set_rng_state = lambda state, device_index=None: device.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def _on_host(value):
    """The same memory as tensors that gloo takes."""
    if isinstance(value, torch.Tensor):
        return torch.ops.neuron_standin.on_host(value) if value.device.type == "neuron" else value
    return [_on_host(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _first_tensor(value):
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _done(result):
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


class ProcessGroupNeuron(dist.ProcessGroup):
    """Hands every collective on to gloo and notes it; refuses what is not documented for TorchNeuron."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)
        if hasattr(self, "_set_default_backend"):  # required from torch 2.15
            kind = dist.ProcessGroup.BackendType.CUSTOM
            self._register_backend(torch.device("neuron"), kind, self._gloo)
            self._set_default_backend(kind)

    def getBackendName(self):
        return "neuron"

    def _forward(self, name, *args, **kwargs):
        if any(getattr(value, "reduceOp", None) == dist.ReduceOp.AVG for value in (*args, *kwargs.values())):
            raise RuntimeError("TorchNeuron stand-in: ReduceOp.AVG is not documented")
        tensor = _first_tensor(args[0]) if args else None
        if tensor is not None and tensor.device.type != "neuron":
            raise RuntimeError(f"TorchNeuron stand-in: {name} of a tensor on {tensor.device}")
        calls.append((name, None, 0) if tensor is None else (name, str(tensor.dtype), tensor.numel()))
        getattr(self._gloo, name)(
            *map(_on_host, args), **{key: _on_host(value) for key, value in kwargs.items()}
        ).wait()
        return _done(args[0] if tensor is not None else [])

    def _allgather_base(self, output, tensor, *options, **more):
        parts = list(output.view(-1).chunk(self.size()))
        return self._forward("allgather", [parts], [tensor.reshape(-1)])

    all_gather_single = _allgather_base  # its name since torch 2.13


def _forwarding(name):
    return lambda self, *args, **kwargs: self._forward(name, *args, **kwargs)


for _name in ("allreduce", "broadcast", "allgather", "reduce", "gather", "scatter", "barrier", "send", "recv"):
    setattr(ProcessGroupNeuron, _name, _forwarding(_name))


def _make(store, rank, size, timeout=timedelta(minutes=5)):
    return ProcessGroupNeuron(store, rank, size, timeout)


torch.ops.load_library(str(build()))
torch.utils.rename_privateuse1_backend("neuron")
torch.ops.neuron_standin.start()
torch._register_device_module("neuron", _device_module())
torch.utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend("neuron", _make, devices=["neuron"])
