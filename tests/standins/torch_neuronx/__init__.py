"""A stand-in for AWS's TorchNeuron, for tests: device and backend ``neuron``. See the README of the folder above.

Importing it builds the device by ``g++``, once for each folder that ``NEURON_STANDIN_BUILD`` names, and registers both.
"""

import fcntl
import os
import subprocess
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from smdistributed.forwarding_group import ForwardingProcessGroup, first_tensor

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


def _device_module():
    """What TorchNeuron registers as ``torch.neuron``, as far as Hugging Face's accelerate uses it."""
    device = torch.ops.neuron_standin
    module: Any = types.ModuleType("torch.neuron")
    module.is_available = lambda: device.device_count() > 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = device.device_count
    module.current_device = device.current_device
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


def _done(result):
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


class ProcessGroupNeuron(ForwardingProcessGroup):
    """Refuses what is not documented for TorchNeuron."""

    NAME = DEVICE = "neuron"
    NO_AVERAGE = "TorchNeuron stand-in: ReduceOp.AVG is not documented"
    calls = calls

    def _forward(self, name, *args, **kwargs):
        tensor = first_tensor(args[0]) if args else None
        if tensor is not None and tensor.device.type != "neuron":
            raise RuntimeError(f"TorchNeuron stand-in: {name} of a tensor on {tensor.device}")
        on_host = {key: _on_host(value) for key, value in kwargs.items()}
        super()._forward(name, *map(_on_host, args), **on_host).wait()
        return _done(args[0] if tensor is not None else [])


torch.ops.load_library(str(build()))
torch.utils.rename_privateuse1_backend("neuron")
torch.ops.neuron_standin.start()
torch._register_device_module("neuron", _device_module())
torch.utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend("neuron", ProcessGroupNeuron, devices=["neuron"])
