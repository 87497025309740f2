"""``StrategyMixin``: what a strategy needs on SageMaker whatever its parallelism, over SMDDP or another backend."""

import os
import pickle
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

import torch
import torch.distributed as dist

from lightning_sm import _lightning
from lightning_sm._distributed.backend import BackendChoice, all_gather_problem, choose_backend
from lightning_sm._distributed.environment import SageMakerEnvironment
from lightning_sm._distributed.neuron import NEURON, current_neuron_core
from lightning_sm._failure import set_training
from lightning_sm._lightning.collectives import destroy_at_exit, rounded_up
from lightning_sm._lightning.legacy import backend_variable
from lightning_sm._lightning.strategies import replace_infinite_barrier
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import TopologyError

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object

__all__ = ["StrategyMixin", "one_device_per_process"]


def one_device_per_process(devices: List[torch.device], local_size: int) -> List[torch.device]:
    """Return one device for each process that the launcher started on this host.

    The launcher's number of processes replaces a number of devices, but not a list of devices such as ``[2, 3]``.

    Args:
        devices: The devices of the ``Trainer``.
        local_size: How many processes the launcher started on this host.

    Raises:
        TopologyError: There are fewer devices than processes, or the list of devices has another length.
    """
    kind = devices[0].type
    if kind == "cpu":
        return [torch.device("cpu")] * local_size
    is_number = [device.index for device in devices] == list(range(len(devices)))
    # A process may see no NeuronCore but its own.
    present = {"cuda": torch.cuda.device_count(), NEURON: local_size, "xla": local_size}
    if is_number and local_size <= present.get(kind, len(devices)):
        return [torch.device(kind, index) for index in range(local_size)]
    raise TopologyError(
        f"The launcher started {local_size} processes on this host, for which there are {len(devices)} devices: "
        f"{[str(device) for device in devices]}.",
        hint="Leave devices out, and start as many processes per host as it has GPUs (processes_per_host, "
        "nproc_per_node).",
    )


class StrategyMixin(_Base):
    """What our strategies have in common.

    They train in the launcher's world, choose the backend of the process group and log why, and use only what AWS
    documents where the backend is SMDDP or TorchNeuron's: the group is initialized without a device, a mean is a sum
    and a division, and objects are broadcast as tensors.
    """

    namespace: _lightning.Namespace
    cluster_environment: Any
    #: Whether parameters are gathered from all processes, for which SMDDP has another collective.
    _gathers = False

    def __init__(
        self,
        process_group_backend: Optional[str] = None,
        cluster_environment: "Optional[ClusterEnvironment]" = None,
        **kwargs: Any,
    ) -> None:
        # Lightning's classes ask for the world while they are made.
        self._job = TrainingJob.resolve()
        self._choice = BackendChoice()
        environment: Any = cluster_environment
        if environment is None:
            topology = Topology.resolve(job=self._job)
            # On a laptop and under other schedulers Lightning's own choice is right.
            environment = SageMakerEnvironment(topology) if topology.launcher != Launcher.LOCAL else None
        is_ours = isinstance(environment, SageMakerEnvironment)
        self._topology: Topology = environment.topology if is_ours else Topology(Launcher.LOCAL)
        super().__init__(**kwargs)
        # Where Lightning keeps them: FSDP2's class does not take the first as an argument, nor 1.5 the second.
        self.cluster_environment = environment
        self._process_group_backend = process_group_backend

    @property
    def num_nodes(self) -> int:
        """Hosts in the world: the launcher's number, if there is a launcher."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = self.job_num_nodes(num_nodes)
        # Some of Lightning's classes set it when they are made, before there is a device to count.
        if self._parallel_devices:
            self.set_world_ranks()

    def job_num_nodes(self, num_nodes: int) -> int:
        """Hosts in the world, given ``num_nodes`` of the ``Trainer``.

        Raises:
            TopologyError: ``num_nodes`` is not the launcher's number.
        """
        if self._topology.launcher == Launcher.LOCAL:
            return num_nodes
        # 1 is the Trainer's default.
        if num_nodes not in (1, self._topology.num_nodes):
            raise TopologyError(
                f"Trainer(num_nodes={num_nodes}), but the job has this world: {self._topology}.",
                hint="Leave num_nodes out; the strategy takes it from the job.",
            )
        return self._topology.num_nodes

    @property
    def parallel_devices(self) -> Optional[List[torch.device]]:
        """The devices of this host, one for each process."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, parallel_devices: Optional[List[torch.device]]) -> None:
        local_size = self._topology.local_world_size
        if parallel_devices and local_size is not None and len(parallel_devices) != local_size:
            parallel_devices = one_device_per_process(parallel_devices, local_size)
        self._parallel_devices = parallel_devices

    @property
    def root_device(self) -> torch.device:
        """The device of this process; under a launcher the NeuronCore that TorchNeuron has assigned to it."""
        device = super().root_device
        is_assigned = device.type == NEURON and self._topology.is_external
        return current_neuron_core() if is_assigned else device

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Replicas are the processes of the world, even if hosts have unequal numbers of them."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self, *args: Any, **kwargs: Any) -> None:
        """Let Lightning compute ranks if it starts the processes; a launcher's ranks are kept."""
        if self._topology.global_rank is None:
            super().set_world_ranks(*args, **kwargs)

    def _prepare_group(self, device_type: Optional[str] = None) -> None:
        """Choose the backend, log why, and initialize the process group under ``smddp`` and ``neuron``.

        Whatever initializes it, it is destroyed at exit.

        Args:
            device_type: The type of the device of this process, where it is not known before there is a group.
        """
        self.set_world_ranks()
        set_training(True)
        destroy_at_exit()
        if not self._choice.reason:
            requested = self._process_group_backend or backend_variable(self.namespace)
            device_type = device_type or self.root_device.type
            self._choice = choose_backend(
                requested, device_type, self._job, gathers=self._gathers, problem=self._smddp_problem()
            )
            if self.global_rank == 0:
                log.info("%s: backend %s.", self._name, self._choice)
            if isinstance(self.cluster_environment, SageMakerEnvironment):
                self.cluster_environment.backend = str(self._choice)
        if self._choice.has_documented_sums_only and not dist.is_initialized():
            # Lightning, from 2.5.5 on, would pass a device_id, which is undocumented for these backends.
            replace_infinite_barrier(self.namespace)
            self._set_main_address()
            timeout: Dict[str, Any] = {"timeout": self._timeout} if getattr(self, "_timeout", None) is not None else {}
            dist.init_process_group(
                str(self._choice.backend), rank=self.global_rank, world_size=self.world_size, **timeout
            )

    def _smddp_problem(self) -> Optional[str]:
        """Why this strategy cannot train over SMDDP here, or ``None``."""
        under_torchrun = self._topology.launcher == Launcher.TORCHRUN
        return all_gather_problem() if self._gathers and not under_torchrun else None

    @property
    def _name(self) -> str:
        """The name of our class, of which this may be a subclass."""
        return next(cls.__name__ for cls in type(self).__mro__ if cls.__module__ == "lightning_sm")

    def _set_main_address(self) -> None:
        """Set the variables for libraries that ask no cluster environment. It waits until the name resolves."""
        os.environ["MASTER_ADDR"] = self.cluster_environment.main_address
        os.environ["MASTER_PORT"] = str(self.cluster_environment.main_port)

    def _get_process_group_backend(self) -> str:
        return self._choice.backend or super()._get_process_group_backend()

    def reduce(self, tensor: Any, group: Optional[Any] = None, reduce_op: Optional[Union[Any, str]] = "mean") -> Any:
        """Reduce a tensor over all processes; under ``smddp`` and ``neuron`` a mean is a sum and a division."""
        mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if not (self._choice.has_documented_sums_only and mean and isinstance(tensor, torch.Tensor)):
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        size = dist.get_world_size(group) if group is not None else self.world_size
        return total.div_(size) if total.is_floating_point() else total.copy_(total / size)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Broadcast an object; as a tensor where collectives of objects are undocumented for the backend."""
        if not self._choice.has_documented_sums_only:
            return super().broadcast(obj, src)
        return _broadcast_object(obj, src, self.global_rank, self.root_device)


def _broadcast_object(obj: Any, src: int, rank: int, device: torch.device) -> Any:
    """Broadcast an object as tensors, for backends whose object collectives are undocumented.

    Collective: every rank of the default group must call it.

    Args:
        obj: The object of rank ``src``; ignored on other ranks.
        src: The rank whose object is returned.
        rank: This process's rank.
        device: The device of the backend's tensors.
    """
    payload = bytearray(pickle.dumps(obj)) if rank == src else bytearray()
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    dist.broadcast(size, src)
    content = torch.zeros(rounded_up(int(size.item())), dtype=torch.uint8)
    if rank == src:
        content[: len(payload)] = torch.frombuffer(payload, dtype=torch.uint8)
    content = content.to(device)
    dist.broadcast(content, src)
    return obj if rank == src else pickle.loads(content.cpu().numpy().tobytes())
