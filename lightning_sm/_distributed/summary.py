"""What a job runs on, as lines for the log, before the processes wait for each other."""

import platform
import sys
from collections import Counter
from typing import Dict, List, Optional, Sequence

from lightning_sm._lightning import NAMESPACES
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm._version import __version__

__all__ = ["describe_topology", "installed_software", "shortened"]

_MAX_NAMES = 8
_PARAMETER_SERVER = "parameter_server, for which PyTorch's container starts no servers: Lightning trains by all-reduce"
_RANKS = ("global_rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")


def describe_topology(
    job: TrainingJob, topology: Topology, world_size: int, main: Optional[str] = None, backend: Optional[str] = None
) -> str:
    """Return one line for each fact; each begins with ``topology:`` and the name of the fact.

    >>> topology = Topology("torchrun", sources={"global_rank": "RANK"})
    >>> print(describe_topology(TrainingJob(hosts=("algo-1",)), topology, 8).rpartition(chr(10))[0])
    topology: launcher: torchrun (by RANK)
    topology: world: 8 processes, 1 host
    topology: hosts: algo-1

    Args:
        job: The job.
        topology: The launcher's world.
        world_size: Processes in the world, which Lightning may have counted.
        main: Address and port of global rank 0; ``None`` in a world of one process.
        backend: The backend of the process group and why; ``None`` if Lightning's strategy chooses it.
    """
    hosts = job.world_hosts or tuple(filter(None, [topology.main_address]))
    local = "" if topology.local_world_size is None else f"{topology.local_world_size} on this host, "
    facts = {
        "job": job.name,
        "distribution": _PARAMETER_SERVER if job.asks_for_parameter_server else None,
        "launcher": _with_sources(str(topology.launcher), topology, _RANKS),
        "world": f"{_count(world_size, 'process')}, {local}{_count(topology.num_nodes, 'host')}",
        "hosts": shortened(hosts),
        "master": _with_sources(main, topology, ("main_address", "main_port")) if main else None,
        "backend": backend,
        "instances": _instances(job, hosts),
        "versions": ", ".join(f"{name} {version}" for name, version in installed_software().items()),
    }
    return "\n".join(f"topology: {name}: {fact}" for name, fact in facts.items() if fact)


def _with_sources(text: str, topology: Topology, names: Sequence[str]) -> str:
    sources = dict.fromkeys(topology.sources[name] for name in names if name in topology.sources)
    return f"{text} (by {', '.join(sources)})" if sources else text


def _instances(job: TrainingJob, hosts: Sequence[str]) -> str:
    kinds = {host: group.instance_type or "unknown type" for group in job.instance_groups for host in group.hosts}
    counts: Dict[str, int] = Counter(kinds[host] for host in hosts if host in kinds)
    if not counts and job.current_instance_type is not None:
        counts = {job.current_instance_type: len(hosts) or 1}
    gpus = f" ({_count(job.num_gpus, 'GPU')} on this host)" if counts and job.num_gpus is not None else ""
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items()) + gpus


def installed_software() -> Dict[str, str]:
    """Return the versions of this package, the Lightning and torch that are loaded, CUDA, NCCL and Python."""
    found = {"lightning_sm": __version__}
    for namespace in NAMESPACES:
        if namespace.is_loaded:
            found[namespace.name] = str(getattr(sys.modules[namespace.name], "__version__", "unknown"))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        if torch.version.cuda is not None:
            found.update(CUDA=str(torch.version.cuda), NCCL=".".join(map(str, torch.cuda.nccl.version())))
    return {**found, "Python": platform.python_version()}


def shortened(names: Sequence[str]) -> str:
    """The first of many names, and how many there are beside them."""
    more: List[str] = [f"and {len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return " ".join([", ".join(names[:_MAX_NAMES]), *more])


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
