"""``SafeSaves``: saves checkpoints atomically, optionally in the background, and loads them on every host."""

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional

from lightning_sm._checkpoint.async_io import BackgroundCheckpointIOMixin, background_checkpoint_io
from lightning_sm._checkpoint.atomic_io import AtomicCheckpointIOMixin, atomic_checkpoint_io
from lightning_sm._checkpoint.broadcast_files import broadcast_missing_file
from lightning_sm._checkpoint.folder_files import restore_interrupted
from lightning_sm._checkpoint.folder_io import FolderSaves, install_folder_saves
from lightning_sm._checkpoint.periodic import (
    explain_remote_errors,
    keep_those_of_others,
    number_folders,
    overwrite_existing_last,
    remove_superseded,
    reserve_pending_names,
)
from lightning_sm._checkpoint.resume import check_given
from lightning_sm._checkpoint.shard_storages import folder_uploads
from lightning_sm._checkpoint.transfers import GivenCopy
from lightning_sm._config.directories import CheckpointPlaces
from lightning_sm._distributed.sharded_callbacks import check_callbacks, warn_of_own_states
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import innermost_wrapper, save_by_time
from lightning_sm._lightning.compat_sharded import bypasses_checkpoint_io, complete_for_load, is_sharded
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks
from lightning_sm._lightning.trainer_hooks import around_load
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of
from lightning_sm._logging import log

__all__ = ["SafeSavesMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class SafeSavesMixin(_Base):
    """Wrap the strategy's ``CheckpointIO`` so that each checkpoint file appears under its name complete, or not at all.

    A checkpoint is written to a hidden file in the same directory, flushed and renamed. SageMaker's uploader never sees
    an incomplete file, and a save that fails or is killed leaves the older file intact.

    Strategies that write a folder of shards (DeepSpeed, FSDP with ``state_dict_type="sharded"``, FSDP2 with
    ``save_distributed_checkpoint=True``) write it under a hidden name, too. When all ranks have written, each host's
    folder gets a manifest of the files of all hosts with sizes and checksums, and then its final name. If a rank cannot
    write, that is an error on all ranks, and the older folder stays. The job's own checkpoints of such a strategy are
    numbered by steps, and the newest two are kept. Removals take place on every host.

    ``ModelCheckpoint`` callbacks that save after a batch do so after the model's ``on_train_batch_end``, which
    Lightning calls after theirs: a moving average that the model updates there is then that of the same step.

    ``trainer.test``, ``validate`` and ``predict`` load on every rank the checkpoint that global rank 0 would load. If a
    host does not have that file, it is broadcast to a temporary directory, at most 64 GiB in 10 minutes. One at a URL
    is downloaded there once on each host.

    Files: hidden ``.NAME.partial-*`` files and folders beside the checkpoints while they are written; those of killed
    runs are removed. With ``async_save``, folders are written to ``/dev/shm/.lightning-sm-*`` first, if there is room.
    No environment variable is read.

    Args:
        async_save: Whether a thread writes the checkpoints while training continues. All have been written when
            training ends; an error of the last save is raised then.
        places: The directory of checkpoints and the callbacks to add; :class:`~lightning_sm.cli.SageMakerCLI` and
            :func:`~lightning_sm.trainer_settings` set it. It also applies to callbacks of the model's
            ``configure_callbacks``, which replace the trainer's of the same class.

    Raises:
        CheckpointError: A checkpoint could not be saved, or not be broadcast to a host that does not have it.
        StrategyUnavailableError: A callback averages or unfreezes weights in a way that fails where they are sharded.

    Source: ``checkpoint_io`` in ``lightning/pytorch/strategies/strategy.py``; the SageMaker developer guide, "Use
    checkpoints in Amazon SageMaker AI", on the upload.

    Example::

        >>> from lightning_sm.callbacks import SafeSaves
        >>> callback = SafeSaves(async_save=True)
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, async_save: bool = False, places: Optional[CheckpointPlaces] = None) -> None:
        super().__init__()
        self.async_save = async_save
        self.places = places
        self._background: Optional[Any] = None
        self._deferred: List[Callable[[], None]] = []
        self._undo: List[Callable[[], None]] = []
        self._compares_states = False

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Wrap the ``CheckpointIO``, or outside of ``fit`` the load of a checkpoint."""
        if stage != "fit":
            around_load(trainer, partial(_loadable_here, trainer))
            return
        if self.places is not None:
            # Lightning iterates over this list now, and so sets up the callbacks added here, too.
            folders = is_sharded(trainer) and bypasses_checkpoint_io(strategy_of(trainer))
            callbacks_of(trainer).extend(self.places.complete(callbacks_of(trainer), folders=folders))
        check_callbacks(trainer, pl_module)
        self._release()
        self._compares_states = True
        self._undo = [after_batch_hooks(trainer, lambda: self._save_deferred(trainer, pl_module))]
        for checkpoint in trainer.checkpoint_callbacks:
            self._defer(checkpoint)
        self._background = self._install(trainer, strategy_of(trainer))
        explain_remote_errors(trainer)
        if self._background is not None:
            reserve_pending_names(trainer, self._background)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Save in the background from now on, and remove superseded checkpoints."""
        if self._background is not None:
            self._background.start()
        if trainer.local_rank == 0:
            remove_superseded(trainer)
        keep_those_of_others(trainer)
        overwrite_existing_last(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """With a strategy that shards, warn once of states that differ between ranks."""
        if self._compares_states:
            self._compares_states = not warn_of_own_states(trainer, checkpoint)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Wait for pending saves. Later saves of other callbacks are synchronous."""
        self._finish()

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Wait for pending saves, if training did not reach its end."""
        self._finish()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Wait for pending saves. Their errors are only logged, because training failed for another reason."""
        self._release()
        if isinstance(self._background, FolderSaves):
            # Not every rank may get here, so they cannot agree.
            error = self._background.wait()
            if error is not None:
                log.error("%s", error)
            return
        try:
            self._finish()
        except Exception as error:
            log.error("%s", error)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the callbacks' methods."""
        if stage == "fit":
            self._release()

    def _defer(self, checkpoint: Any) -> None:
        """Defer a callback's ``on_train_batch_end`` until the model's has returned."""
        own, save = vars(checkpoint).get("on_train_batch_end"), checkpoint.on_train_batch_end

        def on_train_batch_end(*args: Any, **kwargs: Any) -> None:
            self._deferred.append(lambda: save(*args, **kwargs))

        def undo() -> None:
            del checkpoint.on_train_batch_end
            if own is not None:
                checkpoint.on_train_batch_end = own

        checkpoint.on_train_batch_end = on_train_batch_end
        self._undo.append(undo)

    def _save_deferred(self, trainer: Trainer, pl_module: Any) -> None:
        """Run the deferred saves, and those by time that Lightning skips under manual optimization."""
        deferred, self._deferred = self._deferred, []
        save_by_time(self.namespace, trainer, pl_module)
        for save in deferred:
            save()

    def _release(self) -> None:
        for undo in self._undo:
            undo()
        self._undo, self._deferred = [], []

    def _finish(self) -> None:
        if self._background is not None:
            self._background.finish()

    def _install(self, trainer: Trainer, strategy: Any) -> Any:
        """Wrap what the strategy saves with, and return what saves in the background, if anything does."""
        if not bypasses_checkpoint_io(strategy):
            return self._wrap_checkpoint_io(strategy)
        if is_sharded(trainer):
            return self._wrap_folders(trainer, strategy)
        if trainer.is_global_zero:
            log.info("%s writes checkpoints itself; SafeSaves does not change it", type(strategy).__name__)
        return None

    def _wrap_folders(self, trainer: Trainer, strategy: Any) -> Any:
        saves = install_folder_saves(trainer, strategy, folder_uploads(self.namespace, strategy))
        number_folders(trainer, self.namespace)
        directories = {str(getattr(callback, "dirpath", None) or "") for callback in trainer.checkpoint_callbacks}
        if trainer.local_rank == 0:
            for directory in {*directories, self.places.directory if self.places is not None else ""}:
                if os.path.isdir(directory):
                    restore_interrupted(directory)
        return saves if self.async_save else None

    def _wrap_checkpoint_io(self, strategy: Any) -> Any:
        found = strategy.checkpoint_io
        wrapper = innermost_wrapper(self.namespace, found)
        if wrapper is not None:
            # The property can be set only once.
            if not isinstance(wrapper.checkpoint_io, AtomicCheckpointIOMixin):
                wrapper._checkpoint_io = atomic_checkpoint_io(self.namespace)(wrapper.checkpoint_io)
            if self.async_save:
                log.info("sagemaker.async_save has no effect: the strategy already uses %s", type(found).__name__)
        elif not isinstance(found, (AtomicCheckpointIOMixin, BackgroundCheckpointIOMixin)):
            saves = atomic_checkpoint_io(self.namespace)(found)
            strategy.checkpoint_io = background_checkpoint_io(self.namespace)(saves) if self.async_save else saves
        installed = strategy.checkpoint_io
        return installed if isinstance(installed, BackgroundCheckpointIOMixin) else None


@contextmanager
def _loadable_here(trainer: Trainer, path: Any) -> Iterator[Any]:
    """Yield the path from which this rank loads the checkpoint of global rank 0. Every rank must call it."""
    given = GivenCopy()
    copy = given.fetch(trainer, path)
    if copy is None:
        with broadcast_missing_file(trainer, path) as found:
            complete_for_load(strategy_of(trainer))
            yield found
        return
    try:
        check_given(trainer, path, copy)
        complete_for_load(strategy_of(trainer))
        yield copy
        strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        given.close()
