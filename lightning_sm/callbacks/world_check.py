"""``WorldCheck``: compares the trainer's world with the job's before training, and what all hosts should share."""

import time
from typing import Any, Mapping, Optional

from lightning_sm._doctor import list_files
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import gather_objects
from lightning_sm._lightning.trainer import Callback, Trainer
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import DoctorError, LightningSMError

__all__ = ["WorldCheckMixin"]


class WorldCheckMixin(Callback):
    """Raise an error in ``fit`` if the world size or number of nodes of the ``Trainer`` is not the job's.

    Also if each host of the job has started a launcher of its own, such as ``torchrun --standalone``.

    :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it under every launcher. Without
    it, a ``Trainer`` with a single-device strategy would train independently in each process of the job, and each
    process would end with exit code 0. ``validate``, ``test`` and ``predict`` are not checked.

    The environment variables and files are those of :class:`~lightning_sm.Topology`; none is read if ``topology`` is
    given.

    Args:
        topology: The world of the job; by default :meth:`Topology.resolve() <lightning_sm.Topology.resolve>`.
        folders: The directories of channels, by name, whose files all hosts must have (names and sizes are compared in
            ``fit``; files that changed after this callback was created do not count). ``sagemaker.doctor`` passes those
            in ``File`` mode that are not sharded.

    Raises:
        TopologyError: The worlds differ (in ``fit``), or the environment describes none.
        DoctorError: A host has other files than the main host (in ``fit``).
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

    def __init__(self, topology: Optional[Topology] = None, folders: Optional[Mapping[str, str]] = None) -> None:
        super().__init__()
        self.folders = dict(folders or {})
        self._created = time.time()
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
            if self.folders and self.topology.num_nodes > 1:
                self._compare_files(trainer)

    def _compare_files(self, trainer: Trainer) -> None:
        """Compare each host's files with the main host's, on all ranks."""
        is_first = self.topology.local_rank == 0
        own = {name: list_files(folder, self._created) for name, folder in self.folders.items()} if is_first else {}
        found = {node: listed for node, listed in gather_objects(trainer, (self.topology.node_rank, own)) if listed}
        main = found.get(0, {})
        for node, listed in sorted(found.items()):
            for name, files in sorted(listed.items()):
                if files != main.get(name, files):
                    raise DoctorError(
                        f"Hosts have different files in the channel {name!r}: {main[name]} on node 0, {files} on node "
                        f"{node}.",
                        hint="Each host must have the same files for ranks to divide them: use FullyReplicated, and do "
                        "not change the S3 prefix while a job starts.",
                    )
