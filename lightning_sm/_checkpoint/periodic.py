"""The ``ModelCheckpoint`` callbacks that save a job regularly, and their files when a run resumes."""

import math
import os
import re
import time
from datetime import timedelta
from typing import Any, Iterator, List, Sequence

from lightning_sm._checkpoint.candidates import is_discoverable
from lightning_sm._checkpoint.storage import is_remote, storage_error
from lightning_sm._checkpoint.transfers import has_file, names_in, remove_names
from lightning_sm._duration import read_duration
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, broadcast
from lightning_sm._lightning.compat import keep_newest, last_needs_best, overwrite_own_file, save_last_as_file
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = [
    "ThrottledTimeTrigger",
    "explain_remote_errors",
    "number_folders",
    "keep_those_of_others",
    "overwrite_existing_last",
    "periodic_checkpoints",
    "remove_superseded",
    "reserve_pending_names",
    "save_interval",
]


class ThrottledTimeTrigger:
    """Calls ``on_train_batch_end`` of a ``ModelCheckpoint`` that saves by time only when a save is due.

    Lightning's own hook broadcasts the decision of global rank 0 as an object after each batch, which drains the GPU's
    queue (``callbacks/model_checkpoint.py``, ``on_train_batch_end``). Here ranks exchange it at most four times a
    second, and Lightning's hook runs when the interval of global rank 0 has elapsed.

    Args:
        checkpoint: A ``ModelCheckpoint`` with a ``train_time_interval`` and no other trigger after a batch.
    """

    def __init__(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint
        self._look = ThrottledAllReduce()

    def __call__(self, trainer: Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Save if the interval has elapsed. Every rank must call it after each batch."""
        (is_due,) = self._look.any_true(trainer, [trainer.is_global_zero and self._has_elapsed()])
        if is_due:
            type(self.checkpoint).on_train_batch_end(self.checkpoint, trainer, pl_module, *args, **kwargs)

    def _has_elapsed(self) -> bool:
        last = self.checkpoint._last_time_checked
        interval = self.checkpoint._train_time_interval.total_seconds()
        return last is None or time.monotonic() - last >= interval


# The second one is used if the project's callbacks write a last.ckpt.
_EPOCH_FILENAMES = ("last", "resume-last")
_NUMBERED = "-{epoch}-{step}"
_TIME_FILENAME = f"resume{_NUMBERED}"


def save_interval(text: str) -> float:
    """Return ``sagemaker.save_every`` in seconds.

    Raises:
        CheckpointError: It is not a duration.
    """
    try:
        return read_duration(text)
    except ValueError as error:
        raise CheckpointError(f"sagemaker.save_every: {error}.", hint="Write 90s, 10m or 1.5h.") from error


def periodic_checkpoints(
    present: Sequence[Any], directory: str, save_every_seconds: float, namespace: Namespace, *, folders: bool = False
) -> List[Any]:
    """Return the ``ModelCheckpoint`` callbacks to add to the trainer's own, so that the job can be resumed.

    One writes ``last.ckpt`` at the end of each epoch, unless an existing one keeps the newest of each epoch. One writes
    ``resume-epoch=…-step=….ckpt`` by time and keeps the newest two, unless an existing one keeps the newest by time or
    steps. They are two because no version of Lightning combines both triggers in one callback. The first replaces the
    one that Lightning adds by default, so that ``ckpt_path="best"`` finds the same file.

    Existing callbacks are not modified, except for a ``last.ckpt`` that would be a symbolic link: SageMaker does not
    document that it uploads links.

    Args:
        present: The trainer's callbacks.
        directory: The job's checkpoint directory. Checkpoints elsewhere do not count: they are lost with the host.
        save_every_seconds: The interval between two checkpoints, in seconds.
        namespace: Lightning's namespace.
        folders: Whether checkpoints are folders. A ``last.ckpt`` does not count then: while SageMaker uploads a newer
            one over it, S3 holds parts of both.
    """
    checkpoints = [callback for callback in present if isinstance(callback, _checkpoint_class(namespace))]
    for callback in checkpoints:
        _write_last_as_file(callback, namespace)
    last_counts = not (folders or last_needs_best(namespace))
    regular = [callback for callback in checkpoints if _keeps_newest(callback, directory, last_counts)]
    added: List[Any] = []
    if not any(_saves_each_epoch(callback) for callback in regular):
        taken = any(callback.save_last or callback.filename == _EPOCH_FILENAMES[0] for callback in checkpoints)
        added.append(_first_with_new_key(checkpoints, _by_epoch(directory, _EPOCH_FILENAMES[taken], namespace)))
    if not any(_saves_within_epochs(callback) for callback in regular):
        added.append(_first_with_new_key(checkpoints, _by_time(directory, save_every_seconds, namespace)))
    return added


def _checkpoint_class(namespace: Namespace) -> Any:
    return namespace.module("callbacks").ModelCheckpoint


def _first_with_new_key(checkpoints: Sequence[Any], variants: Iterator[Any]) -> Any:
    """Return the first whose ``state_key`` is new; Lightning refuses two callbacks with the same."""
    keys = {callback.state_key for callback in checkpoints}
    return next(callback for callback in variants if callback.state_key not in keys)


def _by_epoch(directory: str, name: str, namespace: Namespace) -> Iterator[Any]:
    # The mode has no effect without a monitor, but is a part of the state_key.
    for mode in ("max", "min"):
        # Not by save_last, which in Lightning 2.6 takes effect only together with another save.
        callback = _checkpoint_class(namespace)(
            directory, name, mode=mode, every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=1
        )
        overwrite_own_file(namespace, callback)
        callback.is_of_job = True
        yield callback


def number_folders(trainer: Trainer, namespace: Namespace) -> None:
    """Number the checkpoints of each epoch by their steps and keep the newest two, where checkpoints are folders.

    SageMaker uploads a folder file by file. If a job is interrupted meanwhile, a folder that was overwritten holds
    files of two saves in S3, and no file of the older one would be left.

    Args:
        trainer: The trainer with the callbacks of :func:`periodic_checkpoints`.
        namespace: Lightning's namespace.
    """
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "is_of_job", False) and callback.filename in _EPOCH_FILENAMES:
            callback.filename += _NUMBERED
            vars(callback).update(keep_newest(namespace))
            if callback.monitor is not None:
                callback.kth_value = callback.kth_value.new_tensor(-math.inf)


def _by_time(directory: str, seconds: float, namespace: Namespace) -> Iterator[Any]:
    for microseconds in range(1000):
        interval = timedelta(seconds=seconds, microseconds=microseconds)
        callback = _checkpoint_class(namespace)(
            directory, _TIME_FILENAME, train_time_interval=interval, **keep_newest(namespace)
        )
        callback.on_train_batch_end = ThrottledTimeTrigger(callback)
        yield callback


def _write_last_as_file(callback: Any, namespace: Namespace) -> None:
    if callback.save_last == "link":
        callback.save_last = True
        log.info("Changing ModelCheckpoint(save_last='link') to True: SageMaker may not upload symbolic links")
    if callback.save_last:
        save_last_as_file(namespace, callback)


def _keeps_newest(callback: Any, directory: str, last_counts: bool) -> bool:
    """Whether the newest checkpoint of a callback is always kept in the directory, with the state of the optimizers."""
    if callback.save_weights_only or callback.dirpath is None:
        return False
    names: List[str] = []
    by_age = callback.monitor is None or (callback.monitor == "step" and callback.mode == "max")
    if by_age and callback.save_top_k != 0:
        names.append(callback.filename or "{epoch}-{step}")
    if callback.save_last and last_counts:
        names.append(callback.CHECKPOINT_NAME_LAST)
    paths = (os.path.join(callback.dirpath, f"{name}{callback.FILE_EXTENSION}") for name in names)
    return any(is_discoverable(directory, path) for path in paths)


def _saves_each_epoch(callback: Any) -> bool:
    return bool(callback._every_n_epochs == 1 and callback._save_on_train_epoch_end is not False)


def _saves_within_epochs(callback: Any) -> bool:
    return callback._train_time_interval is not None or bool(callback._every_n_train_steps)


def remove_superseded(trainer: Trainer) -> None:
    """Remove the numbered checkpoints that are older than those that the resumed callback keeps, on this host.

    Since 2.1 Lightning does not delete the checkpoint that a run resumed from, so each interruption would leave one.
    """
    for callback in trainer.checkpoint_callbacks:
        prefix, numbered, rest = str(getattr(callback, "filename", None)).partition(_NUMBERED)
        if not numbered or rest or prefix not in ("resume", *_EPOCH_FILENAMES):
            continue
        pattern = re.compile(rf"{prefix}-epoch=\d+-step=(\d+)(-v\d+)?\.ckpt")
        kept = {os.path.basename(path) for path in getattr(callback, "best_k_models", {})}
        steps = [int(match.group(1)) for match in map(pattern.fullmatch, kept) if match is not None]
        resumed = os.path.basename(str(getattr(trainer, "ckpt_path", None)))
        found = ((name, pattern.fullmatch(name)) for name in set(names_in(callback.dirpath)) - kept - {resumed})
        old = [name for name, match in found if match and steps and int(match.group(1)) < min(steps)]
        remove_names(callback.dirpath, old)


def keep_those_of_others(trainer: Trainer) -> None:
    """Keep the checkpoint of another directory that a training starts from, given as ``ckpt_path``.

    Its callbacks' state names it as the best one, which a callback without a metric removes after its first save.
    Lightning asks whether it is in the callback's own directory for local files only, since 2.1
    (``_should_remove_checkpoint`` in ``callbacks/model_checkpoint.py``).
    """
    for callback in trainer.checkpoint_callbacks:
        best, own = getattr(callback, "best_model_path", ""), str(getattr(callback, "dirpath", ""))
        if best and getattr(callback, "monitor", "") is None and not str(best).startswith(f"{own.rstrip('/')}/"):
            callback.best_model_path = ""


def overwrite_existing_last(trainer: Trainer) -> None:
    """Let a resumed run overwrite a ``last.ckpt`` that its checkpoint does not contain. Every rank must call it.

    This is the case after a checkpoint of the first epoch: Lightning would write ``last-v1.ckpt`` beside it, as it does
    when training starts from scratch.
    """
    if trainer.global_step == 0:
        return
    for callback in trainer.checkpoint_callbacks:
        if (
            getattr(callback, "filename", None) in _EPOCH_FILENAMES
            and callback.monitor is None
            and not callback.best_model_path
        ):
            path = os.path.join(callback.dirpath, f"{callback.filename}{callback.FILE_EXTENSION}")
            if broadcast(trainer, trainer.is_global_zero and has_file(path)):
                callback.best_model_path = path


class _FileExists:
    """Replaces ``file_exists`` of a ``ModelCheckpoint``, which does not see pending saves."""

    def __init__(self, exists: Any, saves: Any) -> None:
        self.exists, self.saves = exists, saves

    def __call__(self, path: Any, trainer: Trainer) -> bool:
        """Return on every rank whether ``path`` exists or is being written."""
        return bool(self.exists(path, trainer) or broadcast(trainer, self.saves.is_pending(path)))


class _ExistsAtURL:
    """Replaces ``file_exists`` of a ``ModelCheckpoint`` that saves to a URL, whose errors have no hint."""

    def __init__(self, exists: Any, url: str) -> None:
        self.exists, self.url = exists, url

    def __call__(self, path: Any, trainer: Trainer) -> bool:
        """Return on every rank whether ``path`` exists."""
        try:
            return bool(self.exists(path, trainer))
        except Exception as error:  # of the package for this kind of URL
            raise storage_error(self.url, "cannot be searched for a checkpoint", error) from error


def explain_remote_errors(trainer: Trainer) -> None:
    """Let ``ModelCheckpoint`` callbacks that save to a URL say what to do where it does not answer."""
    for callback in trainer.checkpoint_callbacks:
        exists = getattr(callback, "file_exists", None)
        if exists is not None and is_remote(getattr(callback, "dirpath", None)) and "file_exists" not in vars(callback):
            callback.file_exists = _ExistsAtURL(exists, callback.dirpath)


def reserve_pending_names(trainer: Trainer, saves: Any) -> None:
    """Keep two ``ModelCheckpoint`` callbacks from choosing the same name while the first save is still pending.

    The second would overwrite the file of the first, and later remove it.

    Args:
        trainer: The trainer with the callbacks.
        saves: A ``BackgroundCheckpointIO``, or the ``FolderSaves`` of a strategy.
    """
    for callback in trainer.checkpoint_callbacks:
        exists = getattr(callback, "file_exists", None)
        if isinstance(exists, _FileExists):
            exists.saves = saves
        elif exists is not None:
            callback.file_exists = _FileExists(exists, saves)
