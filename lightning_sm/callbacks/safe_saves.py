"""``SafeSaves``: checkpoints are saved atomically, in the background where that is wanted, and load on every host."""

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from lightning_sm._checkpoint.async_io import BackgroundCheckpointIOMixin, background_checkpoint_io
from lightning_sm._checkpoint.atomic_io import AtomicCheckpointIOMixin, atomic_checkpoint_io
from lightning_sm._checkpoint.broadcast_files import on_every_host
from lightning_sm._checkpoint.periodic import heed_unwritten_names, remove_outlived, take_over_last
from lightning_sm._config.checkpoint_places import CheckpointPlaces
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import innermost_wrapper, save_by_time
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks
from lightning_sm._lightning.trainer_hooks import around_load
from lightning_sm._logging import log

__all__ = ["SafeSavesMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class SafeSavesMixin(_Base):
    """Put ``AtomicCheckpointIO`` around the strategy's ``CheckpointIO`` when ``fit`` begins.

    A strategy that writes checkpoints by itself, such as DeepSpeed's or a sharded one, is left alone.

    What checkpoint callbacks save after a training batch is saved when the model's own ``on_train_batch_end`` is over,
    too, which Lightning calls after theirs: a moving average that the model keeps is then that of the same step.

    ``trainer.test``, ``validate`` and ``predict`` load the checkpoint that global rank 0 names on every rank. Where
    hosts do not have the file of rank 0, it is sent to them, up to 64 GiB and 10 minutes.

    Args:
        async_save: Whether checkpoints are written in the background while training goes on. Everything has been
            written when training ends, and an error of the last save is raised then.
        places: Where checkpoints go and which callbacks save them. The model's ``configure_callbacks`` is looked after,
            too: what it brings takes the place of a trainer's callbacks of the same class.

    Raises:
        CheckpointError: A checkpoint could not be saved, or not be sent to a host that lacks it.
    """

    namespace: Namespace

    def __init__(self, async_save: bool = False, places: Optional[CheckpointPlaces] = None) -> None:
        super().__init__()
        self.async_save = async_save
        self.places = places
        self._background: Optional[Any] = None
        self._due: List[Callable[[], None]] = []
        self._undo: List[Callable[[], None]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Install what saves, or what lets a checkpoint of the main host load on every host."""
        if stage != "fit":
            around_load(trainer, partial(on_every_host, trainer))
            return
        if self.places is not None:
            # Lightning sets up callbacks one after another, and so those that are added here, too.
            trainer.callbacks.extend(self.places.complete(trainer.callbacks))
        self._release()
        self._undo = [after_batch_hooks(trainer, lambda: self._save_what_is_due(trainer, pl_module))]
        for checkpoint in trainer.checkpoint_callbacks:
            self._defer(checkpoint)
        strategy = strategy_of(trainer)
        if _saves_by_itself(strategy):
            if trainer.is_global_zero:
                log.info("%s writes checkpoints by itself, as it does elsewhere", type(strategy).__name__)
            return
        self._install(strategy)
        if self._background is not None:
            heed_unwritten_names(trainer, self._background)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Save in the background from now on, and make room."""
        if self._background is not None:
            self._background.start()
        if trainer.is_global_zero:
            remove_outlived(trainer)
        take_over_last(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Wait for what is being saved. What other callbacks save after this is saved at once."""
        self._finish()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Wait for what is being saved, where training was left before its end."""
        self._finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Wait for what is being saved. An error of that is not the reason why training failed."""
        self._release()
        try:
            self._finish()
        except Exception as error:
            log.error("%s", error)

    def teardown(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Leave the callbacks as they were."""
        if stage == "fit":
            self._release()

    def _defer(self, checkpoint: Any) -> None:
        """Let a callback save after a batch when the model's hook is over; until then only note that it would."""
        own, save = vars(checkpoint).get("on_train_batch_end"), checkpoint.on_train_batch_end

        def on_train_batch_end(*args: Any, **kwargs: Any) -> None:
            self._due.append(lambda: save(*args, **kwargs))

        def undo() -> None:
            del checkpoint.on_train_batch_end
            if own is not None:
                checkpoint.on_train_batch_end = own

        checkpoint.on_train_batch_end = on_train_batch_end
        self._undo.append(undo)

    def _save_what_is_due(self, trainer: Any, pl_module: Any) -> None:
        """Save, also by time where Lightning does not."""
        due, self._due = self._due, []
        save_by_time(self.namespace, trainer, pl_module)
        for save in due:
            save()

    def _release(self) -> None:
        for undo in self._undo:
            undo()
        self._undo, self._due = [], []

    def _finish(self) -> None:
        if self._background is not None:
            self._background.finish()

    def _install(self, strategy: Any) -> None:
        found = strategy.checkpoint_io
        wrapper = innermost_wrapper(self.namespace, found)
        if wrapper is not None:
            # Its setter accepts only the first one.
            if not isinstance(wrapper.checkpoint_io, AtomicCheckpointIOMixin):
                wrapper._checkpoint_io = atomic_checkpoint_io(self.namespace)(wrapper.checkpoint_io)
            if self.async_save:
                log.info("sagemaker.async_save changes nothing: %s is there already", type(found).__name__)
        elif not isinstance(found, (AtomicCheckpointIOMixin, BackgroundCheckpointIOMixin)):
            saves = atomic_checkpoint_io(self.namespace)(found)
            strategy.checkpoint_io = background_checkpoint_io(self.namespace)(saves) if self.async_save else saves
        if isinstance(strategy.checkpoint_io, BackgroundCheckpointIOMixin):
            self._background = strategy.checkpoint_io


def _saves_by_itself(strategy: Any) -> bool:
    """Whether Lightning's class of a strategy writes checkpoints past the ``CheckpointIO``."""
    lightnings = [cls for cls in type(strategy).__mro__ if cls.__module__.split(".")[0] in _LIGHTNINGS]
    saver = next(cls for cls in lightnings if "save_checkpoint" in vars(cls))
    in_one_file = getattr(strategy, "_state_dict_type", None) == "full"
    return saver.__name__ not in ("Strategy", "TrainingTypePlugin") and not in_one_file


_LIGHTNINGS = ("lightning", "pytorch_lightning")
