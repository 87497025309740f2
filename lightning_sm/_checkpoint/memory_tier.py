"""``MemoryTier``: checkpoints in the memory of a HyperPod cluster (SageMaker's managed tiered checkpointing).

The library ``amzn-sagemaker-checkpointing`` is a writer and a reader for ``torch.distributed.checkpoint`` (DCP).
"""

import io
import logging
import os
import re
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.candidates import JOB_KEY, Candidate, JobIdentity
from lightning_sm._checkpoint.integrity import META_FILE, CorruptedError, read_contents
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import broadcast
from lightning_sm._lightning.compat_sharded import dcp_storage, has_dcp_storage, saves_with_dcp
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["MemoryTier"]

# Everything but the state of model and optimizers, which Lightning keeps in a file of its own.
_META_KEY = "lightning_sm_meta"
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_NOT_SHARDED = (
    "Use FSDPStrategy(state_dict_type='sharded') or ModelParallelStrategy (FSDP2), whose checkpoints are sharded."
)


@dataclass(frozen=True)
class MemoryTier:
    """The checkpoints of one training in the cluster's memory.

    The library counts ranks from the world size with which a namespace was made, so each world size has one of its own.

    Args:
        namespace: Identifies the training; the same in its restarts.
        world_size: The number of ranks.
    """

    namespace: str
    world_size: int

    @property
    def name(self) -> str:
        """The namespace as the library gets it."""
        return f"{self.namespace}-{self.world_size}"

    def check(self, lightning: Namespace, strategy: Any) -> None:
        """Raise if a strategy cannot save there.

        Raises:
            CheckpointError: The name is malformed, the library is missing, or the strategy saves nothing sharded.
        """
        if not _NAMESPACE.fullmatch(self.namespace):
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is {self.namespace!r}.",
                hint="Name the training with letters, digits, hyphens and underscores, 128 at most.",
            )
        try:
            import amzn_sagemaker_checkpointing  # noqa: F401
        except ImportError as error:
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is set, and amzn_sagemaker_checkpointing cannot be imported ({error}).",
                hint="Add amzn-sagemaker-checkpointing, s3torchconnector and tenacity to requirements.txt; they need "
                "Python 3.10 or later.",
            ) from error
        if not saves_with_dcp(strategy):
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is set, and {type(strategy).__name__} does not save with "
                "torch.distributed.checkpoint.",
                hint=_NOT_SHARDED,
            )
        if not has_dcp_storage(lightning):
            raise CheckpointError(
                "sagemaker.tiered_checkpoints is set, and this Lightning saves to local files only.",
                hint="Use Lightning 2.3 or later.",
            )

    def save(self, lightning: Namespace, trainer: Trainer) -> None:
        """Save the training's state. Collective: every rank must call it.

        Raises:
            Exception: It could not be saved; on every rank.
        """
        strategy, step = strategy_of(trainer), trainer.global_step
        # Lightning makes this folder on every host, for the part that is not sharded.
        folder = broadcast(trainer, os.path.join(tempfile.gettempdir(), f"lightning-sm-tier-{os.getpid()}-{step}"))

        def save_checkpoint(_: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            store = partial(self._store, step, _meta(checkpoint) if trainer.is_global_zero else None)
            with dcp_storage(lightning, save=store):
                type(strategy).save_checkpoint(strategy, checkpoint, folder)

        replaced = ReplacedMethod(strategy, "save_checkpoint", save_checkpoint)
        try:
            trainer.save_checkpoint(folder)
        finally:
            replaced.undo()
            remove(folder)

    def _store(self, step: int, meta: Optional[bytes], state: Any) -> None:
        from amzn_sagemaker_checkpointing.checkpointing.filesystem import SageMakerTieredStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        if meta is not None:
            state = {**state, _META_KEY: meta}
        save(state, storage_writer=SageMakerTieredStorageWriter(self._config(), step=step))

    def newest(self, trainer: Trainer) -> Optional[Candidate]:
        """Return the newest checkpoint, whose name is a folder of this rank with its part that is not sharded.

        Collective: every rank must call it. Without a server, or without a checkpoint there, it is ``None``.
        """
        step = broadcast(trainer, self._newest_step() if trainer.is_global_zero else None)
        if step is None:
            return None
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        state = {_META_KEY: b""}
        try:
            load(state, storage_reader=self.reader(step))
        except (Exception, CheckpointException) as error:
            log.warning("The checkpoint of step %d in the memory tier %s cannot be read: %s", step, self.name, error)
            return None
        folder = os.path.join(tempfile.mkdtemp(prefix="lightning-sm-"), f"memory-tier-step={step}.ckpt")
        os.makedirs(folder)
        with open(os.path.join(folder, META_FILE), "wb") as file:
            file.write(state[_META_KEY])
        try:
            contents = read_contents(file.name)
        except CorruptedError as error:
            log.warning("The checkpoint of step %d in the memory tier %s: %s", step, self.name, error)
            return None
        job = JobIdentity.from_dict(contents.get(JOB_KEY))
        return Candidate(folder, epoch=contents["epoch"], global_step=step, is_folder=True, job=job)

    def _newest_step(self) -> Optional[int]:
        try:
            reader: Any = self.reader(None)
            steps = reader.client.get_latest_checkpoints(limit=1)
        except Exception as error:
            log.warning("The memory tier %s cannot be asked for checkpoints: %s", self.name, error)
            return None
        return max(map(int, steps)) if steps else None

    def reader(self, step: Optional[int]) -> Any:
        """Return a DCP ``StorageReader`` of the checkpoint of a step."""
        from amzn_sagemaker_checkpointing.checkpointing.filesystem import SageMakerTieredStorageReader

        return SageMakerTieredStorageReader(self._config(), step=step)

    def _config(self) -> Any:
        from amzn_sagemaker_checkpointing.config.sagemaker_checkpoint_config import SageMakerCheckpointConfig

        # The library logs each request; its errors are enough.
        logger = logging.getLogger("lightning_sm.memory_tier")
        logger.setLevel(logging.ERROR)
        return SageMakerCheckpointConfig(namespace=self.name, world_size=self.world_size, logger=logger)


def _meta(checkpoint: Any) -> bytes:
    import torch

    rest = {key: value for key, value in checkpoint.items() if key not in ("state_dict", "optimizer_states")}
    content = io.BytesIO()
    torch.save(rest, content)
    return content.getvalue()
