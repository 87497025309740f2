"""Reads a host for the checks: files, GPUs, network cards and the metadata of packages, none of which is imported."""

import functools
import importlib.util
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine

__all__ = [
    "Package",
    "TorchBuild",
    "config_file",
    "efa_devices",
    "find_package",
    "find_program",
    "gpus",
    "is_importable",
    "is_real_instance",
    "names_in",
    "of_this_host",
    "packages",
    "read_text",
    "torch_build",
    "version",
]

# Files of the kernel and of packages are far smaller.
_MAX_BYTES = 1024 * 1024


def of_this_host(check: Check) -> Check:
    """Leave out a check of this host where the saved files of another machine are examined."""

    @functools.wraps(check)
    def examine(machine: Machine) -> Iterable[Finding]:
        return check(machine) if machine.is_here else ()

    return examine


def read_text(path: Path) -> Optional[str]:
    """Return the text of a regular file, or ``None`` where there is none that can be read."""
    try:
        # Opening a pipe would wait for whoever writes into it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def config_file(machine: Machine, name: str) -> Path:
    """Return the path of a file that the service writes, such as ``resourceconfig.json``, here or in the saved copy."""
    base = machine.job.base_dir or "/opt/ml"
    return Path(machine.environ.get("SM_INPUT_CONFIG_DIR") or os.path.join(base, "input", "config"), name)


def names_in(folder: Path) -> List[str]:
    """Return the names in a folder, or none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def find_program(machine: Machine, name: str, *folders: str) -> Optional[Path]:
    """Return the path of a program in ``PATH`` or in one of ``folders``, below the machine's root.

    Args:
        machine: The machine.
        name: The name of the program.
        folders: Where to look besides.
    """
    for folder in (*machine.environ.get("PATH", "").split(os.pathsep), *folders):
        path = machine.path(os.path.join(folder, name)) if folder else None
        if path is not None and os.path.isfile(path):
            return path
    return None


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


def is_importable(name: str) -> bool:
    """Whether a package is installed in this Python, by its finders alone."""
    with suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


Version = Tuple[int, ...]


def version(text: Optional[str]) -> Version:
    """Return the numbers of a version or kernel release: ``(2, 15, 0)`` for ``2.15.0+cu132``."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", (text or "").split("+")[0])[:3])


@dataclass(frozen=True)
class Package:
    """An installed package, as its metadata describe it.

    Args:
        name: Its name, in lower case with hyphens.
        version: Its version.
        requires: What it requires, each as in a ``requirements.txt``, with its marker.
        folder: The folder that it is installed in.
    """

    name: str
    version: str
    requires: Tuple[str, ...]
    folder: Path


def find_package(machine: Machine, name: str) -> Optional[Package]:
    """Return an installed package by its name on the package index, or ``None``."""
    return next(_discover(machine, name), None)


def packages(machine: Machine) -> Iterator[Package]:
    """Return all installed packages."""
    return _discover(machine, None)


def _discover(machine: Machine, name: Optional[str]) -> Iterator[Package]:
    # Imported here, because it takes longer to import than the rest of this module.
    from importlib.metadata import Distribution, DistributionFinder

    path = [str(machine.path(entry)) for entry in sys.path if entry]
    given = {"path": path} if name is None else {"path": path, "name": name}
    for found in Distribution.discover(context=DistributionFinder.Context(**given)):
        try:
            metadata = found.metadata
            if "Name" not in metadata or "Version" not in metadata:
                continue
            normalized = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
            if name is None or normalized == name:
                folder = Path(str(found.locate_file("")))
                yield Package(normalized, metadata["Version"], tuple(found.requires or ()), folder)
        except Exception:  # damaged metadata: no such package, as for pip
            continue


@dataclass(frozen=True)
class TorchBuild:
    """How the installed torch was built: ``torch/version.py``, read as text.

    Args:
        version: Its version with the local part, such as ``2.15.0+cu132``.
        cuda: The version of CUDA that it was built with, such as ``13.2``; ``None`` without CUDA.
    """

    version: str
    cuda: Optional[str]


def torch_build(machine: Machine) -> Optional[TorchBuild]:
    """Return how the installed torch was built, or ``None`` where no torch is installed."""
    package = find_package(machine, "torch")
    if package is None:
        return None
    text = read_text(package.folder / "torch" / "version.py") or ""
    return TorchBuild(_assigned("__version__", text) or package.version, _assigned("cuda", text))


def _assigned(name: str, text: str) -> Optional[str]:
    found = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None
