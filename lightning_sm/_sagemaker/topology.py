"""``Topology``: which process this is, of how many, and where the first one listens.

Reads a ``Topology`` from what each launcher leaves in the environment: one function for each line of its table.
"""

import os
import socket
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, NoReturn, Optional

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.json_input import read_count
from lightning_sm.errors import TopologyError

__all__ = ["Launcher", "Topology", "read_topology", "DEFAULT_PORT"]


class Launcher:
    """Who started this process. The values are what log lines show."""

    TORCHRUN = "torchrun"
    VARIABLES = "rank variables"
    MPI = "mpirun"
    HOST = "one process per host"
    LOCAL = "none"


@dataclass(frozen=True)
class Topology:
    """The world that the launcher made, as this process sees it. Read it with :meth:`resolve`.

    The first line that applies wins:

    1. ``TORCHELASTIC_RUN_ID`` (torchrun): ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, and for the
       node ``GROUP_RANK``.
    2. ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` together (``smddprun``, DeepSpeed, other wrappers); the local size
       from ``LOCAL_WORLD_SIZE``, else ``OMPI_COMM_WORLD_LOCAL_SIZE``, else ``LOCAL_SIZE``, else the world size over the
       number of hosts. Outside a container, where nothing tells that number, this line does not apply.
    3. ``OMPI_COMM_WORLD_RANK`` (mpirun): ``OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}``. The node is the rank
       over the local size; ``OMPI_COMM_WORLD_NODE_RANK`` is a rank among the processes of one node.
    4. A SageMaker container: one process per host, and Lightning starts the local ones. The node is the place of the
       current host among the hosts that train together, in the order given.
    5. None of these: a laptop, or a cluster that is left to Lightning.

    Address and port: ``MASTER_ADDR`` and ``MASTER_PORT`` (SageMaker's PyTorch containers and torchrun), then
    ``SM_MASTER_ADDR`` and ``SM_MASTER_PORT`` (SDK v3), then the first of the hosts that train together, and 7777.
    On line 4 the first of these hosts has rank 0, and goes before a variable that names another host of the job.

    Args:
        launcher: One of :class:`Launcher`.
        num_nodes: Hosts in this world.
        node_rank: This host's place among them.
        local_rank: This process's place on its host.
        world_size: Processes in this world; ``None`` where Lightning decides (lines 4 and 5).
        global_rank: This process's place among them; ``None`` where Lightning decides.
        local_world_size: Processes on this host; ``None`` where Lightning decides.
        main_address: The host name or address of global rank 0; ``None`` on a laptop.
        main_port: The port that global rank 0 listens on; ``None`` on a laptop.
        sources: Where each part came from, by its name here.
    """

    launcher: str
    num_nodes: int = 1
    node_rank: int = 0
    local_rank: int = 0
    world_size: Optional[int] = None
    global_rank: Optional[int] = None
    local_world_size: Optional[int] = None
    main_address: Optional[str] = None
    main_port: Optional[int] = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = (("global_rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes"))
        for rank, size in pairs:
            if getattr(self, size) is not None and (getattr(self, rank) or 0) >= getattr(self, size):
                self._refuse(rank, size)
        if self.world_size is not None and (self.local_world_size or 0) > self.world_size:
            self._refuse("local_world_size", "world_size")

    def _refuse(self, part: str, whole: str) -> None:
        raise TopologyError(
            f"{part} is {getattr(self, part)} by {self.sources.get(part, 'default')}, "
            f"but {whole} is {getattr(self, whole)} by {self.sources.get(whole, 'default')}.",
            hint="These come from the launcher; unset those variables that a script or a shell has set.",
        )

    @classmethod
    def resolve(
        cls,
        environ: Optional[Mapping[str, str]] = None,
        job: Optional[TrainingJob] = None,
        hostname: Optional[str] = None,
    ) -> "Topology":
        """Read the topology of this process.

        Args:
            environ: The variables to read instead of ``os.environ``.
            job: The job, if it has been read already.
            hostname: This host's name instead of ``socket.gethostname()``.

        Raises:
            JobConfigError: A file or variable of the job is broken.
            TopologyError: The launcher's numbers do not make a world.
        """
        pass

        environ = os.environ if environ is None else environ
        job = TrainingJob.resolve(environ) if job is None else job
        return read_topology(environ, job, socket.gethostname() if hostname is None else hostname)

    def check_world(self, world_size: int, num_nodes: int) -> None:
        """Compare the world that a ``Trainer`` has with the world that the launcher made.

        Args:
            world_size: Processes in the trainer's world.
            num_nodes: Hosts in the trainer's world.

        Raises:
            TopologyError: They differ, so that each process would train in a world of its own.
        """
        if self.is_external and world_size != self.world_size:
            self.refuse(f"The Trainer's world has {world_size} process(es)")
        if self.launcher == Launcher.HOST and num_nodes != self.num_nodes:
            self.refuse(f"num_nodes={num_nodes} in the Trainer")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that tells what the ``Trainer`` has and which world the job has.

        Raises:
            TopologyError: Always.
        """
        devices = "" if self.local_world_size is None else f"devices={self.local_world_size}, "
        raise TopologyError(
            f"{what}, but the job has this world: {self}.",
            hint=f"Set Trainer({devices}num_nodes={self.num_nodes}), or take both from the job with "
            "Trainer(**lightning_sm.trainer_settings()) or strategy='smddp'.",
        )

    @property
    def is_external(self) -> bool:
        """Whether a launcher started every process, so that Lightning starts none."""
        return self.world_size is not None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the one process that speaks for all."""
        if self.global_rank is not None:
            return self.global_rank == 0
        return self.node_rank == 0 and self.local_rank == 0

    def __str__(self) -> str:
        parts = [
            f"{part.name}={getattr(self, part.name)!r} ← {self.sources[part.name]}"
            for part in fields(self)
            if part.name in self.sources and getattr(self, part.name) is not None
        ]
        return f"launcher={self.launcher!r}, " + ", ".join(parts) if parts else f"launcher={self.launcher!r}"


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
