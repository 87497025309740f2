"""``NeuronAccelerator``: NeuronCores as an accelerator of Lightning, by TorchNeuron's device ``neuron``."""

import importlib.util
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

from lightning_sm._lightning.accelerators import retarget_mixed_precision
from lightning_sm.errors import StrategyUnavailableError, TopologyError

if TYPE_CHECKING:
    import torch
    from pytorch_lightning.accelerators import Accelerator as _Base
else:
    _Base = object

__all__ = [
    "NEURON",
    "NeuronAcceleratorMixin",
    "NeuronCoresMixin",
    "XLA",
    "current_neuron_core",
    "has_torch_neuron",
    "installed_neuron_accelerator",
    "parse_core_numbers",
]

#: The names of the accelerators for NeuronCores. The first is also TorchNeuron's device and process group backend.
NEURON, XLA = "neuron", "torchrun_xla"


def has_torch_neuron() -> bool:
    """Whether AWS's TorchNeuron is installed and sees a NeuronCore.

    torch loads it when it is imported (the group ``torch.backends`` of entry points), and has it as ``torch.neuron``.
    """
    import torch

    module = getattr(torch, NEURON, None)
    return module is not None and bool(module.is_available())


def installed_neuron_accelerator() -> Optional[str]:
    """The accelerator for NeuronCores that this image has the software for: :data:`NEURON`, :data:`XLA` or ``None``."""
    if has_torch_neuron():
        return NEURON
    return XLA if importlib.util.find_spec("torch_xla") is not None else None


def current_neuron_core() -> "torch.device":
    """The NeuronCore of this process, which TorchNeuron assigns to each process of ``torchrun`` by its local rank."""
    import torch

    return torch.device(NEURON, torch.neuron.current_device())  # type: ignore[attr-defined]


def parse_core_numbers(devices: Union[int, str, Sequence[int]]) -> List[int]:
    """The numbers of the NeuronCores that ``Trainer(devices=...)`` means.

    >>> parse_core_numbers(2), parse_core_numbers("0, 3"), parse_core_numbers([1])
    ([0, 1], [0, 3], [1])

    Args:
        devices: How many, or which: a list, or their numbers as text.

    Raises:
        TopologyError: It is neither.
    """
    numbers: Any = devices
    if isinstance(devices, str):
        with suppress(ValueError):
            numbers = [int(part) for part in devices.split(",") if part.strip()] if "," in devices else int(devices)
    if type(numbers) is int and numbers > 0:
        return list(range(numbers))
    if isinstance(numbers, Sequence) and numbers and all(type(number) is int and number >= 0 for number in numbers):
        return list(numbers)
    raise TopologyError(
        f"Trainer(devices={devices!r}) names no NeuronCores.",
        hint="Leave devices out, or set a number of NeuronCores, or a list of their numbers.",
    )


class NeuronCoresMixin(_Base):
    """What the accelerators for NeuronCores have in common."""

    #: The name in Lightning's registry, torch's type of the device, and a strategy that trains on it.
    accelerator_name: str
    device_type: str
    fitting_strategy: str

    def setup_device(self, device: "torch.device") -> None:
        """Check the device of this process.

        Raises:
            StrategyUnavailableError: The strategy would train on another kind of device.
        """
        if device.type != self.device_type:
            raise StrategyUnavailableError(
                f"accelerator={self.accelerator_name!r}, but Lightning's strategy would train on {device}.",
                hint=f"Set strategy={self.fitting_strategy!r}: for one process Lightning takes the CPU by itself.",
            )

    def teardown(self) -> None:
        """Keep the device for the next call of the trainer."""

    def get_device_stats(self, device: Any) -> Dict[str, Any]:
        """Figures of the memory, as torch's module for the device has them; none where it has none."""
        import torch

        stats = getattr(getattr(torch, self.device_type, None), "memory_stats", None)
        return {} if stats is None else dict(stats(device))

    parse_devices = staticmethod(parse_core_numbers)

    @classmethod
    def get_parallel_devices(cls, devices: List[int]) -> "List[torch.device]":
        """The devices of these numbers."""
        import torch

        return [torch.device(cls.device_type, number) for number in devices]

    @classmethod
    def name(cls) -> str:
        """The name in Lightning's registry."""
        return cls.accelerator_name


class NeuronAcceleratorMixin(NeuronCoresMixin):
    """NeuronCores of Trn2 and Trn3 as an accelerator of Lightning, by AWS's TorchNeuron (``torch_neuronx`` 2.13).

    ``Trainer(accelerator="neuron", strategy="smddp")`` trains over the backend ``neuron``, one process for each
    NeuronCore that ``torchrun`` has started a process for. Mixed precision casts on this device; Lightning would do
    that for CUDA. Registered with Lightning 2.1 and newer as ``neuron``.

    Source: AWS Neuron documentation, "How to use torch.distributed on Neuron"; Hugging Face accelerate, ``state.py``.
    """

    accelerator_name, device_type, fitting_strategy = NEURON, NEURON, "smddp"

    def setup(self, trainer: Any) -> None:
        """Let mixed precision cast on this device."""
        retarget_mixed_precision(trainer.strategy.precision_plugin, NEURON)

    @staticmethod
    def auto_device_count() -> int:
        """NeuronCores of this host, as TorchNeuron counts them."""
        import torch

        return int(torch.neuron.device_count())  # type: ignore[attr-defined]

    is_available = staticmethod(has_torch_neuron)
