"""``WorldCheck``: compares the trainer's world with the job's before training."""

from typing import TYPE_CHECKING, Any, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import LightningSMError

__all__ = ["WorldCheckMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class WorldCheckMixin(_Base):
    """Raise an error in ``fit`` if the world size or number of nodes of the ``Trainer`` is not the job's.

    :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it under every launcher. Without
    it, a ``Trainer`` with a single-device strategy would train independently in each process of the job, and each
    process would end with exit code 0. ``validate``, ``test`` and ``predict`` are not checked.

    The environment variables and files are those of :class:`~lightning_sm.Topology`; none is read if ``topology`` is
    given.

    Args:
        topology: The world of the job; by default :meth:`Topology.resolve() <lightning_sm.Topology.resolve>`.

    Raises:
        TopologyError: The worlds differ (in ``fit``), or the environment describes none.
        LightningSMError: The ``Trainer`` is from Lightning's other namespace (in ``fit``).

    Source: ``SingleDeviceStrategy`` in ``lightning/pytorch/strategies/single_device.py`` has a world size of 1 in any
    environment.

    Example::

        >>> from lightning_sm import Launcher, Topology
        >>> from lightning_sm.callbacks import WorldCheck
        >>> callback = WorldCheck(Topology(Launcher.HOST, num_nodes=2))
        >>> callback.topology.num_nodes
        2
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, topology: Optional[Topology] = None) -> None:
        super().__init__()
        self.topology = Topology.resolve() if topology is None else topology

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Compare the namespaces, and in ``fit`` the worlds."""
        trainer_class = type(trainer)
        if not self.namespace.owns(trainer_class):
            raise LightningSMError(
                f"The Trainer is {trainer_class.__module__}.{trainer_class.__qualname__}, and the callbacks that "
                f"lightning_sm added are made for {self.namespace.name}.",
                hint="Pass the class that you will instantiate: trainer_settings(trainer_class=Trainer).",
            )
        if stage == "fit":
            self.topology.check_world(trainer.world_size, trainer.num_nodes)
