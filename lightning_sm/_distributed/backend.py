"""The choice of the process group's backend: AWS's SMDDP collectives where they are wanted and available."""

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Optional

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import SMDDPUnavailableError

__all__ = ["SMDDP_INSTANCE_TYPES", "BackendChoice", "all_gather_problem", "choose_backend"]

# Importing it registers the backend: AWS, "Use the SMDDP library in your PyTorch Lightning training script".
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"

# AWS, "Supported frameworks, AWS Regions, and instances types" of the SMDDP library.
SMDDP_INSTANCE_TYPES = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")
# SMDDP's AllGather: AWS, SageMaker developer guide, page model-parallel-core-features-v2-smddp-allgather.
_ALL_GATHER_TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
# Under mpirun it is chosen instead of AllReduce by this variable, which the library reads when it is imported.
_OPTIMIZE_SDP = "SMDATAPARALLEL_OPTIMIZE_SDP"


_SMDDP = "smddp"
# The backend for each type of device, but for SMDDP.
_BACKENDS = {"cuda": "nccl", "cpu": "gloo", "neuron": "neuron", "xla": "xla"}


@dataclass(frozen=True)
class BackendChoice:
    """The backend of the process group, and why it was chosen.

    Args:
        backend: Its name in torch; ``None`` if Lightning chooses.
        reason: Why, for the log; empty before the choice.
    """

    backend: Optional[str] = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.backend or 'chosen by Lightning'}, because {self.reason}"

    @property
    def is_smddp(self) -> bool:
        """Whether AWS's library was chosen."""
        return self.backend == _SMDDP

    @property
    def has_documented_sums_only(self) -> bool:
        """Whether neither means nor collectives of objects nor a device of the group are documented for the backend."""
        return self.backend in (_SMDDP, "neuron")


def choose_backend(
    requested: Optional[str],
    device_type: str,
    job: TrainingJob,
    *,
    gathers: bool = False,
    problem: Optional[str] = None,
) -> BackendChoice:
    """Choose the backend. AWS's library is imported if it is wanted, because that registers its backend.

    Before that ``SMDATAPARALLEL_OPTIMIZE_SDP`` is set to ``true`` if ``gathers`` is and the variable is not set.

    Args:
        requested: The backend that the user named, or ``None``.
        device_type: The type of the process's device, such as ``cuda`` or ``cpu``.
        job: The job, whose distribution may request SMDDP.
        gathers: Whether the strategy gathers parameters (FSDP, DeepSpeed), which SMDDP does on fewer instance types.
        problem: Why the strategy cannot train over SMDDP, or ``None``.

    Raises:
        SMDDPUnavailableError: ``smddp`` was named and its library cannot be imported, or the strategy has a problem.
    """
    if requested == _SMDDP:
        failed = problem or _import_smddp(gathers)
        if failed is not None:
            kind = job.current_instance_type or "unknown: not in a SageMaker container"
            raise SMDDPUnavailableError(
                f"process_group_backend='smddp' was requested, but {failed} (instance type {kind}).",
                hint="SMDDP is in AWS's PyTorch images up to 2.5.1 and works on ml.p3dn, ml.p4d and ml.p4de; leave "
                "process_group_backend out to fall back to NCCL.",
            )
    if requested is not None:
        return BackendChoice(requested, "it was requested")
    fallback = _BACKENDS.get(device_type)
    if not job.in_container:
        return BackendChoice(fallback, "this is not a SageMaker training container")
    if not job.asks_for_smddp:
        return BackendChoice(fallback, "the job's distribution is not smdistributed.dataparallel")
    if device_type != "cuda":
        return BackendChoice(fallback, f"SMDDP needs GPUs and the device is {device_type}")
    if gathers and job.current_instance_type not in _ALL_GATHER_TYPES:
        kind = job.current_instance_type or "unknown"
        types = " and ".join(_ALL_GATHER_TYPES)
        return BackendChoice(fallback, f"SMDDP's AllGather is for {types} and the instance type is {kind}")
    failed = problem or _import_smddp(gathers)
    if failed is not None:
        return BackendChoice(fallback, failed)
    return BackendChoice(_SMDDP, "the job's distribution is smdistributed.dataparallel")


def all_gather_problem() -> Optional[str]:
    """Why SMDDP's AllGather cannot be switched on under ``mpirun`` any more, or ``None``."""
    if _MODULE in sys.modules and not os.environ.get(_OPTIMIZE_SDP):
        return f"{_MODULE} was imported before {_OPTIMIZE_SDP}=true was set, which belongs in the job's environment"
    return None


def _import_smddp(gathers: bool) -> Optional[str]:
    """Import AWS's library and return what failed as text, or ``None``."""
    if gathers:
        # torchrun has no need of it. A value of the user's stays.
        os.environ.setdefault(_OPTIMIZE_SDP, "true")
    try:
        importlib.import_module(_MODULE)
    except Exception as error:  # the closed library refuses unsupported instances with an exception of its own choice
        return f"importing {_MODULE} failed with {type(error).__name__}: {error}"
    return None
