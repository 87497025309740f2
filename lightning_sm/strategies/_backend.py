"""Chooses the process group's backend, as a value that says why."""

import importlib
from dataclasses import dataclass
from typing import Optional

from lightning_sm._job import TrainingJob
from lightning_sm.errors import SMDDPUnavailableError

__all__ = ["SMDDP", "BackendChoice", "choose_backend"]

SMDDP = "smddp"
# Importing it registers the backend: AWS, "Use the SMDDP library in your PyTorch Lightning training script".
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


@dataclass(frozen=True)
class BackendChoice:
    """The backend that a strategy will use.

    Args:
        backend: ``smddp``, ``nccl``, ``gloo``, or what the user named; ``None`` leaves it to Lightning.
        reason: Why, for one line of log.
    """

    backend: Optional[str]
    reason: str


def choose_backend(requested: Optional[str], device_type: str, job: TrainingJob) -> BackendChoice:
    """Choose the backend. AWS's library is imported where it is wanted, because that registers its backend.

    Args:
        requested: What the user named, or ``None``.
        device_type: The type of the process's device, such as ``cuda`` or ``cpu``.
        job: The job, whose distribution says whether SMDDP is wanted.

    Raises:
        SMDDPUnavailableError: ``smddp`` was named and its library cannot be imported.
    """
    if requested == SMDDP:
        missing = _import_smddp()
        if missing is not None:
            raise SMDDPUnavailableError(
                f"process_group_backend='smddp' was asked for, but importing {_MODULE} failed with {missing} on "
                f"instance type {job.current_instance_type or 'unknown (not in a SageMaker container)'}.",
                hint="SMDDP is in AWS's PyTorch images up to 2.5.1 and works on ml.p3dn, ml.p4d and ml.p4de; leave "
                "process_group_backend out to fall back to NCCL.",
            )
        return BackendChoice(SMDDP, "it was asked for")
    if requested is not None:
        return BackendChoice(requested, "it was asked for")
    fallback = {"cuda": "nccl", "cpu": "gloo"}.get(device_type)
    if not job.in_container:
        return BackendChoice(fallback, "this is not a SageMaker training container")
    if not job.asks_for_smddp:
        return BackendChoice(fallback, "the job's distribution is not smdistributed.dataparallel")
    if device_type != "cuda":
        return BackendChoice(fallback, f"SMDDP needs GPUs and the device is {device_type}")
    missing = _import_smddp()
    if missing is not None:
        return BackendChoice(fallback, f"importing {_MODULE} failed with {missing}")
    return BackendChoice(SMDDP, "the job's distribution is smdistributed.dataparallel")


def _import_smddp() -> Optional[str]:
    """Import AWS's library; return what went wrong, or ``None``."""
    try:
        importlib.import_module(_MODULE)
    except Exception as error:  # the closed library refuses unsupported instances with an exception of its own choice
        return f"{type(error).__name__}: {error}"
    return None
