"""Reads a ``Topology`` from what each launcher leaves in the environment: one function for each line of its table."""

from typing import Any, Dict, Mapping, Optional

from lightning_sm._job import TrainingJob
from lightning_sm._reading import read_count
from lightning_sm._topology import Launcher, Topology
from lightning_sm.errors import TopologyError

__all__ = ["read_topology", "DEFAULT_PORT"]

# The port that SageMaker's PyTorch containers use: sagemaker_pytorch_container/training.py, MASTER_PORT.
DEFAULT_PORT = 7777
# How many processes this host has: torch and wrappers, Open MPI, DeepSpeed.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_SIZE")


class _Parts:
    """The parts of a topology as they are found, each with its source."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.values: Dict[str, Any] = {}
        self.sources: Dict[str, str] = {}

    def put(self, part: str, value: Any, source: str) -> None:
        self.values[part], self.sources[part] = value, source

    def require(self, part: str, variable: str, *, least: int = 0) -> int:
        count = read_count(self.environ, variable, least=least)
        if count is None:
            present = [name for name in sorted(self.environ) if name.startswith(("OMPI_COMM", "TORCHELASTIC_RUN"))]
            raise TopologyError(
                f"{variable} is not set, although the launcher's other variables are ({', '.join(present) or 'RANK'}).",
                hint=f"Start the script with its launcher, or unset {', '.join(present) or 'RANK'}.",
            )
        self.put(part, count, variable)
        return count

    def topology(self, launcher: str) -> Topology:
        return Topology(launcher=launcher, sources=self.sources, **self.values)


def read_topology(environ: Mapping[str, str], job: TrainingJob, hostname: str) -> Topology:
    """Do the work of :meth:`Topology.resolve`."""
    parts = _Parts(environ)
    if environ.get("TORCHELASTIC_RUN_ID") is not None:
        launcher = _torchrun(parts)
    elif all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) and _counts_processes(parts, job):
        launcher = _variables(parts, job)
    elif environ.get("OMPI_COMM_WORLD_RANK"):
        launcher = _mpirun(parts)
    elif job.in_container:
        launcher = _one_per_host(parts, job, hostname)
    else:
        launcher = Launcher.LOCAL
        parts.put("local_rank", read_count(environ, "LOCAL_RANK") or 0, "LOCAL_RANK")
    _read_main(parts, job, launcher)
    return parts.topology(launcher)


def _torchrun(parts: _Parts) -> str:
    _world(parts, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    local_size = parts.require("local_world_size", "LOCAL_WORLD_SIZE", least=1)
    node_rank = parts.require("node_rank", "GROUP_RANK")
    nodes = read_count(parts.environ, "GROUP_WORLD_SIZE", least=1)
    if nodes is not None:
        parts.put("num_nodes", nodes, "GROUP_WORLD_SIZE")
    else:
        parts.put("num_nodes", max(parts.values["world_size"] // local_size, node_rank + 1), "WORLD_SIZE")
    return Launcher.TORCHRUN


def _counts_processes(parts: _Parts, job: TrainingJob) -> bool:
    """Whether it can be known how many processes each host has: by a variable, or by SageMaker's list of hosts.

    Elsewhere some launchers (AzureML, wrappers for Slurm) tell ranks alone, by which no process can count the hosts.
    """
    return job.in_container or any(parts.environ.get(name) for name in _LOCAL_SIZES)


def _variables(parts: _Parts, job: TrainingJob) -> str:
    _world(parts, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    world_size, hosts = parts.values["world_size"], len(job.world_hosts) or 1
    for name in _LOCAL_SIZES:
        local_size = read_count(parts.environ, name, least=1)
        if local_size is not None:
            break
    else:
        name = f"WORLD_SIZE over {hosts} hosts"
        local_size, rest = divmod(world_size, hosts)
        if rest:
            raise TopologyError(
                f"WORLD_SIZE is {world_size}, which is no multiple of the {hosts} hosts {list(job.world_hosts)}.",
                hint="WORLD_SIZE counts processes, not hosts; set LOCAL_WORLD_SIZE where hosts have unequal numbers.",
            )
    parts.put("local_world_size", local_size, name)
    _nodes_from_ranks(parts)
    return Launcher.VARIABLES


def _mpirun(parts: _Parts) -> str:
    _world(parts, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    parts.require("local_world_size", "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
    _nodes_from_ranks(parts)
    return Launcher.MPI


def _one_per_host(parts: _Parts, job: TrainingJob, hostname: str) -> str:
    hosts = job.world_hosts
    # The toolkit makes gethostname() return the host's SageMaker name; it settles what variables handed on from
    # another host would get wrong, where there is no file to ask.
    by_file = job.sources.get("current_host") != "SM_CURRENT_HOST"
    current = hostname if hostname in hosts and not by_file else job.current_host
    if current not in hosts:
        raise TopologyError(
            f"This host is {current!r}, which is not among the hosts {list(hosts)} of its instance group.",
            hint="Both come from resourceconfig.json; look for something that edits it.",
        )
    source = f"place of {current} in {job.sources.get('instance_groups') or job.sources.get('hosts', 'hosts')}"
    parts.put("num_nodes", len(hosts), source)
    parts.put("node_rank", hosts.index(current), source)
    parts.put("local_rank", read_count(parts.environ, "LOCAL_RANK") or 0, "LOCAL_RANK")
    return Launcher.HOST


def _world(parts: _Parts, rank: str, size: str, local_rank: str) -> None:
    parts.require("global_rank", rank)
    parts.require("world_size", size, least=1)
    parts.require("local_rank", local_rank)


def _nodes_from_ranks(parts: _Parts) -> None:
    rank, size = parts.values["global_rank"], parts.values["world_size"]
    local_rank, local_size = parts.values["local_rank"], parts.values["local_world_size"]
    if size % local_size or rank % local_size != local_rank:
        raise TopologyError(
            f"Rank {rank} of {size} is local rank {local_rank} of {local_size}, so the hosts have unequal numbers of "
            "processes, or the ranks are not counted host by host, and the host's own rank cannot be told.",
            hint="Start the same number of processes on each host, mapped by slot, or use torchrun.",
        )
    parts.put("node_rank", rank // local_size, f"{parts.sources['global_rank']} over {local_size}")
    parts.put("num_nodes", size // local_size, f"{parts.sources['world_size']} over {local_size}")


def _read_main(parts: _Parts, job: TrainingJob, launcher: str) -> None:
    hosts = job.world_hosts
    for address, port in (("MASTER_ADDR", "MASTER_PORT"), ("SM_MASTER_ADDR", "SM_MASTER_PORT")):
        if "main_address" not in parts.values and parts.environ.get(address):
            parts.put("main_address", parts.environ[address], address)
        number: Optional[int] = read_count(parts.environ, port)
        if "main_port" not in parts.values and number is not None:
            if not 0 < number < 65536:
                raise TopologyError(f"{port} is {number}, which is no port.", hint="Use a port between 1 and 65535.")
            parts.put("main_port", number, port)
    named = parts.values.get("main_address")
    if launcher == Launcher.HOST and named in job.hosts and named != hosts[0]:
        # Without a launcher the first host of this world has rank 0. The containers name the first of the sorted list,
        # or the distribution's master, also to hosts that train beside it.
        parts.put("main_address", hosts[0], "first host of the group, which has rank 0")
    if "main_address" not in parts.values and hosts:
        parts.put("main_address", hosts[0], "first host of the group")
    if "main_port" not in parts.values and launcher != Launcher.LOCAL:
        parts.put("main_port", DEFAULT_PORT, "default of SageMaker's PyTorch containers")
    if "main_address" not in parts.values and parts.values.get("num_nodes", 1) == 1 and launcher != Launcher.LOCAL:
        parts.put("main_address", "127.0.0.1", "all processes are on one host")
