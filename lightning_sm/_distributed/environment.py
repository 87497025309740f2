"""Waits for the host at which all ranks meet, and looks whether its port is free.

``SageMakerEnvironment``: a thin view of a ``Topology`` for Lightning.
"""

import errno
import json
import os
import socket
import sys
import time
from typing import Optional, Set

from lightning_sm import _lightning
from lightning_sm._failure import report_uncaught, set_joining, set_training
from lightning_sm._lightning.collectives import destroy_at_exit
from lightning_sm._lightning.namespaces import check_supported
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.json_input import read_count
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import TopologyError

__all__ = ["check_port_is_free", "wait_until_resolvable", "SageMakerEnvironment"]

_POLL_SECONDS = 2.0

# Found free in this process. Its own store may listen there from then on, also after its group is gone.
_free_ports: Set[int] = set()


def check_port_is_free(port: int, source: Optional[str]) -> None:
    """Say that something else listens at the port before torch does, in words that reach the failure reason.

    Args:
        port: The port.
        source: Who named it.

    Raises:
        TopologyError: The port is in use on this host.
    """
    if port in _free_ports:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise TopologyError(
                    f"Port {port} (by {source}), at which all ranks meet, is in use on rank zero's host.",
                    hint="End the program that listens there, or give every host another MASTER_PORT.",
                ) from error
    _free_ports.add(port)


def wait_until_resolvable(address: str, source: Optional[str], timeout: float) -> None:
    """Wait until the host's name resolves: SageMaker starts hosts one by one.

    Args:
        address: The name or address.
        source: Who named it.
        timeout: Seconds to wait at most.

    Raises:
        TopologyError: It did not resolve in time, or can never be a name.
    """
    started, told = time.monotonic(), False
    while True:
        try:
            socket.getaddrinfo(address, None)
            return
        except UnicodeError as error:
            # Such as "algo-1..local" or a label of more than 63 characters: no waiting makes it a name.
            raise TopologyError(
                f"The main host {address!r} (by {source}) is no host name: {error}.",
                hint="Set MASTER_ADDR to a host name or an address.",
            ) from error
        except OSError as error:
            waited = time.monotonic() - started
            if waited >= timeout:
                raise TopologyError(
                    f"The main host {address!r} (by {source}) did not resolve within {waited:.0f} seconds: {error}.",
                    hint="Look whether that host started; its log stream carries its name.",
                ) from error
        if not told:
            log.warning("Waiting up to %.0f s until the main host %s resolves.", timeout, address)
            told = True
        time.sleep(min(_POLL_SECONDS, max(0.0, timeout - waited)))


class SageMakerEnvironment:
    """The cluster environment of a SageMaker training container, under every launcher that SageMaker has.

    ``Trainer(plugins=[SageMakerEnvironment()])`` works with any strategy; :class:`~lightning_sm.SMDDPStrategy` brings
    it along. It is no subclass of Lightning's ``ClusterEnvironment`` but registered as one with every Lightning that is
    loaded, so that one class serves ``pytorch_lightning`` and ``lightning.pytorch``.

    It reads the variables and files that :class:`~lightning_sm.Topology` and :class:`~lightning_sm.TrainingJob` name,
    once. Where Lightning starts the local processes (no launcher), it also reads ``LOCAL_RANK``, which Lightning's own
    launcher sets for the processes that it starts, and which is absent in the first.

    Args:
        topology: The topology, if it has been read already.
        resolve_timeout: Seconds to wait until the name of the main host resolves. SageMaker starts hosts one by one.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's numbers do not make a world.
        LightningSMError: The Lightning that is loaded is not one that we know how to work with.
    """

    def __init__(self, topology: Optional[Topology] = None, *, resolve_timeout: float = 900.0) -> None:
        check_supported(*(namespace for namespace in _lightning.NAMESPACES if namespace.is_loaded))
        report_uncaught()
        self.topology = Topology.resolve() if topology is None else topology
        self._resolve_timeout = resolve_timeout
        self._resolved = False
        self._port: Optional[int] = self.topology.main_port
        # What Lightning computes where it starts the processes itself; a launcher's answer never changes.
        self._world_size = self.topology.world_size or 1
        self._global_rank = self.topology.global_rank or 0
        self._trainer_world_size: Optional[int] = None
        log.debug("SageMakerEnvironment: %s", self.topology)
        _lightning.set_rank_zero_rank(self._known_rank())

    def _known_rank(self) -> int:
        if self.topology.global_rank is not None:
            return self.topology.global_rank
        # Only zero or not matters before Lightning has counted the devices.
        return self.node_rank() or self.local_rank()

    @staticmethod
    def detect() -> bool:
        """Whether this process runs in a SageMaker training container."""
        return TrainingJob.resolve().in_container

    @property
    def creates_processes_externally(self) -> bool:
        """Whether something else than this process starts the others: a launcher, or the process that started this."""
        return self.topology.is_external or read_count(os.environ, "LOCAL_RANK") is not None

    @property
    def main_address(self) -> str:
        """The name or address of the host with global rank 0. The first reading waits until the name resolves.

        Raises:
            TopologyError: There are several hosts and nothing names the main one, its name did not resolve within
                ``resolve_timeout`` seconds, this is rank zero and its port is in use, or Lightning is about to join
                another world than the launcher made (Lightning before 2.1 does not call ``validate_settings``).
        """
        self._check_world_size()
        if self.topology.main_address is None and self.topology.num_nodes > 1:
            raise TopologyError(
                f"Nothing names the main host of this world: {self.topology}.",
                hint="Set MASTER_ADDR to the host of rank 0 for every process (mpirun -x MASTER_ADDR=HOST).",
            )
        address = self.topology.main_address or "127.0.0.1"
        if not self._resolved:
            wait_until_resolvable(address, self.topology.sources.get("main_address"), self._resolve_timeout)
            self._check_port()
            self._resolved = True
            self._announce(address)
        # Whoever asks is about to join. Where Lightning starts the processes, it has to count them first.
        if self.topology.is_external or self._trainer_world_size is not None:
            set_joining(TrainingJob.resolve(), self.topology, rank=self._global_rank, world_size=self._world_size)
        return address

    def _check_port(self) -> None:
        port, topology = self.topology.main_port, self.topology
        # Under torchrun its agent listens there; on a laptop a free port is taken.
        if port is None or self._known_rank() != 0 or topology.launcher in (Launcher.TORCHRUN, Launcher.LOCAL):
            return
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            check_port_is_free(port, topology.sources.get("main_port"))

    def _announce(self, address: str) -> None:
        """Say once how this process sees itself, before it joins: a hang then tells which rank went astray."""
        if self.topology.launcher == Launcher.LOCAL:
            return
        seen = {
            "launcher": self.topology.launcher,
            "global_rank": self.global_rank(),
            "world_size": self.world_size(),
            "local_rank": self.local_rank(),
            "node_rank": self.node_rank(),
            "num_nodes": self.topology.num_nodes,
            "main": f"{address}:{self.main_port}",
        }
        # In one piece: the toolkit makes a line of each write. `lightning-sm rehearse` reads it.
        log.info("lightning_sm topology: %s", json.dumps(seen))

    @property
    def main_port(self) -> int:
        """The port of global rank 0; a free one on a laptop, where nobody else needs to know it."""
        if self._port is None:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(("", 0))
                self._port = int(probe.getsockname()[1])
        return self._port

    def world_size(self) -> int:
        """How many processes train together."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Take Lightning's count where Lightning starts the processes; elsewhere the launcher's stands."""
        self._trainer_world_size = size
        if self.topology.is_external:
            log.debug("SageMakerEnvironment.set_world_size was ignored: the launcher says %s.", self._world_size)
        else:
            self._world_size = size

    def _check_world_size(self) -> None:
        if self.topology.is_external and self._trainer_world_size not in (None, self._world_size):
            self.topology.refuse(f"devices times num_nodes is {self._trainer_world_size} in the Trainer")

    def global_rank(self) -> int:
        """This process's place among all."""
        return self._global_rank

    def set_global_rank(self, rank: int) -> None:
        """Take Lightning's rank where Lightning starts the processes; elsewhere the launcher's stands."""
        if self.topology.is_external:
            log.debug("SageMakerEnvironment.set_global_rank was ignored: the launcher says %s.", self._global_rank)
        else:
            self._global_rank = rank
        _lightning.set_rank_zero_rank(self._global_rank)
        # The strategy sets ranks at the start of each call of the trainer.
        set_training(True)

    def local_rank(self) -> int:
        """This process's place on its host."""
        if self.topology.is_external:
            return self.topology.local_rank
        count = read_count(os.environ, "LOCAL_RANK")
        return self.topology.local_rank if count is None else count

    def node_rank(self) -> int:
        """This host's place among the hosts that train together; where Lightning decides, by its own variables."""
        if self.topology.launcher != Launcher.LOCAL:
            return self.topology.node_rank
        return read_count(os.environ, "NODE_RANK") or read_count(os.environ, "GROUP_RANK") or 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check what the ``Trainer`` was given against the launcher's world.

        Raises:
            TopologyError: They differ.
        """
        topology = self.topology
        given = (num_devices, num_nodes)
        # Where hosts have unequal numbers of processes, the product is not the world size.
        if topology.is_external and given != (topology.local_world_size, topology.num_nodes):
            topology.refuse(f"devices={num_devices} and num_nodes={num_nodes} in the Trainer")
        if topology.launcher == Launcher.HOST and num_nodes != topology.num_nodes:
            topology.refuse(f"num_nodes={num_nodes} in the Trainer")

    def teardown(self) -> None:
        """Keep everything for the next call of the trainer, and see to it that gloo groups end with the program."""
        destroy_at_exit()
        # Lightning also comes here from its handler of an exception, which others should hear of.
        if sys.exc_info()[0] is None:
            set_training(False)
