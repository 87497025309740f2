"""``WorldCheck``: the trainer's world is the job's, or nothing is trained."""

from typing import TYPE_CHECKING, Any, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import LightningSMError

__all__ = ["WorldCheckMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class WorldCheckMixin(_Base):
    """Compares the world of the ``Trainer`` with the world of the job before the first step.

    :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it under every launcher. Without
    it a ``Trainer`` with a strategy for a single device would train alone in each process of the job, and each process
    would end with exit code 0.

    Args:
        topology: The world of the job; by default that of :meth:`Topology.resolve`.

    Raises:
        TopologyError: The worlds differ (raised in ``fit``).
        LightningSMError: The ``Trainer`` is of Lightning's other namespace (raised in ``fit``).
    """

    namespace: Namespace

    def __init__(self, topology: Optional[Topology] = None) -> None:
        super().__init__()
        self.topology = Topology.resolve() if topology is None else topology

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Compare the worlds, and the namespaces."""
        trainer_class = type(trainer)
        if not self.namespace.owns(trainer_class):
            raise LightningSMError(
                f"The Trainer is {trainer_class.__module__}.{trainer_class.__qualname__}, and the callbacks that "
                f"lightning_sm added are made for {self.namespace.name}.",
                hint="Give trainer_settings(trainer_class=Trainer) the class that you will make.",
            )
        if stage == "fit":
            self.topology.check_world(trainer.world_size, trainer.num_nodes)
