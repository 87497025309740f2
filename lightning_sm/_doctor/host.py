"""Reads a host for the checks: files, GPUs, network cards and packages, none of which is imported."""

import os
import re
import sys
from pathlib import Path
from typing import List, Optional, Tuple

from lightning_sm._doctor.finding import Machine

__all__ = [
    "efa_devices",
    "find_on_path",
    "gpus",
    "is_real_instance",
    "names_in",
    "read_text",
    "torch_build",
]

# Files of the kernel and of packages are far smaller.
_MAX_BYTES = 1024 * 1024


def read_text(path: Path) -> Optional[str]:
    """Return the text of a file, or ``None`` where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def names_in(folder: Path) -> List[str]:
    """Return the names in a folder, or none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def gpus(machine: Machine) -> int:
    """Return how many NVIDIA GPUs the container sees: ``/dev/nvidia0``, … else what the driver lists."""
    devices = [name for name in names_in(machine.path("/dev")) if re.fullmatch(r"nvidia\d+", name)]
    return len(devices) or len(names_in(machine.path("/proc/driver/nvidia/gpus")))


def efa_devices(machine: Machine) -> int:
    """Return how many EFA devices there are: ``/sys/class/infiniband/*``, else ``/dev/infiniband/uverbs*``."""
    named = names_in(machine.path("/sys/class/infiniband"))
    return len(named) or sum(name.startswith("uverbs") for name in names_in(machine.path("/dev/infiniband")))


def is_real_instance(machine: Machine) -> Optional[bool]:
    """Whether this is an EC2 instance of the job's type; ``None`` if unknown.

    In a rehearsal or in local mode the job's files name a type, and the hardware is another one. On EC2 the firmware
    names the type, which the NCCL plugin of AWS reads as well (``aws/aws-ofi-nccl``, ``src/platform-aws.cpp``).
    """
    product = read_text(machine.path("/sys/devices/virtual/dmi/id/product_name"))
    if machine.job.current_instance_type is None or not product or not product.strip():
        return None
    return f"ml.{product.strip()}" == machine.job.current_instance_type


def find_on_path(machine: Machine, name: str) -> Optional[Path]:
    """Return where a file or folder of a package is installed, such as ``torch/version.py``; nothing is imported."""
    places = (machine.path(entry) / name for entry in sys.path if entry)
    return next((place for place in places if os.path.exists(place)), None)


def torch_build(machine: Machine) -> Tuple[str, str]:
    """Return how the installed torch was built, from ``torch/version.py``: two empty texts where there is none.

    Returns:
        Its version with the local part, such as ``2.15.0+cu132``, and the version of CUDA that it was built with, such
        as ``13.2``; empty without CUDA.
    """
    file = find_on_path(machine, "torch/version.py")
    text = read_text(file) if file is not None else None
    assigned = dict(re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", text or "", re.MULTILINE))
    return assigned.get("__version__", ""), assigned.get("cuda", "")
