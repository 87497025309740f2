"""What SageMaker's SDK v2 adds to the hyperparameters, by which the training toolkit chooses the launcher."""

import json
from typing import Any, Dict, Mapping, Optional, Sequence

__all__ = ["encode_hyperparameters", "framework_hyperparameters"]


def framework_hyperparameters(
    distribution: str,
    *,
    instance_type: Optional[str],
    processes: Optional[int] = None,
    mpi_options: str = "",
    groups: Sequence[str] = (),
) -> Dict[str, Any]:
    """Return what SDK v2 adds to the hyperparameters for ``distribution``, before each value is written as JSON."""
    sent: Dict[str, Any] = {}
    if groups:
        sent["sagemaker_distribution_instance_groups"] = list(groups)
    if distribution == "mpi":
        sent["sagemaker_mpi_enabled"] = True
        sent["sagemaker_mpi_custom_mpi_options"] = mpi_options
    elif distribution in ("pytorchddp", "smdistributed"):
        # SDK 2.221.1 and later rewrite pytorchddp to smdistributed, so the container cannot distinguish them.
        sent["sagemaker_distributed_dataparallel_enabled"] = True
        sent["sagemaker_distributed_dataparallel_custom_mpi_options"] = mpi_options
        sent["sagemaker_instance_type"] = instance_type
    elif distribution == "torch_distributed":
        sent["sagemaker_torch_distributed_enabled"] = True
        sent["sagemaker_instance_type"] = instance_type
    if processes is not None:
        sent["sagemaker_mpi_num_of_processes_per_host"] = processes
    return sent


def encode_hyperparameters(values: Mapping[str, Any]) -> Dict[str, str]:
    """Return each value as the string that the request contains: JSON, strings with their quotes."""
    return {name: json.dumps(value) for name, value in values.items()}
