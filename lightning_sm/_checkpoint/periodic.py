"""Saving by time without asking all ranks at every step.

The ``ModelCheckpoint`` callbacks that let an interrupted job go on.

What is done with the files of the callbacks from ``_periodic`` when a run goes on from one of them.

Names of checkpoints that are taken although no file bears them yet.
"""

import os
import re
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Iterator, List, Sequence

from lightning_sm._checkpoint.candidates import will_be_found
from lightning_sm._duration import read_duration
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, broadcast
from lightning_sm._lightning.compat import keep_newest, last_needs_best, save_last_as_file, write_over_own
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = [
    "WhenDue",
    "BY_EPOCH",
    "BY_TIME",
    "periodic_checkpoints",
    "save_interval",
    "remove_outlived",
    "take_over_last",
    "heed_unwritten_names",
]


class WhenDue:
    """The ``on_train_batch_end`` of a ``ModelCheckpoint`` that saves by time, called only when a save may be due.

    Lightning's own asks global rank 0 after each batch whether it is time, which is a broadcast of an object that lets
    a GPU's queue run empty (``callbacks/model_checkpoint.py``, ``on_train_batch_end``). Ranks look together here, at
    most four times a second, and Lightning's own is called when the time of global rank 0 is over.

    Args:
        checkpoint: A ``ModelCheckpoint`` with a ``train_time_interval`` and no other reason to save after a batch.
    """

    def __init__(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint
        self._look = ThrottledAllReduce()

    def __call__(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Save if it is time. Every rank must call it after each batch."""
        (is_due,) = self._look.any_true(trainer, [trainer.is_global_zero and self._is_over()])
        if is_due:
            type(self.checkpoint).on_train_batch_end(self.checkpoint, trainer, pl_module, *args, **kwargs)

    def _is_over(self) -> bool:
        last = self.checkpoint._last_time_checked
        interval = self.checkpoint._train_time_interval.total_seconds()
        return last is None or time.monotonic() - last >= interval


# Names of the files, the second one where the project has a last.ckpt of its own.
BY_EPOCH = ("last", "resume-last")
BY_TIME = "resume-{epoch}-{step}"


def save_interval(text: str) -> float:
    """Return the seconds that ``sagemaker.save_every`` means.

    Raises:
        CheckpointError: It is no duration.
    """
    try:
        return read_duration(text)
    except ValueError as error:
        raise CheckpointError(f"sagemaker.save_every: {error}.", hint="Write 90s, 10m or 1.5h.") from error


def periodic_checkpoints(
    present: Sequence[Any], directory: str, save_every_seconds: float, namespace: Namespace
) -> List[Any]:
    """Return Lightning's own ``ModelCheckpoint`` callbacks to add to those that are there.

    One writes ``last.ckpt`` at the end of each epoch, unless one that is there keeps the newest of each epoch. One
    writes ``resume-epoch=…-step=….ckpt`` by time and keeps the newest two, unless one that is there keeps the newest by
    time or steps. They are two because no version combines both in one. The first stands in for the one that Lightning
    adds by itself, so that ``ckpt_path="best"`` finds what it would find elsewhere.

    Those that are there are left as they are, but for a ``last.ckpt`` that would be a symbolic link: SageMaker does not
    say that it uploads links.

    Args:
        present: The trainer's callbacks.
        directory: The job's checkpoint directory. What is saved elsewhere is lost with the host.
        save_every_seconds: Seconds between two checkpoints.
        namespace: Lightning's namespace.
    """
    checkpoints = [callback for callback in present if isinstance(callback, _checkpoint_class(namespace))]
    for callback in checkpoints:
        _write_last_as_file(callback, namespace)
    regular = [callback for callback in checkpoints if _keeps_newest(callback, directory, namespace)]
    added: List[Any] = []
    if not any(_saves_each_epoch(callback) for callback in regular):
        taken = any(callback.save_last or callback.filename == BY_EPOCH[0] for callback in checkpoints)
        added.append(_first_new(checkpoints, _by_epoch(directory, BY_EPOCH[taken], namespace)))
    if not any(_saves_within_epochs(callback) for callback in regular):
        added.append(_first_new(checkpoints, _by_time(directory, save_every_seconds, namespace)))
    return added


def _checkpoint_class(namespace: Namespace) -> Any:
    return namespace.module("callbacks").ModelCheckpoint


def _first_new(checkpoints: Sequence[Any], made: Iterator[Any]) -> Any:
    """The first whose saved state bears another name than theirs; Lightning refuses two of one name."""
    names = {callback.state_key for callback in checkpoints}
    return next(callback for callback in made if callback.state_key not in names)


def _by_epoch(directory: str, name: str, namespace: Namespace) -> Iterator[Any]:
    # The mode means nothing without a monitor, but is a part of the name of the saved state.
    for mode in ("max", "min"):
        # Not by save_last, which Lightning 2.6 heeds only beside another save.
        callback = _checkpoint_class(namespace)(
            directory, name, mode=mode, every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=1
        )
        write_over_own(namespace, callback)
        yield callback


def _by_time(directory: str, seconds: float, namespace: Namespace) -> Iterator[Any]:
    for microseconds in range(1000):
        interval = timedelta(seconds=seconds, microseconds=microseconds)
        callback = _checkpoint_class(namespace)(
            directory, BY_TIME, train_time_interval=interval, **keep_newest(namespace)
        )
        callback.on_train_batch_end = WhenDue(callback)
        yield callback


def _write_last_as_file(callback: Any, namespace: Namespace) -> None:
    if callback.save_last == "link":
        callback.save_last = True
        log.info("ModelCheckpoint(save_last='link') writes a file instead, for SageMaker may not upload links")
    if callback.save_last:
        save_last_as_file(namespace, callback)


def _keeps_newest(callback: Any, directory: str, namespace: Namespace) -> bool:
    """Whether the newest that a callback saves is always there to go on from."""
    if callback.save_weights_only or callback.dirpath is None:
        return False
    names: List[str] = []
    by_age = callback.monitor is None or (callback.monitor == "step" and callback.mode == "max")
    if by_age and callback.save_top_k != 0:
        names.append(callback.filename or "{epoch}-{step}")
    if callback.save_last and not last_needs_best(namespace):
        names.append(callback.CHECKPOINT_NAME_LAST)
    paths = (os.path.join(callback.dirpath, f"{name}{callback.FILE_EXTENSION}") for name in names)
    return any(will_be_found(directory, path) for path in paths)


def _saves_each_epoch(callback: Any) -> bool:
    return bool(callback._every_n_epochs == 1 and callback._save_on_train_epoch_end is not False)


def _saves_within_epochs(callback: Any) -> bool:
    return callback._train_time_interval is not None or bool(callback._every_n_train_steps)


_STEP = re.compile(r"resume-epoch=\d+-step=(\d+)(-v\d+)?\.ckpt")


def remove_outlived(trainer: Any) -> None:
    """Remove the checkpoints by time that are older than those which the run that goes on would keep.

    Since 2.1 Lightning leaves the one that a run went on from where it is, so each interruption would leave one more.
    """
    for callback in trainer.checkpoint_callbacks:
        kept = {os.path.basename(path) for path in getattr(callback, "best_k_models", {})}
        steps = [int(match.group(1)) for match in map(_STEP.fullmatch, kept) if match is not None]
        if getattr(callback, "filename", None) != BY_TIME or not steps or not os.path.isdir(callback.dirpath):
            continue
        resumed = os.path.basename(str(getattr(trainer, "ckpt_path", None)))
        for name in set(os.listdir(callback.dirpath)) - kept - {resumed}:
            match = _STEP.fullmatch(name)
            if match is not None and int(match.group(1)) < min(steps):
                with suppress(OSError):
                    os.unlink(os.path.join(callback.dirpath, name))


def take_over_last(trainer: Any) -> None:
    """Let a run that goes on write over a ``last.ckpt`` that its checkpoint does not know. Every rank must call it.

    It went on from a checkpoint of the first epoch, and Lightning would write ``last-v1.ckpt`` beside it. A run that
    starts afresh does so still.
    """
    if trainer.global_step == 0:
        return
    for callback in trainer.checkpoint_callbacks:
        if (
            getattr(callback, "filename", None) in BY_EPOCH
            and callback.monitor is None
            and not callback.best_model_path
        ):
            path = os.path.join(callback.dirpath, f"{callback.filename}{callback.FILE_EXTENSION}")
            if broadcast(trainer, os.path.isfile(path)):
                callback.best_model_path = path


class _Exists:
    """The ``file_exists`` of a ``ModelCheckpoint``, which by itself sees only what has been written."""

    def __init__(self, exists: Any, saves: Any) -> None:
        self.exists, self.saves = exists, saves

    def __call__(self, path: Any, trainer: Any) -> bool:
        """Tell on all ranks whether ``path`` exists or is going to."""
        return bool(self.exists(path, trainer) or broadcast(trainer, self.saves.is_being_saved(path)))


def heed_unwritten_names(trainer: Any, saves: Any) -> None:
    """Let no two ``ModelCheckpoint`` take one name while a checkpoint of that name is written in the background.

    The second would write over the first, and remove it for both when its time is over.

    Args:
        trainer: Its callbacks get the job's directory, where they may meet.
        saves: A ``BackgroundCheckpointIO``.
    """
    for callback in trainer.checkpoint_callbacks:
        exists = getattr(callback, "file_exists", None)
        if isinstance(exists, _Exists):
            exists.saves = saves
        elif exists is not None:
            callback.file_exists = _Exists(exists, saves)
