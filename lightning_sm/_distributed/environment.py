"""``SageMakerEnvironment``: the ``Topology`` of this process as Lightning's cluster environment.

It also waits until the name of the main host resolves, and logs the topology.
"""

import json
import os
import socket
import sys
from typing import Optional

from lightning_sm import _lightning
from lightning_sm._distributed.rendezvous import (
    LOG_INTERVAL,
    describe_wait,
    end_wait,
    log_wait,
    wait_until_resolvable,
)
from lightning_sm._distributed.restarted import agree_on_port
from lightning_sm._distributed.summary import describe_topology
from lightning_sm._failure import ask_who_has_joined, set_joining, set_training
from lightning_sm._lightning.collectives import destroy_at_exit
from lightning_sm._lightning.namespaces import check_supported
from lightning_sm._lightning.strategies import is_setting_up_group
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.json_input import read_count
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import TopologyError

__all__ = ["SageMakerEnvironment"]

# Whether this process has logged what the job runs on.
_is_logged = False


class SageMakerEnvironment:
    """The cluster environment of a SageMaker training container, for every launcher of SageMaker.

    ``Trainer(plugins=[SageMakerEnvironment()])`` works with any strategy; :class:`~lightning_sm.SMDDPStrategy` creates
    it itself. It is not a subclass of Lightning's ``ClusterEnvironment`` but registered with that abstract base class
    of each Lightning that is loaded, so that one class serves ``pytorch_lightning`` and ``lightning.pytorch``. Outside
    a container it is for external launchers and for a single process.

    Environment variables, beside the variables and files that :class:`~lightning_sm.Topology` and
    :class:`~lightning_sm.TrainingJob` list, which are read once:

    ``LOCAL_RANK``
      The local rank, where Lightning starts the local processes. Lightning's launcher sets it for the processes that
      it starts; it is absent in the first one.

    ``NODE_RANK``, ``GROUP_RANK``
      The node rank outside a container without a launcher, as in Lightning's own environment. Set by the user or a
      scheduler.

    Args:
        topology: The topology, if it has been read already.
        resolve_timeout: The time to wait until the name of the main host resolves, in seconds.
        log_interval: Seconds between two log lines that say for whom this process waits.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent.
        LightningSMError: The Lightning that is loaded is not supported.

    Example::

        >>> topology = Topology.resolve(
        ...     {"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1",
        ...      "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7777"}
        ... )
        >>> environment = SageMakerEnvironment(topology)
        >>> environment.global_rank(), environment.world_size(), environment.node_rank(), environment.main_port
        (5, 8, 1, 7777)
        >>> environment.creates_processes_externally
        True
    """

    def __init__(
        self, topology: Optional[Topology] = None, *, resolve_timeout: float = 900.0, log_interval: float = LOG_INTERVAL
    ) -> None:
        check_supported(*(namespace for namespace in _lightning.NAMESPACES if namespace.is_loaded))
        self.topology = Topology.resolve() if topology is None else topology
        self._resolve_timeout, self._log_interval = resolve_timeout, log_interval
        self._resolved = False
        self._port: Optional[int] = self.topology.main_port
        # Set by Lightning where it starts the processes; a launcher's values are kept.
        self._world_size = self.topology.world_size or 1
        self._global_rank = self.topology.global_rank or 0
        self._trainer_world_size: Optional[int] = None
        #: The backend that a strategy of ours will use, and why, for the log.
        self.backend: Optional[str] = None
        log.debug("SageMakerEnvironment: %s", self.topology)
        rank = self.topology.global_rank
        # Before Lightning has counted the devices, all that matters is whether this is rank 0.
        _lightning.set_rank_zero_rank(self.node_rank() or self.local_rank() if rank is None else rank)

    @staticmethod
    def detect() -> bool:
        """Whether this process runs in a SageMaker training container."""
        return TrainingJob.resolve().in_container

    @property
    def creates_processes_externally(self) -> bool:
        """Whether other processes are started externally: by a launcher, or by the process that started this one."""
        return self.topology.is_external or read_count(os.environ, "LOCAL_RANK") is not None

    @property
    def main_address(self) -> str:
        """The name or address of the host of global rank 0.

        A strategy that reads it while it sets up the process group waits until the name resolves.

        Raises:
            TopologyError: There are several hosts and the main host is unknown. For a strategy also: the name did not
                resolve within ``resolve_timeout`` seconds, or the ``Trainer`` has another world size than the launcher
                (Lightning before 2.1 does not call ``validate_settings``).
        """
        if self.topology.main_address is None and self.topology.num_nodes > 1:
            raise TopologyError(
                f"The main host of this world is unknown: {self.topology}.",
                hint="Set MASTER_ADDR to the host of rank 0 for every process (mpirun -x MASTER_ADDR=HOST).",
            )
        address = self.topology.main_address or "127.0.0.1"
        if is_setting_up_group():
            self._prepare_to_join(address)
        return address

    def _prepare_to_join(self, address: str) -> None:
        """Wait for the main host, check and announce this process's world, and log what it waits for from now on."""
        if self.topology.is_external and self._trainer_world_size not in (None, self._world_size):
            self.topology.refuse(f"devices times num_nodes is {self._trainer_world_size} in the Trainer")
        if not self._resolved:
            source = self.topology.sources.get("main_address")
            # One process of each host says so.
            interval = self._log_interval if self.local_rank() == 0 else None
            wait_until_resolvable(address, source, self._resolve_timeout, interval=interval)
            self._port = agree_on_port(self.topology, address) or self._port
            self._resolved = True
            self._announce(address)
        self.log_summary()
        # The caller is about to join the group. Where Lightning starts the processes, it must have counted them.
        if self.topology.is_external or self._trainer_world_size is not None:
            set_joining(TrainingJob.resolve(), self.topology, rank=self._global_rank, world_size=self._world_size)
            self._log_wait(f"{address}:{self.main_port}")
        # Fabric never calls teardown.
        destroy_at_exit()

    def _log_wait(self, main: str) -> None:
        """From now on log for whom this process waits: global rank 0, and the first process of each other host."""
        rank, world_size = self._global_rank, self._world_size
        if world_size == 1 or (rank != 0 and (self.local_rank() or not self.node_rank())):
            return
        hosts = self.topology.job_hosts
        local_size = self.topology.local_world_size or world_size // self.topology.num_nodes

        def describe(seconds: float) -> str:
            state = ask_who_has_joined(local_size) if rank == 0 else None
            return describe_wait(seconds, main, rank, world_size, hosts, state)

        log_wait(describe, self._log_interval)

    def _announce(self, address: str) -> None:
        """Log the topology once, before this process joins the group: after a hang, it shows which rank is wrong."""
        if self.topology.launcher == Launcher.LOCAL:
            return
        topology = {
            "launcher": self.topology.launcher,
            "global_rank": self.global_rank(),
            "world_size": self.world_size(),
            "local_rank": self.local_rank(),
            "node_rank": self.node_rank(),
            "num_nodes": self.topology.num_nodes,
            "main": f"{address}:{self.main_port}",
        }
        # `lightning-sm rehearse` parses it.
        log.info("lightning_sm topology: %s", json.dumps(topology))

    def log_summary(self) -> None:
        """Log what the job runs on, on global rank 0, once in this process; nothing on a laptop."""
        global _is_logged
        if _is_logged or self.topology.launcher == Launcher.LOCAL or self.global_rank() != 0:
            return
        _is_logged = True
        is_alone = self.world_size() == 1
        main = None if is_alone else f"{self.topology.main_address or '127.0.0.1'}:{self.main_port}"
        # In one write, because the toolkit logs each write as a line.
        log.info("%s", describe_topology(TrainingJob.resolve(), self.topology, self.world_size(), main, self.backend))

    @property
    def main_port(self) -> int:
        """The port of global rank 0; on a laptop any free port."""
        if self._port is None:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(("", 0))
                self._port = int(probe.getsockname()[1])
        return self._port

    def world_size(self) -> int:
        """Processes in the world."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Set the world size, if Lightning starts the processes; ignored otherwise."""
        self._trainer_world_size = size
        if not self.topology.is_external:
            self._world_size = size

    def global_rank(self) -> int:
        """The index of this process in the world."""
        return self._global_rank

    def set_global_rank(self, rank: int) -> None:
        """Set the global rank, if Lightning starts the processes; ignored otherwise."""
        if not self.topology.is_external:
            self._global_rank = rank
        _lightning.set_rank_zero_rank(self._global_rank)
        # The strategy sets ranks at the start of each fit, validate, test and predict.
        set_training(True)

    def local_rank(self) -> int:
        """The index of this process on its host."""
        if self.topology.is_external:
            return self.topology.local_rank
        count = read_count(os.environ, "LOCAL_RANK")
        return self.topology.local_rank if count is None else count

    def node_rank(self) -> int:
        """The index of this host in the world; ``NODE_RANK`` or ``GROUP_RANK`` without a launcher."""
        if self.topology.launcher != Launcher.LOCAL:
            return self.topology.node_rank
        return read_count(os.environ, "NODE_RANK") or read_count(os.environ, "GROUP_RANK") or 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare ``devices`` and ``num_nodes`` of the ``Trainer`` with the launcher's world.

        Raises:
            TopologyError: They differ.
        """
        topology = self.topology
        given = (num_devices, num_nodes)
        # If hosts have different numbers of processes, the product is not the world size.
        if topology.is_external and given != (topology.local_world_size, topology.num_nodes):
            topology.refuse(f"devices={num_devices} and num_nodes={num_nodes} in the Trainer")
        if topology.launcher == Launcher.HOST and num_nodes != topology.num_nodes:
            topology.refuse(f"num_nodes={num_nodes} in the Trainer")

    def teardown(self) -> None:
        """Keep the world for the next call of the trainer. The process group is destroyed when the program exits."""
        destroy_at_exit()
        end_wait()
        # Lightning also calls it while it handles an exception, which is shared with other ranks.
        is_failing = sys.exc_info()[0] is not None
        set_training(is_failing, is_failing=is_failing)
