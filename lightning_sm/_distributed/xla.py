"""``TorchrunXLAStrategy``: Lightning's strategy for XLA in processes that ``torchrun`` has started, as on Trn1."""

import importlib
import importlib.util
import pickle
from typing import Any

from lightning_sm._distributed.mixin import StrategyMixin
from lightning_sm._distributed.neuron import XLA, NeuronCoresMixin
from lightning_sm.errors import TopologyError

__all__ = ["TorchrunXLAAcceleratorMixin", "TorchrunXLAMixin"]

_DEVICE = "xla"


class TorchrunXLAAcceleratorMixin(NeuronCoresMixin):
    """A device of ``torch_xla`` for each process of ``torchrun``, for :class:`~lightning_sm.TorchrunXLAStrategy`.

    It is Lightning's accelerator for XLA, which counts chips of TPUs, and for which Lightning leaves inference mode
    out. Registered with Lightning 2.1 and newer as ``torchrun_xla``.
    """

    accelerator_name, device_type, fitting_strategy = XLA, _DEVICE, XLA

    @staticmethod
    def auto_device_count() -> int:
        """One: that of this process."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether ``torch_xla`` is installed."""
        return importlib.util.find_spec("torch_xla") is not None


class TorchrunXLAMixin(StrategyMixin):
    """Data parallel training by ``torch_xla`` in the processes of ``torchrun``: Trn1 on SageMaker.

    It is Lightning's ``XLAStrategy``, which starts processes itself and refuses one device, in the launcher's world:
    the process group is ``init_process_group("xla", init_method="xla://")``, ranks and sizes are the launcher's, and
    nothing is started. Before training it compares what ``torch_xla`` takes for the world with the launcher's, because
    each process would train alone otherwise. Checkpoints may be saved by any ``CheckpointIO``.

    Registered with Lightning 2.1 and newer as ``torchrun_xla``, for ``Trainer(accelerator="torchrun_xla",
    strategy="torchrun_xla")``. Needs ``torch_xla`` 2.1. It reads the files and variables that
    :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology` list, and:

    ``MASTER_ADDR``, ``MASTER_PORT``
      Written, with this job's values, before ``torch_xla`` reads them.

    ``PJRT_DEVICE``, ``NEURON_RT_*``, ``NEURON_PJRT_*``
      Read by ``torch_xla`` and AWS's Neuron runtime; set by the image, or by ``torch_xla`` for ``torchrun``.

    Args:
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Lightning's ``XLAStrategy``: ``debug``, ``sync_module_states``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, the ``Trainer`` requests another world, or
            ``torch_xla`` sees another one (raised in ``fit``).
        StrategyUnavailableError: This Lightning is older than 2.1.
        ModuleNotFoundError: ``torch_xla`` is not installed.

    Example::

        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="torchrun_xla", strategy="torchrun_xla")  # doctest: +SKIP
    """

    strategy_name = XLA
    _launched: bool

    def __init__(self, cluster_environment: Any = None, **kwargs: Any) -> None:
        super().__init__(None, cluster_environment, **kwargs)

    @property
    def checkpoint_io(self) -> Any:
        """What saves and loads; by default Lightning's for XLA, which saves tensors as those of a CPU."""
        return super().checkpoint_io if self._checkpoint_io is None else self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, checkpoint_io: Any) -> None:
        self._checkpoint_io = checkpoint_io

    # Lightning's class knows ranks and sizes only in processes that it has started.

    @property
    def world_size(self) -> int:
        """Processes in the world."""
        return int(self.cluster_environment.world_size())

    @property
    def global_rank(self) -> int:
        """The index of this process in the world."""
        return int(self.cluster_environment.global_rank())

    @property
    def local_rank(self) -> int:
        """The index of this process on its host."""
        return int(self.cluster_environment.local_rank())

    @property
    def node_rank(self) -> int:
        """The index of this host in the world."""
        return int(self.cluster_environment.node_rank())

    def _configure_launcher(self) -> None:
        self._launcher = None

    def setup_environment(self) -> None:
        """Initialize the process group, which tells ``torch_xla`` its device, and compare the worlds."""
        import torch.distributed as dist

        self._prepare_group(_DEVICE)
        if not dist.is_initialized():
            importlib.import_module("torch_xla.distributed.xla_backend")
            self._set_main_address()
            dist.init_process_group("xla", init_method="xla://")
        runtime: Any = importlib.import_module("torch_xla.runtime")
        seen = (runtime.global_ordinal(), runtime.world_size())
        if seen != (self.global_rank, self.world_size):
            raise TopologyError(
                f"torch_xla takes this process for rank {seen[0]} of {seen[1]} on {runtime.device_type()}, and it is "
                f"rank {self.global_rank} of {self.world_size}: each would train alone.",
                hint="Start the job by torchrun (torch_distributed), and leave PJRT_DEVICE and NEURON_* to the image; "
                "on CPUs torch_xla has one process.",
            )
        super().setup_environment()

    def setup_distributed(self) -> None:
        """Nothing: the process group exists."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Broadcast any object, which may have another size on each rank. Lightning's takes tensors of one size."""
        if not self._launched:
            return obj
        xla: Any = importlib.import_module("torch_xla.core.xla_model")
        return pickle.loads(xla.rendezvous("lightning_sm.broadcast", pickle.dumps(obj))[src])
