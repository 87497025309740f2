"""``SMDDPStrategy``: Lightning's DDP in the launcher's world, over AWS's SMDDP collectives where they are available.

Beside it: the choice of the backend, one device for each local process, and the registration of the strategy's names.
"""

import importlib
import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from lightning_sm import _lightning
from lightning_sm._distributed.environment import SageMakerEnvironment
from lightning_sm._failure import report_uncaught, set_training
from lightning_sm._lightning.collectives import broadcast_object, destroy_at_exit
from lightning_sm._lightning.compat_strategies import (
    apply_num_nodes,
    backend_variable,
    ddp_base_path,
    keep_cluster_environment,
    register_strategy,
    replace_infinite_barrier,
)
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm.errors import SMDDPUnavailableError, TopologyError

if TYPE_CHECKING:
    import torch
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object

__all__ = ["SMDDP_MIXIN", "Backend", "BackendChoice", "SMDDPMixin", "choose_backend", "one_device_per_process"]
__all__ += ["register_strategies", "smddp_strategy_class"]

#: Where the mixin of ``SMDDPStrategy`` is, as ``module:name``.
SMDDP_MIXIN = f"{__name__}:SMDDPMixin"

# Importing it registers the backend: AWS, "Use the SMDDP library in your PyTorch Lightning training script".
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


class Backend(str, Enum):
    """The process group backends that :func:`choose_backend` chooses from."""

    SMDDP = "smddp"
    NCCL = "nccl"
    GLOO = "gloo"


@dataclass(frozen=True)
class BackendChoice:
    """The backend of the process group, and why it was chosen.

    Args:
        backend: A value of :class:`Backend`, or the backend that the user named; ``None`` if Lightning chooses.
        reason: Why, for the log.
    """

    backend: Optional[str]
    reason: str

    @property
    def is_smddp(self) -> bool:
        """Whether AWS's library was chosen."""
        return self.backend == Backend.SMDDP.value


def choose_backend(requested: Optional[str], device_type: str, job: TrainingJob) -> BackendChoice:
    """Choose the backend. AWS's library is imported if it is wanted, because that registers its backend.

    Args:
        requested: The backend that the user named, or ``None``.
        device_type: The type of the process's device, such as ``cuda`` or ``cpu``.
        job: The job, whose distribution may request SMDDP.

    Raises:
        SMDDPUnavailableError: ``smddp`` was named and its library cannot be imported.
    """
    if requested is not None:
        problem = _import_smddp() if requested == Backend.SMDDP.value else None
        if problem is not None:
            raise SMDDPUnavailableError(
                f"process_group_backend='smddp' was requested, but importing {_MODULE} failed with {problem} on "
                f"instance type {job.current_instance_type or 'unknown (not in a SageMaker container)'}.",
                hint="SMDDP is in AWS's PyTorch images up to 2.5.1 and works on ml.p3dn, ml.p4d and ml.p4de; leave "
                "process_group_backend out to fall back to NCCL.",
            )
        return BackendChoice(requested, "it was requested")
    fallback = {"cuda": Backend.NCCL.value, "cpu": Backend.GLOO.value}.get(device_type)
    if not job.in_container:
        return BackendChoice(fallback, "this is not a SageMaker training container")
    if not job.asks_for_smddp:
        return BackendChoice(fallback, "the job's distribution is not smdistributed.dataparallel")
    if device_type != "cuda":
        return BackendChoice(fallback, f"SMDDP needs GPUs and the device is {device_type}")
    problem = _import_smddp()
    if problem is not None:
        return BackendChoice(fallback, f"importing {_MODULE} failed with {problem}")
    return BackendChoice(Backend.SMDDP.value, "the job's distribution is smdistributed.dataparallel")


def _import_smddp() -> Optional[str]:
    """Import AWS's library and return the error as text, or ``None``."""
    try:
        importlib.import_module(_MODULE)
    except Exception as error:  # the closed library refuses unsupported instances with an exception of its own choice
        return f"{type(error).__name__}: {error}"
    return None


def one_device_per_process(devices: "List[torch.device]", local_size: int) -> "List[torch.device]":
    """Return one device for each process that the launcher started on this host.

    The launcher's number of processes replaces a number of devices, but not a list of devices such as ``[2, 3]``.

    Args:
        devices: The devices of the ``Trainer``.
        local_size: How many processes the launcher started on this host.

    Raises:
        TopologyError: There are fewer devices than processes, or the list of devices has another length.
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


class SMDDPMixin(_Base):
    """Distributed data parallel training on SageMaker, over AWS's SMDDP collectives where they are available.

    On a laptop and under plain ``torchrun`` it is Lightning's ``DDPStrategy``. In a SageMaker container it uses a
    :class:`~lightning_sm.SageMakerEnvironment` and takes ``devices`` and ``num_nodes`` from the launcher; otherwise
    each process would train alone and exit with code 0. The backend is ``smddp`` if the job's distribution requests it,
    the device is a GPU and the library can be imported; else NCCL on GPUs and gloo on CPUs. One log line tells which
    and why. Under ``smddp`` a mean is computed as a sum and a division, and no second process group is created: AWS
    documents neither for that library.

    Registered with Lightning as ``smddp``, ``smddp_find_unused_parameters_false`` and
    ``smddp_find_unused_parameters_true``. It reads the files and variables that :class:`~lightning_sm.TrainingJob` and
    :class:`~lightning_sm.Topology` list, and:

    ``sagemaker_distributed_dataparallel_enabled``
      A hyperparameter that the SDK sets for ``distribution={"smdistributed": {"dataparallel": {"enabled": True}}}`` and
      ``{"pytorchddp": {"enabled": True}}``. Absent with other distributions.

    ``PL_TORCH_DISTRIBUTED_BACKEND``
      The backend, where ``process_group_backend`` is not given; set by the user. Lightning before 1.8 only.

    ``MASTER_ADDR``, ``MASTER_PORT``
      Written, not read, before the process group is initialized under ``smddp``.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described above.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Lightning's ``DDPStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and its library cannot be imported (raised in ``fit``).

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="cpu", strategy="smddp")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMDDPStrategy(find_unused_parameters=False))  # doctest: +SKIP
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
            # On a laptop and under other schedulers Lightning's own choice is right.
            environment = SageMakerEnvironment(topology) if topology.launcher != Launcher.LOCAL else None
        if isinstance(environment, SageMakerEnvironment):
            self._topology = environment.topology
        super().__init__(cluster_environment=environment, **kwargs)
        # Where Lightning keeps it; 1.5 does not take it as an argument.
        self._process_group_backend = process_group_backend

    @property
    def num_nodes(self) -> int:
        """Hosts in the world: the launcher's number, if there is a launcher."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = self.job_num_nodes(num_nodes)
        self.set_world_ranks()

    def job_num_nodes(self, num_nodes: int) -> int:
        """Hosts in the world, given ``num_nodes`` of the ``Trainer``.

        Raises:
            TopologyError: ``num_nodes`` is not the launcher's number.
        """
        if self._topology is None or self._topology.launcher == Launcher.LOCAL:
            return num_nodes
        # 1 is the Trainer's default.
        if num_nodes not in (1, self._topology.num_nodes):
            raise TopologyError(
                f"Trainer(num_nodes={num_nodes}), but the job has this world: {self._topology}.",
                hint="Leave num_nodes out; the strategy takes it from the job.",
            )
        return self._topology.num_nodes

    @property
    def parallel_devices(self) -> "Optional[List[torch.device]]":
        """The devices of this host, one for each process."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, parallel_devices: "Optional[List[torch.device]]") -> None:
        local_size = self._topology.local_world_size if self._topology is not None else None
        if parallel_devices and local_size is not None and len(parallel_devices) != local_size:
            parallel_devices = one_device_per_process(parallel_devices, local_size)
        self._parallel_devices = parallel_devices

    @property
    def num_processes(self) -> int:
        """Processes on this host."""
        return len(self.parallel_devices or ())

    @num_processes.setter
    def num_processes(self, num_processes: int) -> None:
        """Ignore the number that Lightning 1.5 sets, which is that of the ``Trainer``'s devices."""

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Replicas are the processes of the world, even if hosts have unequal numbers of them."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self, *args: Any, **kwargs: Any) -> None:
        """Let Lightning compute ranks if it starts the processes; a launcher's ranks are kept."""
        if self._topology is not None and self._topology.global_rank is not None:
            _lightning.set_rank_zero_rank(self._topology.global_rank)
        else:
            super().set_world_ranks(*args, **kwargs)

    def setup_distributed(self) -> None:
        """Choose the backend, log why, and initialize the process group."""
        self.set_world_ranks()
        set_training(True)
        if self._choice is None:
            requested = self._requested_backend or backend_variable(self.namespace)
            self._choice = choose_backend(requested, self.root_device.type, self._job)
            if self.global_rank == 0:
                log.info("SMDDPStrategy: backend %s, because %s.", self._choice.backend, self._choice.reason)
            environment: Any = self.cluster_environment
            if isinstance(environment, SageMakerEnvironment):
                environment.set_backend(self._choice.backend, self._choice.reason)
        if self._choice.is_smddp:
            self._init_smddp()
        super().setup_distributed()
        destroy_at_exit()

    def _init_smddp(self) -> None:
        """Initialize the group before Lightning, which since 2.5.5 passes a ``device_id``, undocumented for SMDDP."""
        import torch.distributed as dist

        if dist.is_initialized():
            return
        replace_infinite_barrier(self.namespace)
        environment: Any = self.cluster_environment
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        timeout: Dict[str, Any] = {"timeout": self._timeout} if getattr(self, "_timeout", None) is not None else {}
        dist.init_process_group(Backend.SMDDP.value, rank=self.global_rank, world_size=self.world_size, **timeout)

    def _get_process_group_backend(self) -> str:
        return (self._choice.backend if self._choice else None) or super()._get_process_group_backend()

    @property
    def torch_distributed_backend(self) -> str:
        """The backend, by the name of Lightning 1.5."""
        parent: Any = super()
        return (self._choice.backend if self._choice else None) or str(parent.torch_distributed_backend)

    @property
    def _is_smddp(self) -> bool:
        return self._choice is not None and self._choice.is_smddp

    def reduce(self, tensor: Any, group: Optional[Any] = None, reduce_op: Optional[Union[Any, str]] = "mean") -> Any:
        """Reduce a tensor over all processes; under ``smddp`` a mean is computed as a sum and a division."""
        import torch

        mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if not (self._is_smddp and mean and isinstance(tensor, torch.Tensor)):
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        size = torch.distributed.get_world_size(group) if group is not None else self.world_size
        return total.div_(size) if total.is_floating_point() else total.copy_(total / size)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Broadcast an object; under ``smddp`` as a tensor on the device, its object collectives are undocumented."""
        if not self._is_smddp:
            return super().broadcast(obj, src)
        return broadcast_object(obj, src, self.global_rank, self.root_device)


def smddp_strategy_class(namespace: _lightning.Namespace) -> type:
    """Return ``SMDDPStrategy`` for one of Lightning's namespaces."""
    cls = _lightning.namespaced_class(namespace, "SMDDPStrategy", SMDDP_MIXIN, ddp_base_path(namespace))
    apply_num_nodes(namespace, cls)
    keep_cluster_environment(namespace, cls)
    return cls


def register_strategies(namespace: _lightning.Namespace) -> None:
    """Register ``smddp`` and ``smddp_find_unused_parameters_{true,false}``, as Lightning does for ``ddp``."""
    cls = smddp_strategy_class(namespace)
    description = "DDP over AWS's SMDDP collectives where available, else over NCCL or gloo"
    register_strategy(namespace, "smddp", cls, description)
    for value in (True, False):
        name = f"smddp_find_unused_parameters_{str(value).lower()}"
        register_strategy(namespace, name, cls, description, find_unused_parameters=value)
