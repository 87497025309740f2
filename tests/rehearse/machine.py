"""Skips that say what this machine lacks."""

import functools
import importlib.metadata
import importlib.util
import shutil
from typing import Optional

import pytest

from lightning_sm.rehearse._isolation import probe


@functools.lru_cache(maxsize=None)
def _refusal(isolation: str) -> Optional[str]:
    return probe(isolation).refusal


def needs(
    isolation: str = "loopback", *, mpi: bool = False, torch: bool = False, v3: bool = False
) -> pytest.MarkDecorator:
    """Skip unless the machine can rehearse so."""
    reason = _refusal(isolation)
    if reason is not None:
        return pytest.mark.skip(reason=f"{isolation}: {reason}")
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
