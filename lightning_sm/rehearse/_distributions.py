"""Which hyperparameters each ``distribution`` of the SageMaker SDK sends, and which launcher they start."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Sequence

__all__ = ["DISTRIBUTIONS", "MPIRUN", "V3_DISTRIBUTIONS", "distribution_of", "framework_hyperparameters"]

DISTRIBUTIONS = ("none", "torch_distributed", "pytorchddp", "smdistributed", "mpi")

#: SDK v3's ``ModelTrainer`` has no launcher for the other two.
V3_DISTRIBUTIONS = ("none", "torch_distributed", "mpi")

#: Those that reach the other hosts by ssh.
MPIRUN = frozenset({"pytorchddp", "smdistributed", "mpi"})

PROCESSES = "sagemaker_mpi_num_of_processes_per_host"

# In the order in which the PyTorch toolkit looks at them.
_FLAGS = (
    ("sagemaker_mpi_enabled", "mpi"),
    ("sagemaker_pytorch_ddp_enabled", "pytorchddp"),
    ("sagemaker_torch_distributed_enabled", "torch_distributed"),
    ("sagemaker_distributed_dataparallel_enabled", "smdistributed"),
)


def framework_hyperparameters(
    distribution: str,
    *,
    instance_type: Optional[str],
    processes: Optional[int] = None,
    mpi_options: str = "",
    groups: Sequence[str] = (),
) -> Dict[str, Any]:
    """What SDK v2 adds to the hyperparameters for ``distribution``, before it writes each value as JSON.

    ``processes`` is sent for every launcher: the toolkit counts GPUs when it is absent, and a laptop has none. Only
    for ``mpi`` would the SDK send it.
    """
    sent: Dict[str, Any] = {}
    if groups:
        sent["sagemaker_distribution_instance_groups"] = list(groups)
    if distribution == "mpi":
        sent["sagemaker_mpi_enabled"] = True
        sent["sagemaker_mpi_custom_mpi_options"] = mpi_options
    elif distribution in ("pytorchddp", "smdistributed"):
        # SDK 2.221.1 and later rewrite pytorchddp to smdistributed, so the container cannot tell them apart.
        sent["sagemaker_distributed_dataparallel_enabled"] = True
        sent["sagemaker_distributed_dataparallel_custom_mpi_options"] = mpi_options
        sent["sagemaker_instance_type"] = instance_type
    elif distribution == "torch_distributed":
        sent["sagemaker_torch_distributed_enabled"] = True
        sent["sagemaker_instance_type"] = instance_type
    if processes is not None and distribution != "none":
        sent[PROCESSES] = processes
    return sent


def distribution_of(hyperparameters: Mapping[str, str]) -> str:
    """The launcher that the PyTorch toolkit picks for these hyperparameter strings."""
    for flag, distribution in _FLAGS:
        if _is_true(hyperparameters.get(flag)):
            return distribution
    return "none"


def _is_true(text: Optional[str]) -> bool:
    if text is None:
        return False
    try:
        return bool(json.loads(text))
    except ValueError:
        # The toolkit keeps what is not JSON as text, and any text but the empty one switches the flag on.
        return bool(text)
