"""``Topology``: the ranks and sizes of this process's world, and the address of its global rank 0.

Below it, one function for each launcher reads the variables that this launcher sets.
"""

import os
import socket
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Dict, Mapping, NoReturn, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.json_input import read_count
from lightning_sm.errors import TopologyError

__all__ = ["DEFAULT_PORT", "Launcher", "Topology"]

#: The port that SageMaker's PyTorch containers use: ``sagemaker_pytorch_container/training.py``, ``MASTER_PORT``.
DEFAULT_PORT = 7777


class Launcher(str, Enum):
    """What started this process. Log lines show the values.

    Example::

        >>> print(Launcher.MPI)
        mpirun
    """

    #: ``torchrun``, of the distribution ``torch_distributed`` and of SDK v3's ``Torchrun``.
    TORCHRUN = "torchrun"
    #: A launcher that sets torch's variables itself: ``smddprun``, DeepSpeed, wrappers.
    VARIABLES = "rank variables"
    #: Open MPI, of the distribution ``mpi``.
    MPI = "mpirun"
    #: No launcher in a SageMaker container: one process on each host.
    HOST = "one process per host"
    #: No launcher that is known, outside a SageMaker container.
    LOCAL = "none"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Topology:
    """The ranks and sizes of this process's world, as its launcher set them. Read it with :meth:`resolve`.

    The first launcher whose variables are present determines ranks and sizes:

    1. ``TORCHELASTIC_RUN_ID``, set by torchrun:
       ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``; ``GROUP_RANK`` and ``GROUP_WORLD_SIZE`` for the
       nodes.
    2. ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` together, set by ``smddprun``, DeepSpeed and other wrappers:
       the local world size is ``LOCAL_WORLD_SIZE``, else ``OMPI_COMM_WORLD_LOCAL_SIZE``, else ``LOCAL_SIZE``, else the
       world size divided by the number of hosts. If none of these is set, not used outside a container, nor if
       ``NODE_RANK`` contradicts them: Lightning sets it for processes that it starts, where a script has set ``RANK``.
    3. ``OMPI_COMM_WORLD_RANK``, set by Open MPI's ``mpirun``:
       ``OMPI_COMM_WORLD_SIZE``, ``OMPI_COMM_WORLD_LOCAL_RANK``, ``OMPI_COMM_WORLD_LOCAL_SIZE``. The node rank is the
       rank divided by the local size; ``OMPI_COMM_WORLD_NODE_RANK`` counts processes of one node.
    4. A SageMaker container without these variables (no ``distribution``): one process per host, and Lightning starts
       the other local processes, for which it sets ``LOCAL_RANK``. The node rank is the index of the current host in
       :attr:`TrainingJob.world_hosts <lightning_sm.TrainingJob.world_hosts>`.
    5. Otherwise, a laptop or another cluster: Lightning determines the world.

    Other variables:

    ``MASTER_ADDR``, ``MASTER_PORT``
      The address and port of global rank 0. Set by SageMaker's PyTorch containers on each host, and by torchrun. On
      line 4, another host of the job and, among several hosts, this one (``localhost``, ``127.0.0.1``) are ignored:
      the first host of the world has rank 0.

    ``SM_MASTER_ADDR``, ``SM_MASTER_PORT``
      The same, set by SDK v3's container drivers. Used where the former are absent; by default the first host of the
      world and port 7777.

    It also reads what :class:`~lightning_sm.TrainingJob` lists. Sources: ``sagemaker_training/{mpi,smdataparallel,
    torch_distributed}.py``, ``sagemaker_pytorch_container/training.py``, ``torch/distributed/run.py``.

    Args:
        launcher: The launcher.
        num_nodes: Hosts in the world.
        node_rank: The index of this host in the world.
        local_rank: The index of this process on its host.
        world_size: Processes in the world; ``None`` if Lightning determines it (lines 4 and 5).
        global_rank: The index of this process in the world; ``None`` if Lightning determines it.
        local_world_size: Processes on this host; ``None`` if Lightning determines it.
        main_address: The host name or address of global rank 0; ``None`` on a laptop.
        main_port: The port that global rank 0 listens on; ``None`` on a laptop.
        job_hosts: The hosts that are to train together by the job; empty outside a container.
        sources: The variable or file that each field was read from, by the name of the field.

    Example::

        >>> topology = Topology.resolve(
        ...     {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "MASTER_ADDR": "algo-1",
        ...      "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        ... )
        >>> str(topology.launcher), topology.global_rank, topology.node_rank, topology.num_nodes
        ('mpirun', 3, 1, 2)
    """

    launcher: Launcher
    num_nodes: int = 1
    node_rank: int = 0
    local_rank: int = 0
    world_size: Optional[int] = None
    global_rank: Optional[int] = None
    local_world_size: Optional[int] = None
    main_address: Optional[str] = None
    main_port: Optional[int] = None
    job_hosts: Tuple[str, ...] = ()
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
            environ: The environment variables instead of ``os.environ``.
            job: The job, if it has been read already.
            hostname: The name of this host instead of ``socket.gethostname()``.

        Raises:
            JobConfigError: A file or variable of the job is malformed.
            TopologyError: The launcher's variables are inconsistent.
        """
        environ = os.environ if environ is None else environ
        job = TrainingJob.resolve(environ) if job is None else job
        found = _Fields(environ)
        if environ.get("TORCHELASTIC_RUN_ID") is not None:
            launcher = _read_torchrun(found)
        elif all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) and _are_of_launcher(found, job):
            launcher = _read_variables(found, job)
        elif environ.get("OMPI_COMM_WORLD_RANK"):
            launcher = _read_mpirun(found)
        elif job.in_container:
            launcher = _read_hosts(found, job, socket.gethostname() if hostname is None else hostname)
        else:
            launcher = Launcher.LOCAL
            found.set("local_rank", read_count(environ, "LOCAL_RANK") or 0, "LOCAL_RANK")
        _read_main_address(found, job, launcher)
        return cls(launcher=launcher, job_hosts=job.world_hosts, sources=found.sources, **found.values)

    def check_world(self, world_size: int, num_nodes: int) -> None:
        """Compare the world of a ``Trainer`` with the launcher's world, and that with the job's hosts.

        Args:
            world_size: Processes in the trainer's world.
            num_nodes: Hosts in the trainer's world.

        Raises:
            TopologyError: They differ; each process would train alone, or wait for others that do not exist.
        """
        self.check_hosts()
        if self.is_external and world_size != self.world_size:
            self.refuse(f"The Trainer's world has {world_size} process(es)")
        if self.launcher == Launcher.HOST and num_nodes != self.num_nodes:
            self.refuse(f"num_nodes={num_nodes} in the Trainer")

    def check_hosts(self) -> None:
        """Compare the launcher's world with the job's hosts.

        Raises:
            TopologyError: It is on fewer hosts, as where each host starts a torchrun of its own; each would train
                alone. One ``mpirun`` that leaves hosts out leaves them idle.
        """
        hosts = self.job_hosts
        if self.is_external and self.launcher != Launcher.MPI and self.num_nodes < len(hosts):
            raise TopologyError(
                f"The {self.world_size} process(es) of this world are on {self.num_nodes} host(s), and the job has "
                f"{len(hosts)}: {self}.",
                hint=f"On each host start torchrun with --nnodes={len(hosts)} --node-rank=0, 1, … "
                f"--master-addr={hosts[0]} --master-port={DEFAULT_PORT} (fabric run: --num-nodes, --node-rank, "
                "--main-address, --main-port), or launch the script with the distribution torch_distributed.",
            )

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for a ``Trainer`` whose world differs from the launcher's.

        Args:
            what: What differs, as the start of the message.

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
        """Whether the launcher started every process, so that Lightning starts none."""
        return self.world_size is not None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is global rank 0."""
        if self.global_rank is not None:
            return self.global_rank == 0
        return self.node_rank == 0 and self.local_rank == 0

    def __str__(self) -> str:
        known = [
            f"{each.name}={getattr(self, each.name)!r} ← {self.sources[each.name]}"
            for each in fields(self)
            if each.name in self.sources and getattr(self, each.name) is not None
        ]
        return ", ".join([f"launcher={str(self.launcher)!r}", *known])


_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The local world size: torch and wrappers, Open MPI, DeepSpeed.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_SIZE")


class _Fields:
    """The fields of a topology that have been read, each with its source."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.values: Dict[str, Any] = {}
        self.sources: Dict[str, str] = {}

    def set(self, name: str, value: Any, source: str) -> None:
        self.values[name], self.sources[name] = value, source

    def require(self, name: str, variable: str, *, least: int = 0) -> int:
        count = read_count(self.environ, variable, least=least)
        if count is None:
            present = [name for name in sorted(self.environ) if name.startswith(("OMPI_COMM", "TORCHELASTIC_RUN"))]
            raise TopologyError(
                f"{variable} is not set, but other variables of the launcher are ({', '.join(present) or 'RANK'}).",
                hint=f"Start the script with its launcher, or unset {', '.join(present) or 'RANK'}.",
            )
        self.set(name, count, variable)
        return count


def _read_torchrun(found: _Fields) -> Launcher:
    _read_ranks(found, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    local_size = found.require("local_world_size", "LOCAL_WORLD_SIZE", least=1)
    node_rank = found.require("node_rank", "GROUP_RANK")
    nodes = read_count(found.environ, "GROUP_WORLD_SIZE", least=1)
    world_size = found.values["world_size"]
    # HyperPod's agent sets it to the number of processes, for which this host has too many (1.1.3, HyperPodStore).
    if nodes is not None and nodes <= world_size - local_size + 1:
        found.set("num_nodes", nodes, "GROUP_WORLD_SIZE")
    else:
        found.set("num_nodes", max(world_size // local_size, node_rank + 1), "WORLD_SIZE")
    return Launcher.TORCHRUN


def _are_of_launcher(found: _Fields, job: TrainingJob) -> bool:
    """Whether a launcher has set ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``, and the local world size is known.

    Outside a container some launchers (AzureML, wrappers for Slurm) set ranks only. In a container scripts for one
    process on each host set ``RANK``, and Lightning the others, and ``NODE_RANK``, for processes that it starts there.
    """
    if any(found.environ.get(name) for name in _LOCAL_SIZES):
        return True
    node = read_count(found.environ, "NODE_RANK")
    if node is None or not job.in_container:
        return job.in_container
    rank, size, local_rank = (read_count(found.environ, name) or 0 for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return rank == node * size / len(job.world_hosts) + local_rank


def _read_variables(found: _Fields, job: TrainingJob) -> Launcher:
    _read_ranks(found, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    world_size, hosts = found.values["world_size"], len(job.world_hosts) or 1
    given = next((name for name in _LOCAL_SIZES if found.environ.get(name)), None)
    if given is not None:
        found.require("local_world_size", given, least=1)
    else:
        local_size, rest = divmod(world_size, hosts)
        if rest:
            raise TopologyError(
                f"WORLD_SIZE is {world_size}, which is not a multiple of the {hosts} hosts {list(job.world_hosts)}.",
                hint="WORLD_SIZE counts processes, not hosts; set LOCAL_WORLD_SIZE where hosts have unequal numbers.",
            )
        found.set("local_world_size", local_size, f"WORLD_SIZE over {hosts} hosts")
    _derive_nodes(found)
    return Launcher.VARIABLES


def _read_mpirun(found: _Fields) -> Launcher:
    _read_ranks(found, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    found.require("local_world_size", "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
    _derive_nodes(found)
    return Launcher.MPI


def _read_hosts(found: _Fields, job: TrainingJob, hostname: str) -> Launcher:
    hosts = job.world_hosts
    # The toolkit makes gethostname() return the host's SageMaker name. Without resourceconfig.json it is more reliable
    # than a variable, which mpirun may have exported from another host.
    by_file = job.sources.get("current_host") != "SM_CURRENT_HOST"
    current = hostname if hostname in hosts and not by_file else job.current_host
    if current not in hosts:
        raise TopologyError(
            f"This host is {current!r}, which is not among the hosts {list(hosts)} of its instance group.",
            hint="Both come from resourceconfig.json; look for something that edits it.",
        )
    source = f"index of {current} in {job.sources.get('instance_groups') or job.sources.get('hosts', 'hosts')}"
    found.set("num_nodes", len(hosts), source)
    found.set("node_rank", hosts.index(current), source)
    found.set("local_rank", read_count(found.environ, "LOCAL_RANK") or 0, "LOCAL_RANK")
    return Launcher.HOST


def _read_ranks(found: _Fields, rank: str, size: str, local_rank: str) -> None:
    found.require("global_rank", rank)
    found.require("world_size", size, least=1)
    found.require("local_rank", local_rank)


def _derive_nodes(found: _Fields) -> None:
    rank, size = found.values["global_rank"], found.values["world_size"]
    local_rank, local_size = found.values["local_rank"], found.values["local_world_size"]
    if size % local_size or rank % local_size != local_rank:
        raise TopologyError(
            f"Rank {rank} of {size} is local rank {local_rank} of {local_size}: the hosts have different numbers of "
            "processes, or ranks are not consecutive on each host, so that the node rank is unknown.",
            hint="Start the same number of processes on each host, mapped by slot, or use torchrun.",
        )
    found.set("node_rank", rank // local_size, f"{found.sources['global_rank']} over {local_size}")
    found.set("num_nodes", size // local_size, f"{found.sources['world_size']} over {local_size}")


def _read_main_address(found: _Fields, job: TrainingJob, launcher: Launcher) -> None:
    hosts = job.world_hosts
    for address, port in (("MASTER_ADDR", "MASTER_PORT"), ("SM_MASTER_ADDR", "SM_MASTER_PORT")):
        if "main_address" not in found.values and found.environ.get(address):
            found.set("main_address", found.environ[address], address)
        number: Optional[int] = read_count(found.environ, port)
        if "main_port" not in found.values and number is not None:
            if not 0 < number < 65536:
                raise TopologyError(f"{port} is {number}, which is not a port.", hint="Use a port between 1 and 65535.")
            found.set("main_port", number, port)
    named = found.values.get("main_address")
    is_other = named in job.hosts or (named in _LOOPBACK and len(hosts) > 1)
    if launcher == Launcher.HOST and is_other and named != hosts[0]:
        # Without a launcher the first host of this world has rank 0. The containers set the first of the sorted hosts,
        # or the distribution's main host, even on hosts of other groups; scripts for one host set themselves.
        found.set("main_address", hosts[0], "first host of the group, which has rank 0")
    if "main_address" not in found.values and hosts:
        found.set("main_address", hosts[0], "first host of the group")
    if "main_port" not in found.values and launcher != Launcher.LOCAL:
        found.set("main_port", DEFAULT_PORT, "default of SageMaker's PyTorch containers")
    if "main_address" not in found.values and found.values.get("num_nodes", 1) == 1 and launcher != Launcher.LOCAL:
        found.set("main_address", "127.0.0.1", "all processes are on one host")
