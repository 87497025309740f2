"""The networks of SageMaker's instance types: AWS's published figures, and what of them a collective reaches."""

import difflib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Dict, Optional

from lightning_sm._plan.model import Network
from lightning_sm.errors import HyperparameterError

__all__ = ["Instance", "find_instance", "instance_types", "network_of"]

# The share of a bandwidth that is payload. TCP: less the headers of packets of 1,500 bytes. EFA: an assumption.
_TCP_SHARE, _EFA_SHARE = 0.956, 0.8
# Seconds of a message between two hosts: assumptions.
_TCP_LATENCY, _EFA_LATENCY = 50e-6, 20e-6
# Seconds a byte. CPU: process times of torch 2.15 with gradients of 102 MB on one core. GPU: the bytes that are moved,
# at 600 GB/s, the memory of an A10G; not measured.
_CPU = {"hook_per_byte": 0.25e-9, "copy_per_byte": 0.24e-9, "powersgd_per_byte": 4e-9}
_GPU = {"hook_per_byte": 0.005e-9, "copy_per_byte": 0.007e-9, "powersgd_per_byte": 0.02e-9}


@dataclass(frozen=True)
class Instance:
    """An instance type.

    Attributes:
        name: Such as ``ml.g5.12xlarge``.
        gpus: The number of GPUs; 0 for a type that has none.
        gbit: The network bandwidth that lasts, in Gbit/s.
        up_to: The bandwidth while network credits last, in Gbit/s; None where that is no other one.
        efa: Whether NCCL communicates over EFA.
    """

    name: str
    gpus: int
    gbit: float
    up_to: Optional[float] = None
    efa: bool = False

    @property
    def payload_share(self) -> float:
        """The share of the bandwidth that a collective reaches."""
        return _EFA_SHARE if self.efa else _TCP_SHARE

    def __str__(self) -> str:
        burst = "" if self.up_to is None else f", up to {self.up_to:g} for minutes"
        has = f"{self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else "CPU"
        return f"{self.name}: {has}, {self.gbit:g} Gbit/s{burst} ({'EFA' if self.efa else 'TCP'})"


@lru_cache(maxsize=None)
def instance_types() -> Dict[str, Instance]:
    """Return all types that are known, from ``instances.json`` beside this module, where their sources stand."""
    found = json.loads(Path(__file__).with_name("instances.json").read_text())
    return {name: Instance(name, **entry) for name, entry in found["types"].items()}


def find_instance(name: str) -> Instance:
    """Return an instance type by its name, with or without ``ml.``.

    Raises:
        HyperparameterError: There are no figures for it.
    """
    types = instance_types()
    full = name if name.startswith("ml.") else f"ml.{name}"
    if full not in types:
        close = difflib.get_close_matches(full, types, 3)
        raise HyperparameterError(
            f"No network bandwidth is known for --instance {name}.",
            hint=f"Known are {', '.join(close or types)}; for others give --bandwidth and --gpus instead.",
        )
    return types[full]


def network_of(instance: Instance, latency: Optional[float] = None) -> Network:
    """Return the network between hosts of a type.

    Args:
        instance: The type.
        latency: Of one message, in seconds, where that was measured.
    """
    return Network(
        instance.gbit * 1e9 / 8 * instance.payload_share,
        (_EFA_LATENCY if instance.efa else _TCP_LATENCY) if latency is None else latency,
        max(1, instance.gpus),
        **(_GPU if instance.gpus else _CPU),
    )
