"""``SMDDPStrategy``: Lightning's DDP in the launcher's world, over AWS's SMDDP collectives where they are available."""

from typing import Any

from lightning_sm import _lightning
from lightning_sm._distributed.mixin import StrategyMixin
from lightning_sm._lightning.collectives import destroy_at_exit
from lightning_sm._lightning.legacy import add_names_of_strategy, ddp_base_path
from lightning_sm._lightning.strategies import register_strategy

__all__ = ["SMDDP_MIXIN", "SMDDPMixin", "register_strategies", "smddp_strategy_class"]

#: Where the mixin of ``SMDDPStrategy`` is, as ``module:name``.
SMDDP_MIXIN = f"{__name__}:SMDDPMixin"


class SMDDPMixin(StrategyMixin):
    """Distributed data parallel training on SageMaker, over AWS's SMDDP collectives where they are available.

    On a laptop and under plain ``torchrun`` it is Lightning's ``DDPStrategy``. In a SageMaker container it uses a
    :class:`~lightning_sm.SageMakerEnvironment` and takes ``devices`` and ``num_nodes`` from the launcher; otherwise
    each process would train alone and exit with code 0. The backend is ``smddp`` if the job's distribution requests it,
    the device is a GPU and the library can be imported; else NCCL on GPUs, ``neuron`` on NeuronCores and gloo on CPUs.
    One log line tells which and why. Under ``smddp`` a mean is computed as a sum and a division, and no second process
    group is created: AWS documents neither for that library. Under ``neuron`` a mean is computed so as well.

    Registered with Lightning as ``smddp``, ``smddp_find_unused_parameters_false`` and
    ``smddp_find_unused_parameters_true``. It reads the files and variables that :class:`~lightning_sm.TrainingJob` and
    :class:`~lightning_sm.Topology` list, and:

    ``sagemaker_distributed_dataparallel_enabled``
      A hyperparameter that the SDK sets for ``distribution={"smdistributed": {"dataparallel": {"enabled": True}}}`` and
      ``{"pytorchddp": {"enabled": True}}``. Absent with other distributions.

    ``PL_TORCH_DISTRIBUTED_BACKEND``
      The backend, where ``process_group_backend`` is not given; set by the user. Lightning 1.5 only.

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

    def determine_ddp_device_ids(self) -> Any:
        """Only GPUs have some: for any other device that has, Lightning would make a stream of CUDA."""
        return super().determine_ddp_device_ids() if self.root_device.type == "cuda" else None

    def setup_distributed(self) -> None:
        """Choose the backend, log why, and initialize the process group."""
        self._prepare_group()
        super().setup_distributed()
        destroy_at_exit()


def smddp_strategy_class(namespace: _lightning.Namespace) -> type:
    """Return ``SMDDPStrategy`` for one of Lightning's namespaces."""
    cls = _lightning.namespaced_class(namespace, "SMDDPStrategy", SMDDP_MIXIN, ddp_base_path(namespace))
    return add_names_of_strategy(namespace, cls)


def register_strategies(namespace: _lightning.Namespace) -> None:
    """Register ``smddp`` and ``smddp_find_unused_parameters_{true,false}``, as Lightning does for ``ddp``."""
    cls = smddp_strategy_class(namespace)
    description = "DDP over AWS's SMDDP collectives where available, else over NCCL or gloo"
    register_strategy(namespace, "smddp", cls, description)
    for value in (True, False):
        name = f"smddp_find_unused_parameters_{str(value).lower()}"
        register_strategy(namespace, name, cls, description, find_unused_parameters=value)
