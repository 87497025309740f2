"""What the programs of tests train on: CPUs, or GPUs where the variable ``TESTS_ACCELERATOR`` is ``gpu``.

One GPU is enough: several processes are then as many hosts, each of which takes the first GPU that it sees. NCCL
refuses two ranks on one GPU of a host, and knows hosts by ``NCCL_HOSTID``
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-hostid).
"""

import os

__all__ = ["ACCELERATOR", "ON_GPU", "ranks"]

ACCELERATOR = os.environ.get("TESTS_ACCELERATOR", "cpu")
ON_GPU = ACCELERATOR == "gpu"


def ranks(count=1):
    """The ``Trainer``'s arguments for so many processes: those of one host, or of hosts with a GPU each."""
    if not ON_GPU:
        return {"accelerator": "cpu", "devices": count}
    return {"accelerator": "gpu", "devices": 1, "num_nodes": count, "deterministic": "warn"}
