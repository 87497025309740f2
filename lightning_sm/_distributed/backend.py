"""The choice of the process group's backend: AWS's SMDDP collectives where they are wanted and available."""

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import SMDDPUnavailableError

__all__ = ["Backend", "BackendChoice", "choose_backend"]

# Importing it registers the backend: AWS, "Use the SMDDP library in your PyTorch Lightning training script".
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


class Backend(str, Enum):
    """The process group backends that :func:`choose_backend` chooses from."""

    SMDDP = "smddp"
    NCCL = "nccl"
    GLOO = "gloo"


@dataclass(frozen=True)
class BackendChoice:
    """The backend of the process group, and why it was chosen.

    Args:
        backend: A value of :class:`Backend`, or the backend that the user named; ``None`` if Lightning chooses.
        reason: Why, for the log.
    """

    backend: Optional[str]
    reason: str

    @property
    def is_smddp(self) -> bool:
        """Whether AWS's library was chosen."""
        return self.backend == Backend.SMDDP.value


def choose_backend(requested: Optional[str], device_type: str, job: TrainingJob) -> BackendChoice:
    """Choose the backend. AWS's library is imported if it is wanted, because that registers its backend.

    Args:
        requested: The backend that the user named, or ``None``.
        device_type: The type of the process's device, such as ``cuda`` or ``cpu``.
        job: The job, whose distribution may request SMDDP.

    Raises:
        SMDDPUnavailableError: ``smddp`` was named and its library cannot be imported.
    """
    if requested is not None:
        problem = _import_smddp() if requested == Backend.SMDDP.value else None
        if problem is not None:
            raise SMDDPUnavailableError(
                f"process_group_backend='smddp' was requested, but importing {_MODULE} failed with {problem} on "
                f"instance type {job.current_instance_type or 'unknown (not in a SageMaker container)'}.",
                hint="SMDDP is in AWS's PyTorch images up to 2.5.1 and works on ml.p3dn, ml.p4d and ml.p4de; leave "
                "process_group_backend out to fall back to NCCL.",
            )
        return BackendChoice(requested, "it was requested")
    fallback = {"cuda": Backend.NCCL.value, "cpu": Backend.GLOO.value}.get(device_type)
    if not job.in_container:
        return BackendChoice(fallback, "this is not a SageMaker training container")
    if not job.asks_for_smddp:
        return BackendChoice(fallback, "the job's distribution is not smdistributed.dataparallel")
    if device_type != "cuda":
        return BackendChoice(fallback, f"SMDDP needs GPUs and the device is {device_type}")
    problem = _import_smddp()
    if problem is not None:
        return BackendChoice(fallback, f"importing {_MODULE} failed with {problem}")
    return BackendChoice(Backend.SMDDP.value, "the job's distribution is smdistributed.dataparallel")


def _import_smddp() -> Optional[str]:
    """Import AWS's library and return the error as text, or ``None``."""
    try:
        importlib.import_module(_MODULE)
    except Exception as error:  # the closed library refuses unsupported instances with an exception of its own choice
        return f"{type(error).__name__}: {error}"
    return None
