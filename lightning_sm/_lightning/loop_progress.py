"""Where Lightning's loops are in a training run, and how they are put there again.

Lightning's saved counters depend on the hook in which a checkpoint is written, and each version takes them up in
another way; none but the newest gets all of them right. So their place is read as one value when a checkpoint is
written, and the counters are set from it before the first epoch begins.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional

__all__ = [
    "Moment",
    "Place",
    "batches_taken",
    "be_lenient",
    "go_on",
    "heed_metrics",
    "iterator_of",
    "left_within_epoch",
    "make_up",
    "place_of",
    "put_at",
    "renew",
]


class Moment:
    """When in an epoch a run was interrupted, in words, because checkpoints hold them."""

    EPOCH_START = "before the epoch"
    # Validation, where it is due then, has not been run.
    AFTER_BATCH = "after a batch"
    BEFORE_BATCH = "before a batch"


@dataclass(frozen=True)
class Place:
    """Where a training run is.

    Args:
        epoch: The epoch, counted from 0.
        batch: How many of its batches have been trained, with their gradients in the weights.
        moment: One of :class:`Moment`.
        last_batch: Whether Lightning took the batch before for the epoch's last one.
        logged_steps: The step that loggers are at.
        schedulers_due: Whether schedulers that follow a metric have yet to be stepped, for the epoch before or, within
            an epoch, after the validation that is over.
        loaded_in: The epoch in which the data loaders were made, if they may be made anew later.
    """

    epoch: int
    batch: int
    moment: str
    last_batch: bool = False
    logged_steps: int = 0
    schedulers_due: bool = False
    loaded_in: Optional[int] = None


def place_of(trainer: Any, validated: bool) -> Place:
    """Read where ``trainer`` is. Batches whose gradients still wait for an optimizer step count as not trained.

    Args:
        trainer: The trainer, in ``fit``.
        validated: Whether the newest validation is over.
    """
    loaded_in = getattr(_holder(trainer), "_last_train_dl_reload_epoch", -math.inf)
    known = int(loaded_in) if trainer.reload_dataloaders_every_n_epochs and math.isfinite(loaded_in) else None
    return replace(_place_of(trainer, validated), loaded_in=known)


def _place_of(trainer: Any, validated: bool) -> Place:
    loop, epoch = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_progress.current
    batches, steps = loop.batch_progress, int(loop._batches_that_stepped)
    # An epoch has been "started" when its first batch is due; its last one lets it be "processed".
    if epoch.started == epoch.processed:
        due = epoch.completed < epoch.processed and loop._num_ready_batches_reached()
        return Place(epoch.processed, 0, Moment.EPOCH_START, logged_steps=steps, schedulers_due=due)
    batch, begun = batches.current.processed, batches.current.ready > batches.current.processed
    # While a batch is being trained, it may be the last one, but not what was trained.
    last = bool(batches.is_last_batch) and not begun
    waiting = 0 if last or batch == trainer.num_training_batches else batch % trainer.accumulate_grad_batches
    if waiting or begun:
        return Place(epoch.processed, batch - waiting, Moment.BEFORE_BATCH, logged_steps=steps)
    if batches.current.completed < batch or (trainer.validating and not validated):
        return Place(epoch.processed, batch, Moment.AFTER_BATCH, last, steps)
    # Lightning counts this step, and steps the schedulers, only after the validation that follows the batch.
    due = bool(trainer.validating)
    return Place(epoch.processed, batch, Moment.BEFORE_BATCH, last, steps + due, schedulers_due=due)


def _holder(trainer: Any) -> Any:
    """What knows in which epoch the data loaders were made."""
    return trainer.fit_loop if hasattr(trainer.fit_loop, "_last_train_dl_reload_epoch") else trainer


def left_within_epoch(trainer: Any) -> bool:
    """Whether the checkpoint that Lightning has loaded was written within an epoch, as far as it tells.

    Lightning 1.5 saves steps only, one too many at the end of an epoch.
    """
    batches = trainer.num_training_batches
    if hasattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped") or math.isinf(batches):
        return bool(0 < trainer.fit_loop.epoch_loop.batch_progress.current.processed < batches)
    return bool(trainer.global_step % max(math.ceil(batches / trainer.accumulate_grad_batches), 1) > 1)


def put_at(trainer: Any, place: Place) -> None:
    """Set the loops' counters, in ``on_train_start``.

    Everything is set to what has been completed, which every version takes up alike: the hooks at the start of the
    epoch run, and its batches are counted from there.
    """
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if place.moment == Moment.EPOCH_START and place.schedulers_due and _has_metrics(trainer, "epoch"):
        _set_progress(fit.epoch_progress, place.epoch - 1)
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    _set_progress(fit.epoch_progress, place.epoch)
    _set_progress(loop.batch_progress, place.batch)
    loop.batch_progress.is_last_batch = place.last_batch
    loop._batches_that_stepped = place.logged_steps
    for inner in _loops(fit):
        inner._restarting = place.moment != Moment.EPOCH_START
        if hasattr(inner, "reset_restart_stage"):
            inner.reset_restart_stage()
    _reload_as_before(trainer, place)
    # Whether an earlier validation was over says nothing about the one that is due.
    loop.val_loop._has_run = False
    if hasattr(loop.val_loop, "dataloader_progress"):
        loop.val_loop.dataloader_progress.reset_on_run()


def _reload_as_before(trainer: Any, place: Place) -> None:
    """Let ``reload_dataloaders_every_n_epochs`` count from the first epoch, not from that in which a run goes on."""
    if place.loaded_in is None or not trainer.reload_dataloaders_every_n_epochs:
        return
    _holder(trainer)._last_train_dl_reload_epoch = place.loaded_in
    if hasattr(trainer.fit_loop, "_is_fresh_start_epoch"):
        due = place.epoch - place.loaded_in >= trainer.reload_dataloaders_every_n_epochs
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


def iterator_of(trainer: Any) -> Any:
    """Return the iterator over the training data, where Lightning has made it before the epoch starts."""
    iterator = getattr(trainer.fit_loop._data_fetcher, "iterator", None)
    # What combines loaders is its own iterator, and holds a new one each time.
    return getattr(iterator, "_iterator", iterator)


def renew(trainer: Any, data_fetcher: Any) -> None:
    """Make a new iterator over the training data."""
    iter(data_fetcher)
    data_fetcher.fetched += trainer.fit_loop.epoch_loop.batch_progress.current.ready


def go_on(trainer: Any, place: Place) -> bool:
    """Let the epoch's loop run as if it had never stopped.

    Returns:
        Whether the next batch is due. Otherwise it is what follows a batch, such as a validation.

    Raises:
        StopIteration: The epoch's last batch has been trained, and what follows it is done.
    """
    loop, moment = trainer.fit_loop.epoch_loop, place.moment
    loop.restarting = False
    # Lightning has counted one more since, from 2.5 on.
    loop._batches_that_stepped = place.logged_steps
    if moment == Moment.AFTER_BATCH:
        return False
    if moment != Moment.EPOCH_START and loop._num_ready_batches_reached():
        raise StopIteration
    return True


def make_up(trainer: Any, place: Place) -> None:
    """Do what followed a batch and will not be done by the loop, when it is about to run."""
    loop = trainer.fit_loop.epoch_loop
    # Lightning 1.x leaves an epoch whose last batch has been trained, where no validation is due.
    left = place.moment == Moment.AFTER_BATCH and loop.done
    if left or (place.moment == Moment.BEFORE_BATCH and place.schedulers_due):
        strict_again = be_lenient(trainer)
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
        strict_again()
    if left:
        loop._batches_that_stepped += not loop._should_accumulate()


def be_lenient(trainer: Any) -> Callable[[], None]:
    """Let schedulers that are stepped after a batch do without a metric that a checkpoint cannot hold yet.

    The validation that was interrupted may bring it; where nothing does, Lightning would end the training.

    Returns:
        A function that makes them as strict as they were.
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


def heed_metrics(trainer: Any) -> None:
    """Let schedulers that follow a metric see the end of a resumed epoch, which Lightning would leave out."""
    if trainer.fit_loop.restarting and _has_metrics(trainer, "epoch"):
        trainer.fit_loop._restarting = False


def _has_metrics(trainer: Any, interval: str) -> bool:
    """Whether there is a value for each scheduler that follows a metric and is stepped at this interval."""
    followers = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    return all(config.monitor in trainer.callback_metrics for config in followers if config.interval == interval)


def batches_taken(trainer: Any, batch: int, length: int) -> int:
    """How many batches a loader has given in its newest round when ``batch`` of an epoch have been trained.

    Where Lightning combines loaders, a short one may begin anew until the longest is through.
    """
    combined = getattr(trainer.fit_loop, "_combined_loader", None) or trainer.train_dataloader
    mode = getattr(combined, "_mode", None) or getattr(combined, "mode", None)
    return (batch - 1) % length + 1 if batch > length and mode == "max_size_cycle" else min(batch, length)
