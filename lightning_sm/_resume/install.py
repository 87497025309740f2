"""What a strategy saves with: atomic files and sharded checkpoints; checks of a ``ckpt_path``."""

import os
from typing import Any, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import innermost_wrapper
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.loadable import load_problem
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.atomic_io import AtomicCheckpointIOMixin, atomic_checkpoint_io
from lightning_sm._resume.background import BackgroundCheckpointIOMixin, background_checkpoint_io
from lightning_sm._resume.manifest import Manifest, has_manifest
from lightning_sm._resume.send import complete_folder
from lightning_sm._resume.sharded_files import restore_interrupted
from lightning_sm._resume.sharded_io import folder_saves_of, install_folder_saves
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.uploads import folder_uploads
from lightning_sm.errors import CheckpointError

__all__ = ["check_given", "finish_saves", "install_saves"]


def install_saves(namespace: Namespace, trainer: Trainer, directory: str, *, async_save: bool) -> Any:
    """Let a trainer's strategy save atomically, and return what saves in the background, if anything does.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        directory: The job's checkpoint directory.
        async_save: Whether a thread writes the checkpoints while training continues.
    """
    strategy = strategy_of(trainer)
    if not bypasses_checkpoint_io(strategy):
        return _wrap_checkpoint_io(namespace, strategy, async_save=async_save)
    if is_sharded(trainer):
        saves = install_folder_saves(trainer, strategy, folder_uploads(namespace, strategy))
        named = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
        if trainer.local_rank == 0:
            for each in {directory, *(os.fspath(path) for path in named if path)}:
                if os.path.isdir(each):
                    restore_interrupted(each)
        return saves if async_save else None
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
    elif not isinstance(found, (AtomicCheckpointIOMixin, BackgroundCheckpointIOMixin)):
        saves = atomic_checkpoint_io(namespace)(found)
        strategy.checkpoint_io = background_checkpoint_io(namespace)(saves) if async_save else saves
    installed = strategy.checkpoint_io
    return installed if isinstance(installed, BackgroundCheckpointIOMixin) else None


def finish_saves(trainer: Trainer, *, failed: bool = False) -> None:
    """Wait for pending background saves, and save synchronously from now on. Every rank must call it.

    Args:
        trainer: The trainer.
        failed: Whether training has failed, so that not every rank may get here: no collective is called, and errors
            are only logged.

    Raises:
        Exception: The error of the last save; of a sharded checkpoint on every rank.
    """
    folders = folder_saves_of(strategy_of(trainer))
    checkpoint_io = getattr(strategy_of(trainer), "checkpoint_io", None)
    try:
        if folders is not None and failed:
            error = folders.wait()
            if error is not None:
                log.error("%s", error)
        elif folders is not None:
            folders.finish()
        if isinstance(checkpoint_io, BackgroundCheckpointIOMixin):
            checkpoint_io.finish()
    except Exception as error:
        if not failed:
            raise
        log.error("%s", error)


def check_given(trainer: Trainer, path: Any, copy: Optional[str] = None) -> None:
    """Check a sharded ``ckpt_path``, and let every host have all files of it. Every rank must call it.

    Args:
        trainer: The trainer.
        path: The path or URL.
        copy: This host's copy of what is at a URL; without, Lightning reads the URL.

    Raises:
        CheckpointError: It is not whole, or the trainer's strategy cannot load it.
    """
    given = copy or broadcast(trainer, None if is_remote(path) else os.path.abspath(path))
    if given is None or not any_true(trainer, has_manifest(given)):
        return
    problem = complete_folder(trainer, given)
    if problem is not None:
        hint = "Pass another checkpoint, or none: the job then resumes from its newest whole one."
        raise CheckpointError(f"The ckpt_path {path if copy else given} cannot be loaded: {problem}.", hint=hint)
    manifest = Manifest.read(given)
    found = None if manifest is None else load_problem(trainer, manifest.strategy, manifest.world_size)
    if found is not None:
        raise CheckpointError(f"The ckpt_path {path} cannot be loaded: {found[0]}.", hint=found[1])
