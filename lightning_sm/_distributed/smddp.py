"""Chooses the process group's backend, as a value that says why.

One device for each process of this host.

``SMDDPStrategy``: Lightning's DDP with the world of the job's launcher and AWS's collectives where they exist.
"""

import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from lightning_sm import _lightning
from lightning_sm._distributed.environment import SageMakerEnvironment
from lightning_sm._failure import report_uncaught, set_training
from lightning_sm._lightning.collectives import broadcast_object, destroy_at_exit
from lightning_sm._lightning.compat_strategies import backend_variable, replace_infinite_barrier
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import SMDDPUnavailableError, TopologyError

if TYPE_CHECKING:
    import torch

__all__ = ["SMDDP", "BackendChoice", "choose_backend", "one_device_each", "SMDDPMixin"]

SMDDP = "smddp"
# Importing it registers the backend: AWS, "Use the SMDDP library in your PyTorch Lightning training script".
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


@dataclass(frozen=True)
class BackendChoice:
    """The backend that a strategy will use.

    Args:
        backend: ``smddp``, ``nccl``, ``gloo``, or what the user named; ``None`` leaves it to Lightning.
        reason: Why, for one line of log.
    """

    backend: Optional[str]
    reason: str


def choose_backend(requested: Optional[str], device_type: str, job: TrainingJob) -> BackendChoice:
    """Choose the backend. AWS's library is imported where it is wanted, because that registers its backend.

    Args:
        requested: What the user named, or ``None``.
        device_type: The type of the process's device, such as ``cuda`` or ``cpu``.
        job: The job, whose distribution says whether SMDDP is wanted.

    Raises:
        SMDDPUnavailableError: ``smddp`` was named and its library cannot be imported.
    """
    if requested == SMDDP:
        missing = _import_smddp()
        if missing is not None:
            raise SMDDPUnavailableError(
                f"process_group_backend='smddp' was asked for, but importing {_MODULE} failed with {missing} on "
                f"instance type {job.current_instance_type or 'unknown (not in a SageMaker container)'}.",
                hint="SMDDP is in AWS's PyTorch images up to 2.5.1 and works on ml.p3dn, ml.p4d and ml.p4de; leave "
                "process_group_backend out to fall back to NCCL.",
            )
        return BackendChoice(SMDDP, "it was asked for")
    if requested is not None:
        return BackendChoice(requested, "it was asked for")
    fallback = {"cuda": "nccl", "cpu": "gloo"}.get(device_type)
    if not job.in_container:
        return BackendChoice(fallback, "this is not a SageMaker training container")
    if not job.asks_for_smddp:
        return BackendChoice(fallback, "the job's distribution is not smdistributed.dataparallel")
    if device_type != "cuda":
        return BackendChoice(fallback, f"SMDDP needs GPUs and the device is {device_type}")
    missing = _import_smddp()
    if missing is not None:
        return BackendChoice(fallback, f"importing {_MODULE} failed with {missing}")
    return BackendChoice(SMDDP, "the job's distribution is smdistributed.dataparallel")


def _import_smddp() -> Optional[str]:
    """Import AWS's library; return what went wrong, or ``None``."""
    try:
        importlib.import_module(_MODULE)
    except Exception as error:  # the closed library refuses unsupported instances with an exception of its own choice
        return f"{type(error).__name__}: {error}"
    return None


def one_device_each(devices: "List[torch.device]", local_size: int) -> "List[torch.device]":
    """Return one device for each process that the launcher started on this host.

    A number of devices gives way to the launcher's; certain devices, such as ``devices=[2, 3]``, do not.

    Raises:
        TopologyError: There are fewer devices than processes, or certain devices are named for another number of them.
    """
    import torch

    if devices[0].type == "cpu":
        return [torch.device("cpu")] * local_size
    indices = [device.index for device in devices]
    if indices != list(range(len(devices))):
        raise TopologyError(
            f"devices={indices} in the Trainer, but the launcher started {local_size} processes on this host.",
            hint="Leave devices out, or name as many as there are processes (processes_per_host, nproc_per_node).",
        )
    if local_size < len(devices):
        return devices[:local_size]
    if devices[0].type == "cuda" and torch.cuda.device_count() >= local_size:
        return [torch.device("cuda", index) for index in range(local_size)]
    raise TopologyError(
        f"The launcher started {local_size} processes on this host, for which there are {len(devices)} devices: "
        f"{[str(device) for device in devices]}.",
        hint="Start as many processes per host as it has GPUs (processes_per_host, nproc_per_node).",
    )


if TYPE_CHECKING:
    import torch
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object


class SMDDPMixin(_Base):
    """Distributed data parallel training on SageMaker, over AWS's SMDDP collectives where they exist.

    On a laptop and under plain ``torchrun`` it is Lightning's ``DDPStrategy``. In a SageMaker container it brings a
    :class:`~lightning_sm.SageMakerEnvironment` along and takes ``devices`` and ``num_nodes`` from the launcher, because
    otherwise each process would train alone and end with exit code 0. The backend is ``smddp`` where the job's
    distribution asks for it, the device is a GPU and the library can be imported; else NCCL on GPUs and gloo on CPUs,
    and one line of log says why. Under ``smddp`` a mean is a sum and a division, and no second process group is made,
    which are that library's documented limits.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as told above.
        cluster_environment: An environment of your own, which then decides about ranks and sizes.
        **kwargs: Whatever Lightning's ``DDPStrategy`` takes.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's numbers do not make a world, or the ``Trainer`` asks for another one.
        SMDDPUnavailableError: ``smddp`` was asked for by name and its library cannot be imported (raised in ``fit``).
    """

    strategy_name = "smddp"
    namespace: _lightning.Namespace

    def __init__(
        self,
        process_group_backend: Optional[str] = None,
        cluster_environment: "Optional[ClusterEnvironment]" = None,
        **kwargs: Any,
    ) -> None:
        report_uncaught()
        self._job = TrainingJob.resolve()
        self._requested_backend = process_group_backend
        self._choice: Optional[BackendChoice] = None
        self._topology: Optional[Topology] = None
        environment: Any = cluster_environment
        if environment is None:
            topology = Topology.resolve(job=self._job)
            # On a laptop and under schedulers that we do not know, Lightning's own choice is the right one.
            environment = SageMakerEnvironment(topology) if topology.launcher != Launcher.LOCAL else None
        if isinstance(environment, SageMakerEnvironment):
            self._topology = environment.topology
        super().__init__(cluster_environment=environment, **kwargs)
        # Where Lightning keeps it; 1.5 does not take it as an argument.
        self._process_group_backend = process_group_backend

    @property
    def num_nodes(self) -> int:
        """How many hosts train together: the launcher's number, where there is one."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = self.nodes_of_the_job(num_nodes)
        self.set_world_ranks()

    def nodes_of_the_job(self, num_nodes: int) -> int:
        """How many hosts train together when the ``Trainer`` says ``num_nodes``.

        Raises:
            TopologyError: It is not the launcher's number.
        """
        if self._topology is None or self._topology.launcher == Launcher.LOCAL:
            return num_nodes
        # 1 is what the Trainer hands over when nobody said anything.
        if num_nodes not in (1, self._topology.num_nodes):
            raise TopologyError(
                f"Trainer(num_nodes={num_nodes}), but the job has this world: {self._topology}.",
                hint="Leave num_nodes out; the strategy takes it from the job.",
            )
        return self._topology.num_nodes

    @property
    def parallel_devices(self) -> "Optional[List[torch.device]]":
        """The devices of this host's processes, one each."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, parallel_devices: "Optional[List[torch.device]]") -> None:
        local_size = self._topology.local_world_size if self._topology is not None else None
        if parallel_devices and local_size is not None and len(parallel_devices) != local_size:
            parallel_devices = one_device_each(parallel_devices, local_size)
        self._parallel_devices = parallel_devices

    @property
    def num_processes(self) -> int:
        """How many processes this host has."""
        return len(self.parallel_devices or ())

    @num_processes.setter
    def num_processes(self, num_processes: int) -> None:
        """Lightning 1.5 sets the number of devices that it was given, which the launcher's may differ from."""

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Replicas are the processes of the world, also where hosts have unequal numbers of them."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self, *args: Any, **kwargs: Any) -> None:
        """Let Lightning compute ranks where it starts the processes; elsewhere the launcher's stand."""
        if self._topology is not None and self._topology.global_rank is not None:
            _lightning.set_rank_zero_rank(self._topology.global_rank)
        else:
            super().set_world_ranks(*args, **kwargs)

    def setup_distributed(self) -> None:
        """Choose the backend, say why, and join the process group."""
        self.set_world_ranks()
        set_training(True)
        if self._choice is None:
            requested = self._requested_backend or backend_variable(self.namespace)
            self._choice = choose_backend(requested, self.root_device.type, self._job)
            if self.global_rank == 0:
                log.info("SMDDPStrategy: backend %s, because %s.", self._choice.backend, self._choice.reason)
        if self._choice.backend == SMDDP:
            self._join_smddp()
        super().setup_distributed()
        destroy_at_exit()

    def _join_smddp(self) -> None:
        """Join before Lightning does, which since 2.5.5 hands over a ``device_id``, undocumented for SMDDP."""
        import torch.distributed as dist

        if dist.is_initialized():
            return
        replace_infinite_barrier(self.namespace)
        environment: Any = self.cluster_environment
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        timeout: Dict[str, Any] = {"timeout": self._timeout} if getattr(self, "_timeout", None) is not None else {}
        dist.init_process_group(SMDDP, rank=self.global_rank, world_size=self.world_size, **timeout)

    def _get_process_group_backend(self) -> str:
        return (self._choice.backend if self._choice else None) or super()._get_process_group_backend()

    @property
    def torch_distributed_backend(self) -> str:
        """The name by which Lightning 1.5 asks for the backend."""
        parent: Any = super()
        return (self._choice.backend if self._choice else None) or str(parent.torch_distributed_backend)

    @property
    def _is_smddp(self) -> bool:
        return self._choice is not None and self._choice.backend == SMDDP

    def reduce(self, tensor: Any, group: Optional[Any] = None, reduce_op: Optional[Union[Any, str]] = "mean") -> Any:
        """Reduce a tensor over all processes; a mean under ``smddp`` is a sum and a division."""
        import torch

        mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if not (self._is_smddp and mean and isinstance(tensor, torch.Tensor)):
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        size = torch.distributed.get_world_size(group) if group is not None else self.world_size
        return total.div_(size) if total.is_floating_point() else total.copy_(total / size)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Broadcast an object; under ``smddp`` by tensors on the device, as its object collectives are undocumented."""
        if not self._is_smddp:
            return super().broadcast(obj, src)
        return broadcast_object(obj, src, self.global_rank, self.root_device)
