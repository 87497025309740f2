"""``LoopPosition``: the progress of Lightning's training loops as one value that a resumed run can be set to.

The progress that Lightning saves depends on the hook in which the checkpoint is written, and each version restores it
differently; only the newest restores all of it correctly. So the position is read as one value when a checkpoint is
written, and the loops' counters are set from it before the first epoch starts.
"""

import math
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "LoopPosition",
    "ResumePoint",
    "allow_missing_metrics",
    "batches_fetched",
    "complete_previous_batch",
    "early_iterator",
    "enable_plateau_schedulers",
    "read_position",
    "restart_iterator",
    "resume_loop",
    "seek",
    "was_saved_within_epoch",
]


class ResumePoint(str, Enum):
    """Where in an epoch a run continues. Checkpoints hold the values."""

    EPOCH_START = "before the epoch"
    # Validation, where it is due then, has not been run.
    AFTER_BATCH = "after a batch"
    BEFORE_BATCH = "before a batch"


@dataclass(frozen=True)
class LoopPosition:
    """The position of a training run in its loops.

    Args:
        epoch: The epoch, counted from 0.
        batch: The number of its batches whose gradients the optimizer has applied.
        resume_point: Where in the epoch the run continues.
        last_batch: Whether Lightning took the previous batch for the epoch's last one.
        logged_steps: The step of the loggers.
        schedulers_due: Whether ``ReduceLROnPlateau`` schedulers have yet to be stepped, for the previous epoch or,
            within an epoch, after the validation that has ended.
        loaded_in: The epoch in which the data loaders were created, if ``reload_dataloaders_every_n_epochs`` is set.
    """

    epoch: int
    batch: int
    resume_point: ResumePoint
    last_batch: bool = False
    logged_steps: int = 0
    schedulers_due: bool = False
    loaded_in: Optional[int] = None

    def to_dict(self) -> Dict[str, Any]:
        """The position as plain values, which a checkpoint that loads with ``weights_only=True`` can hold."""
        return {**asdict(self), "resume_point": self.resume_point.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LoopPosition":
        """Return the position that :meth:`to_dict` was called on."""
        return cls(**{**values, "resume_point": ResumePoint(values["resume_point"])})


def read_position(trainer: Any, validated: bool) -> LoopPosition:
    """Read the position of ``trainer``. Batches whose accumulated gradients have not been applied do not count.

    Args:
        trainer: The trainer, in ``fit``.
        validated: Whether the latest validation has ended.
    """
    loaded_in = getattr(_loader_owner(trainer), "_last_train_dl_reload_epoch", -math.inf)
    known = int(loaded_in) if trainer.reload_dataloaders_every_n_epochs and math.isfinite(loaded_in) else None
    return replace(_read_position(trainer, validated), loaded_in=known)


def _read_position(trainer: Trainer, validated: bool) -> LoopPosition:
    loop, epoch = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_progress.current
    batches, steps = loop.batch_progress, int(loop._batches_that_stepped)
    # An epoch has been "started" when its first batch is due; its last one lets it be "processed".
    if epoch.started == epoch.processed:
        due = epoch.completed < epoch.processed and loop._num_ready_batches_reached()
        return LoopPosition(epoch.processed, 0, ResumePoint.EPOCH_START, logged_steps=steps, schedulers_due=due)
    batch, begun = batches.current.processed, batches.current.ready > batches.current.processed
    # While a batch is being trained, it may be the last one, but not what was trained.
    last = bool(batches.is_last_batch) and not begun
    waiting = 0 if last or batch == trainer.num_training_batches else batch % trainer.accumulate_grad_batches
    if waiting or begun:
        return LoopPosition(epoch.processed, batch - waiting, ResumePoint.BEFORE_BATCH, logged_steps=steps)
    if batches.current.completed < batch or (trainer.validating and not validated):
        return LoopPosition(epoch.processed, batch, ResumePoint.AFTER_BATCH, last, steps)
    # Lightning counts this step, and steps the schedulers, only after the validation that follows the batch.
    due = bool(trainer.validating)
    return LoopPosition(epoch.processed, batch, ResumePoint.BEFORE_BATCH, last, steps + due, schedulers_due=due)


def _loader_owner(trainer: Trainer) -> Any:
    """The object that holds the epoch in which the data loaders were created."""
    return trainer.fit_loop if hasattr(trainer.fit_loop, "_last_train_dl_reload_epoch") else trainer


def was_saved_within_epoch(trainer: Trainer) -> bool:
    """Whether the checkpoint that Lightning has loaded was written within an epoch, as far as it tells.

    Lightning 1.5 saves only the global step, one too high at the end of an epoch.
    """
    batches = trainer.num_training_batches
    if hasattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped") or math.isinf(batches):
        return bool(0 < trainer.fit_loop.epoch_loop.batch_progress.current.processed < batches)
    return bool(trainer.global_step % max(math.ceil(batches / trainer.accumulate_grad_batches), 1) > 1)


def seek(trainer: Trainer, position: LoopPosition) -> None:
    """Set the loops' counters to a position, in ``on_train_start``.

    All counters are set to the completed count, which every version restores alike: the hooks at the start of the
    epoch run, and its batches are counted from there.
    """
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if position.resume_point == ResumePoint.EPOCH_START and position.schedulers_due and _has_metrics(trainer, "epoch"):
        _set_progress(fit.epoch_progress, position.epoch - 1)
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    _set_progress(fit.epoch_progress, position.epoch)
    _set_progress(loop.batch_progress, position.batch)
    loop.batch_progress.is_last_batch = position.last_batch
    loop._batches_that_stepped = position.logged_steps
    for inner in _loops(fit):
        inner._restarting = position.resume_point != ResumePoint.EPOCH_START
        if hasattr(inner, "reset_restart_stage"):
            inner.reset_restart_stage()
    _restore_reload_epoch(trainer, position)
    # Whether an earlier validation had ended does not matter for the one that is due.
    loop.val_loop._has_run = False
    if hasattr(loop.val_loop, "dataloader_progress"):
        loop.val_loop.dataloader_progress.reset_on_run()


def _restore_reload_epoch(trainer: Any, position: LoopPosition) -> None:
    """Let ``reload_dataloaders_every_n_epochs`` count from the first epoch, not from the resumed one."""
    if position.loaded_in is None or not trainer.reload_dataloaders_every_n_epochs:
        return
    _loader_owner(trainer)._last_train_dl_reload_epoch = position.loaded_in
    if hasattr(trainer.fit_loop, "_is_fresh_start_epoch"):
        due = position.epoch - position.loaded_in >= trainer.reload_dataloaders_every_n_epochs
        trainer.fit_loop._is_fresh_start_epoch = not due


def _set_progress(progress: Any, count: int) -> None:
    before = progress.total.processed - progress.current.processed
    for tracker, value in ((progress.current, count), (progress.total, before + count)):
        tracker.ready = tracker.started = tracker.processed = tracker.completed = value


def _loops(loop: Any) -> Iterator[Any]:
    yield loop
    for inner in list(vars(loop).values()):
        if hasattr(inner, "_restarting"):
            yield from _loops(inner)


def early_iterator(trainer: Trainer) -> Any:
    """Return the iterator over the training data if Lightning creates it before the epoch starts, else ``None``."""
    iterator = getattr(trainer.fit_loop._data_fetcher, "iterator", None)
    # A CombinedLoader is its own iterator, and holds a new one for each epoch.
    return getattr(iterator, "_iterator", iterator)


def restart_iterator(trainer: Trainer, data_fetcher: Any) -> None:
    """Create a new iterator over the training data."""
    iter(data_fetcher)
    data_fetcher.fetched += trainer.fit_loop.epoch_loop.batch_progress.current.ready


def resume_loop(trainer: Trainer, position: LoopPosition) -> bool:
    """Set the epoch's loop to continue at a position.

    Returns:
        Whether the next batch is due. Otherwise what follows a batch is, such as a validation.

    Raises:
        StopIteration: The epoch's last batch and what follows it have been completed.
    """
    loop, resume_point = trainer.fit_loop.epoch_loop, position.resume_point
    loop.restarting = False
    # From 2.5 on, Lightning has incremented it since.
    loop._batches_that_stepped = position.logged_steps
    if resume_point == ResumePoint.AFTER_BATCH:
        return False
    if resume_point != ResumePoint.EPOCH_START and loop._num_ready_batches_reached():
        raise StopIteration
    return True


def complete_previous_batch(trainer: Trainer, position: LoopPosition) -> None:
    """Do what follows a batch and is skipped by a loop that resumes after it, before the loop runs."""
    loop = trainer.fit_loop.epoch_loop
    # Lightning 1.x leaves an epoch whose last batch has been trained, where no validation is due.
    left = position.resume_point == ResumePoint.AFTER_BATCH and loop.done
    if left or (position.resume_point == ResumePoint.BEFORE_BATCH and position.schedulers_due):
        strict_again = allow_missing_metrics(trainer)
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
        strict_again()
    if left:
        loop._batches_that_stepped += not loop._should_accumulate()


def allow_missing_metrics(trainer: Any) -> Callable[[], None]:
    """Let schedulers that are stepped after a batch skip a metric that the checkpoint does not have.

    The interrupted validation may log it later; with ``strict`` schedulers Lightning would raise before.

    Returns:
        A function that makes them strict again.
    """
    missing = [
        config
        for config in trainer.lr_scheduler_configs
        if config.reduce_on_plateau and config.strict and config.monitor not in trainer.callback_metrics
    ]
    for config in missing:
        config.strict = False

    def undo() -> None:
        for config in missing:
            config.strict = True

    return undo


def enable_plateau_schedulers(trainer: Trainer) -> None:
    """Let ``ReduceLROnPlateau`` schedulers be stepped at the end of a resumed epoch, which Lightning would skip."""
    if trainer.fit_loop.restarting and _has_metrics(trainer, "epoch"):
        trainer.fit_loop._restarting = False


def _has_metrics(trainer: Any, interval: str) -> bool:
    """Whether each ``ReduceLROnPlateau`` scheduler that is stepped at this interval has its metric."""
    followers = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    return all(config.monitor in trainer.callback_metrics for config in followers if config.interval == interval)


def batches_fetched(trainer: Any, batch: int, length: int) -> int:
    """The number of batches fetched from a loader's current iterator when ``batch`` of an epoch have been trained.

    A ``CombinedLoader`` may restart a short loader until the longest is exhausted.
    """
    combined = getattr(trainer.fit_loop, "_combined_loader", None) or trainer.train_dataloader
    mode = getattr(combined, "_mode", None) or getattr(combined, "mode", None)
    return (batch - 1) % length + 1 if batch > length and mode == "max_size_cycle" else min(batch, length)
