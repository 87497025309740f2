"""Where the failure server of a job listens, which all hosts know before a process group exists."""

import hashlib
import json
from dataclasses import dataclass
from typing import Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["Address", "job_address"]

# Ports next to that of the process group, of which the first is almost always free.
_NUM_PORTS = 4


@dataclass(frozen=True)
class Address:
    """Where the failure server of a job listens, and how it recognises the job's processes.

    Args:
        host: The name or address of global rank 0's host.
        ports: The ports to try, in this order.
        token: Keeps other jobs and programs apart. It is derived from what all hosts of the job know, and is not secret
            from those who can read the job's description.
        num_nodes: The number of hosts that train together.
    """

    host: str
    ports: Tuple[int, ...]
    token: str
    num_nodes: int = 1


def job_address(job: TrainingJob, topology: Topology) -> Address:
    """Return the address of the job's failure server, which is the same on every host.

    >>> job_address(TrainingJob(), Topology("torchrun", main_address="algo-1", main_port=7777)).ports
    (7778, 7779, 7780, 7781)

    Args:
        job: The job.
        topology: The world that the launcher created.
    """
    port = topology.main_port or 0
    step = 1 if port + _NUM_PORTS < 1 << 16 else -1
    identity = {
        "hosts": sorted(job.world_hosts),
        "job": {name: str(value) for name, value in sorted(job.hyperparameters.reserved.items())},
        "port": port,
    }
    return Address(
        topology.main_address or "127.0.0.1",
        tuple(port + step * (number + 1) for number in range(_NUM_PORTS)),
        hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        topology.num_nodes,
    )
