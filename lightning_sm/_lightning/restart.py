"""The moments of a fit whose state Lightning itself can restore, and what it leaves to do when it restores one.

From Lightning 2.5 on the loops tell by their saved progress (``RestartStage``) whether a checkpoint was saved at the
start of an epoch, after a batch or in a validation. Older versions restart at the beginning of an epoch here.
"""

import itertools
import math
import warnings
from enum import Enum
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from lightning_sm._lightning.levels import SupportLevel, support_level
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod, listen
from lightning_sm._lightning.stand_in import iterated_by, original
from lightning_sm._lightning.trainer import Trainer

__all__ = [
    "SavePoint",
    "begin_loaders",
    "continue_epoch",
    "enable_plateau_schedulers",
    "end_restart",
    "gathers_gradients",
    "iterate_through",
    "iterated_loaders",
    "loaders_of",
    "mark_point",
    "point_after_batch",
    "reload_epoch",
    "repeats_loaders",
    "resumes_within_epochs",
    "skip_training",
    "start_epoch",
]


class SavePoint(str, Enum):
    """A moment at which a fit can be saved. Checkpoints hold the values."""

    #: At the start of an epoch, before its first hook of any other callback.
    EPOCH = "epoch"
    #: After a batch that ended with an optimizer step, with no validation due.
    BATCH = "batch"
    #: The same, with a validation due, which a restart runs first.
    VALIDATION = "validation"
    #: After the last step, before ``on_train_end``.
    END = "end"


def resumes_within_epochs(namespace: Namespace) -> bool:
    """Whether this Lightning resumes at any :class:`SavePoint`; older ones at the start of an epoch."""
    return support_level(namespace) is SupportLevel.FULL


def gathers_gradients(trainer: Any) -> bool:
    """Whether the gradients of the batch that has ended wait for those of the next one, after which a step follows."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def point_after_batch(trainer: Any) -> Optional[SavePoint]:
    """Return which moment the end of a batch is; ``None`` if gradients wait for a step or the epoch's end follows."""
    loop = trainer.fit_loop.epoch_loop
    # A fit that is about to end is saved then. Its last validation would not be due again in a restart.
    ends = trainer.should_stop or (0 <= loop.max_steps <= loop.global_step)
    # In an epoch that only updates the statistics of batch norm, StochasticWeightAveraging has changed the loop.
    if gathers_gradients(trainer) or ends or trainer.fit_loop._skip_backward:
        return None
    if loop._should_check_val_fx(trainer.fit_loop._data_fetcher):
        # One by the clock would not be due again, either.
        by_clock = getattr(trainer, "_val_check_time_interval", None) is not None
        return SavePoint.BATCH if by_clock else SavePoint.VALIDATION
    return None if loop._num_ready_batches_reached() else SavePoint.BATCH


def mark_point(checkpoint: Dict[str, Any], point: SavePoint) -> None:
    """Let the loops' progress in a checkpoint say at which point it was saved.

    Lightning compares total counts, which an epoch that was left with ``-1`` has put apart. A validation that is due is
    marked as begun: Lightning runs it from its first batch then (``val_loop.restarted_mid_evaluation``).

    Args:
        checkpoint: The contents of a checkpoint, before they are written.
        point: The point.
    """
    if point is SavePoint.END or "loops" not in checkpoint:  # Lightning 1.5 saves none
        return
    loops = checkpoint["loops"]["fit_loop"]
    batches = loops["epoch_loop.batch_progress"]
    if point is SavePoint.EPOCH:
        # Until the first batch the counters are those of the epoch before, which a given ckpt_path would end again.
        batches["current"] = dict.fromkeys(batches["current"], 0)
        if "is_last_batch" in batches:
            batches["is_last_batch"] = False
        return
    ready, is_over = batches["total"]["ready"], point is SavePoint.VALIDATION
    batches["total"].update(started=ready, processed=ready, completed=ready - (not is_over))
    batches["current"]["completed"] = batches["current"]["processed"] - (not is_over)
    if is_over:
        validation = loops["epoch_loop.val_loop.batch_progress"]
        done = validation["total"]["completed"]
        validation["total"].update(ready=done + 1, started=done + 1, processed=done, completed=done)
        validation["current"].update(ready=1, started=1, processed=0, completed=0)
        validation["is_last_batch"] = False


def continue_epoch(trainer: Any, point: SavePoint, loaded_in: Optional[int]) -> None:
    """Complete what Lightning restores of an epoch that was interrupted, after ``on_train_start``.

    It begins without Lightning's warning that its data loaders are not resumable: they are brought to their position,
    and what of them is not restored has lines of its own.

    Args:
        trainer: The trainer.
        point: Where it was saved.
        loaded_in: What :func:`reload_epoch` returned.
    """
    loop = trainer.fit_loop.epoch_loop

    def reset(original: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
            original()

    ReplacedMethod(loop, "reset", reset, once=True)
    if loaded_in is not None:
        trainer.fit_loop._last_train_dl_reload_epoch = loaded_in
    total = loop.val_loop.batch_progress.total
    total.ready = total.started = total.processed = total.completed
    # A search of the same trainer has validated. The loop would take the validation that is due for done.
    loop.val_loop._has_run = False
    if point is SavePoint.BATCH:
        # Lightning does it after the moment of the save.
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)


class _Begun:
    """Lets a fetcher take over a ``CombinedLoader`` whose iteration has begun."""

    def __init__(self, combined: Any) -> None:
        self._combined = combined

    def __iter__(self) -> Any:
        return self._combined

    def __len__(self) -> int:
        return len(self._combined)


def begin_loaders(trainer: Any, states: List[Any], repeated: Sequence[Optional[bool]], batches: int) -> None:
    """Begin the loaders anew, and read and drop batches of those that do not continue by themselves.

    Lightning has fetched a batch if their common length is not known, and forgets which of them have ended once.

    Args:
        trainer: The trainer, before its first step.
        states: The states of loaders that save their own position; empty for none.
        repeated: Of each loader that continues by itself whether it had begun again; ``None`` for the others.
        batches: How many batches of the epoch have been trained.
    """
    fetcher = trainer.fit_loop._data_fetcher
    combined = fetcher.combined_loader
    combined._load_state_dicts(states)
    iterators = iter(combined)._iterator
    ended = [bool(each) for each in repeated]
    begins_again = hasattr(iterators, "_consumed")
    if begins_again:
        iterators._consumed = ended
    read_again = [index for index, each in enumerate(repeated) if each is None]
    for _, index in itertools.product(range(batches), read_again):
        try:
            next(iterators.iterators[index])
        except StopIteration:
            ended[index] = True
            if begins_again and not all(ended):
                iterators.iterators[index] = iter(iterators.iterables[index])
                next(iterators.iterators[index])
    iterators._idx = batches  # which a step that takes dataloader_iter gets with its batch
    fetcher.setup(_Begun(combined))
    iter(fetcher)
    fetcher.setup(combined)


def loaders_of(trainer: Trainer) -> List[Any]:
    """The training data loaders, once they exist; none before Lightning 2.0."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    return [] if combined is None else [original(loader) for loader in combined.flattened]


def iterated_loaders(trainer: Trainer) -> List[Any]:
    """What is iterated in the place of each of :func:`loaders_of`; ``None`` where nothing is."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    return [] if combined is None else [iterated_by(loader) for loader in combined.flattened]


def iterate_through(trainer: Any, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Let Lightning iterate something in the place of each loader of the training, whenever it makes its loaders.

    ``trainer.train_dataloader`` stays what the program has made.

    Args:
        trainer: The trainer, before it makes its loaders.
        wrap: Takes what Lightning would iterate, and returns what it iterates instead.

    Returns:
        A function that undoes it.
    """
    loop = trainer.fit_loop

    def wrap_all() -> None:
        combined = loop._combined_loader
        combined._flattened = [wrap(loader) for loader in combined.flattened]

    # What is called last before the loaders are iterated (``FitLoop.setup_data``).
    stop = listen(loop, "_load_combined_loader_states", wrap_all)

    def undo() -> None:
        stop()
        if loop._combined_loader is not None:
            loop._combined_loader._flattened = loaders_of(trainer)

    return undo


def repeats_loaders(trainer: Any) -> bool:
    """Whether the training begins a shorter loader again until the longest one has ended."""
    combined: Any = getattr(trainer.fit_loop, "_combined_loader", None)
    return getattr(combined, "_mode", None) == "max_size_cycle" and len(combined.flattened) > 1


def reload_epoch(trainer: Any) -> Optional[int]:
    """The epoch in which the loaders were made, where ``reload_dataloaders_every_n_epochs`` counts from it."""
    epoch = getattr(trainer.fit_loop, "_last_train_dl_reload_epoch", -math.inf)
    return int(epoch) if trainer.reload_dataloaders_every_n_epochs and math.isfinite(epoch) else None


def start_epoch(trainer: Trainer, epoch: int, logged_steps: int, loaded_in: Optional[int]) -> None:
    """Set the loops' counters to the start of an epoch, in ``on_train_start`` of a fit that was restored.

    Args:
        trainer: The trainer.
        epoch: The epoch, from 0.
        logged_steps: The step of the loggers.
        loaded_in: What :func:`reload_epoch` returned.
    """
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    _set_progress(fit.epoch_progress, epoch)
    _set_progress(loop.batch_progress, 0)
    loop.batch_progress.is_last_batch = False
    if hasattr(loop, "_batches_that_stepped"):
        loop._batches_that_stepped = logged_steps
    end_restart(trainer)
    if loaded_in is not None and hasattr(fit, "_last_train_dl_reload_epoch"):
        fit._last_train_dl_reload_epoch = loaded_in


def end_restart(trainer: Trainer) -> None:
    """Let the loops go on as in a fit that was not restored."""
    for loop in _loops(trainer.fit_loop):
        loop._restarting = False
        for name in ("_loaded_from_state_dict", "_resuming_from_checkpoint"):
            if hasattr(loop, name):
                setattr(loop, name, False)
        if hasattr(loop, "reset_restart_stage"):
            loop.reset_restart_stage()


def _set_progress(progress: Any, count: int) -> None:
    before = progress.total.processed - progress.current.processed
    for tracker, value in ((progress.current, count), (progress.total, before + count)):
        for name in ("ready", "started", "processed", "completed"):
            if hasattr(tracker, name):
                setattr(tracker, name, value)


def _loops(loop: Any) -> Iterator[Any]:
    yield loop
    for inner in list(vars(loop).values()):
        if hasattr(inner, "_restarting"):
            yield from _loops(inner)


def enable_plateau_schedulers(trainer: Any) -> None:
    """Let ``ReduceLROnPlateau`` schedulers be stepped at the end of a resumed epoch, which Lightning would skip.

    Their metrics are restored with the fit (``FitLoop.on_advance_end``).
    """
    trainer.fit_loop._restarting = False


def skip_training(trainer: Trainer) -> Callable[[], None]:
    """Let the fit loop end before its first step, and return what restores its minima and ``should_stop``.

    Args:
        trainer: The trainer, after everything has been restored.
    """
    loop = trainer.fit_loop
    minima = loop.min_epochs, loop.epoch_loop.min_steps

    def undo() -> None:
        loop.min_epochs, loop.epoch_loop.min_steps = minima

    loop.min_epochs = loop.epoch_loop.min_steps = None
    trainer.should_stop = True
    return undo
