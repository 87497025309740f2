"""The strategies of Lightning Fabric: the mixins of the Trainer's strategies over Fabric's classes.

Fabric has classes and a registry of its own, in which the same methods have other names.
"""

from typing import Any, Optional

from lightning_sm._distributed.mixin import StrategyMixin
from lightning_sm._distributed.sharded import FSDPMixin
from lightning_sm._distributed.smddp import DataParallelMixin

__all__ = ["FabricFSDPMixin", "FabricSMDDPMixin"]


class _FabricMethods(StrategyMixin):
    """Fabric's names for methods of our mixins: what Fabric calls."""

    def _setup_distributed(self) -> None:
        self.setup_distributed()

    def _set_world_ranks(self) -> None:
        # Fabric has set this past the property.
        self._num_nodes = self.job_num_nodes(self._num_nodes)
        self.set_world_ranks()

    def all_reduce(self, tensor: Any, group: Optional[Any] = None, reduce_op: Any = "mean") -> Any:
        return self.reduce(tensor, group, reduce_op)


class _TrainerMethods:
    """The Trainer's names for methods of Fabric's strategies: what our mixins call."""

    def setup_distributed(self) -> None:
        super()._setup_distributed()  # type: ignore[misc]

    def set_world_ranks(self) -> None:
        super()._set_world_ranks()  # type: ignore[misc]

    def reduce(self, tensor: Any, group: Optional[Any] = None, reduce_op: Any = "mean") -> Any:
        return super().all_reduce(tensor, group, reduce_op)  # type: ignore[misc]


class FabricSMDDPMixin(_FabricMethods, DataParallelMixin, _TrainerMethods):
    """Lightning Fabric's ``DDPStrategy`` with what :class:`lightning_sm.SMDDPStrategy` adds to the Trainer's.

    Registered with Fabric as ``smddp``, ``smddp_find_unused_parameters_false`` and
    ``smddp_find_unused_parameters_true``. Needs Lightning 2.1.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described there.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Fabric's ``DDPStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Fabric`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and its library cannot be imported (raised in
            ``launch``).
        StrategyUnavailableError: This Lightning is older than 2.1, or an argument is one of the Trainer's strategy
            only, such as ``gradient_compression``.

    Example::

        >>> from lightning_fabric import Fabric
        >>> fabric = Fabric(accelerator="cpu", strategy="smddp")  # doctest: +SKIP
        >>> fabric = Fabric(strategy=SMDDPStrategy(find_unused_parameters=True))  # doctest: +SKIP
    """


class FabricFSDPMixin(_FabricMethods, FSDPMixin, _TrainerMethods):
    """Lightning Fabric's ``FSDPStrategy`` with what :class:`lightning_sm.SMDDPFSDPStrategy` adds to the Trainer's.

    Registered with Fabric as ``smddp_fsdp``. Needs Lightning 2.1.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described there.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Fabric's ``FSDPStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Fabric`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and cannot be used (raised in ``launch``).
        StrategyUnavailableError: This Lightning is older than 2.1.

    Example::

        >>> from lightning_fabric import Fabric
        >>> fabric = Fabric(strategy=SMDDPFSDPStrategy(state_dict_type="sharded"))  # doctest: +SKIP
    """
