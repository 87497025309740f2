"""``Topology``: which process this is, of how many, and where the first one listens."""

import os
import socket
from dataclasses import dataclass, field, fields
from typing import Mapping, NoReturn, Optional

from lightning_sm._job import TrainingJob
from lightning_sm.errors import TopologyError

__all__ = ["Launcher", "Topology"]


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
        from lightning_sm._launchers import read_topology

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
