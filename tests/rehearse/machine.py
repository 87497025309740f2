"""What this machine lacks, as skips, and what runs on it."""

import functools
import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import List, Optional

import pytest

from lightning_sm.rehearse import _isolation as isolations


@functools.lru_cache(maxsize=None)
def _refusal(isolation: str) -> Optional[str]:
    return isolations.probe(isolation).refusal


@functools.lru_cache(maxsize=None)
def no_taps(isolation: str) -> Optional[str]:
    """Why hosts cannot have ``--latency`` here; ``None`` when they can."""
    return isolations._try(isolations.Isolation(isolation).namespaces, "ip tuntap add dev trial mode tap")


def needs(
    isolation: str = "loopback", *, mpi: bool = False, torch: bool = False, v3: bool = False, taps: bool = False
) -> pytest.MarkDecorator:
    """Skip unless the machine can rehearse so."""
    reason = _refusal(isolation)
    if reason is not None:
        return pytest.mark.skip(reason=f"{isolation}: {reason}")
    if taps and no_taps(isolation) is not None:
        return pytest.mark.skip(reason=f"no TAP devices: {no_taps(isolation)}")
    modules = ["sagemaker_training", "sagemaker_pytorch_container"] + ["torch"] * torch + ["mpi4py"] * mpi
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    commands = ["mpirun", "ssh-keygen"] if mpi else []
    missing += [name for name in commands if shutil.which(name) is None]
    if mpi and shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        missing.append("sshd")
    if v3:
        try:
            importlib.metadata.distribution("sagemaker-train")
        except importlib.metadata.PackageNotFoundError:
            missing.append("sagemaker-train")
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def processes_with(text: str) -> List[str]:
    """The command lines of other processes that have this in them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found
