"""What a strategy saves with: atomic files or sharded checkpoints, in the background where that is asked for."""

from typing import Any

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import innermost_wrapper
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.atomic_io import AtomicCheckpointIOMixin, atomic_checkpoint_io
from lightning_sm._resume.sharded import install_sharded_writer

__all__ = ["install_saves", "read_plainly"]


def install_saves(namespace: Namespace, trainer: Trainer, *, async_save: bool) -> Any:
    """Let a trainer's strategy save atomically, and return what saves in the background, if anything does.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        async_save: Whether a thread writes the checkpoints while training continues.
    """
    strategy = strategy_of(trainer)
    if not bypasses_checkpoint_io(strategy):
        return _wrap_checkpoint_io(namespace, strategy, async_save=async_save)
    if is_sharded(trainer):
        writer = install_sharded_writer(namespace, trainer, strategy)
        return writer if async_save else None
    if trainer.is_global_zero:
        log.info("%s writes checkpoints itself, which are not atomic", type(strategy).__name__)
    return None


def _wrap_checkpoint_io(namespace: Namespace, strategy: Any, *, async_save: bool) -> Any:
    found = strategy.checkpoint_io
    wrapper = innermost_wrapper(found)
    if wrapper is not None:
        # The property can be set only once.
        if not isinstance(wrapper.checkpoint_io, AtomicCheckpointIOMixin):
            wrapper._checkpoint_io = atomic_checkpoint_io(namespace)(wrapper.checkpoint_io)
        if async_save:
            log.info("sagemaker.async_save has no effect: the strategy already uses %s", type(found).__name__)
        return None
    if not isinstance(found, AtomicCheckpointIOMixin):
        strategy.checkpoint_io = atomic_checkpoint_io(namespace)(found)
    return strategy.checkpoint_io if async_save else None


def read_plainly(trainer: Trainer, path: str) -> None:
    """Let a strategy load a save of the job's own series as it was written, whatever its ``CheckpointIO`` does."""
    found = getattr(strategy_of(trainer), "checkpoint_io", None)
    wrapper = innermost_wrapper(found)
    writer = found if wrapper is None else wrapper.checkpoint_io
    if isinstance(writer, AtomicCheckpointIOMixin):
        writer.resumed = path
