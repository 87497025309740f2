"""The ``ModelCheckpoint`` callbacks that let an interrupted job go on."""

import os
from datetime import timedelta
from typing import Any, Iterator, List, Sequence

from lightning_sm._duration import read_duration
from lightning_sm._lightning import Namespace
from lightning_sm._lightning._shims import keep_newest, last_needs_best, save_last_as_file, write_over_own
from lightning_sm._log import log
from lightning_sm._resume import will_be_found
from lightning_sm._saving._when_due import WhenDue
from lightning_sm.errors import CheckpointError

__all__ = ["BY_EPOCH", "BY_TIME", "periodic_checkpoints", "save_interval"]

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
