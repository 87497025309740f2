"""The checkpoints of a project's own callbacks, when a fit is interrupted between one of them and the next save."""

import os
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

from lightning_sm._lightning.collectives import broadcast
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._resume.series import is_in_series
from lightning_sm._resume.storage import Storage, is_remote, real_path

__all__ = [
    "adopt_checkpoints",
    "leave_files",
    "list_checkpoints",
    "note_checkpoints",
    "replace_leftovers",
    "states_with_scores",
]

# What a ``ModelCheckpoint`` decides by and saves nowhere: the step that is written, the file of ``save_last``, and
# whether a step's checkpoint waits for the validation that comes next.
_DECIDES_BY = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


def list_checkpoints(trainer: Trainer, root: str) -> List[str]:
    """Return the checkpoints in the directories of the trainer's ``ModelCheckpoint`` callbacks.

    Args:
        trainer: The trainer.
        root: The job's checkpoint directory; paths in it are relative to it, as it may be another one in a restart.
    """
    found = set()
    for directory in _directories(trainer):
        for name in _names_in(directory):
            if name.endswith(".ckpt") and not is_in_series(name):
                found.add(_relative(os.path.join(directory, name), root))
    return sorted(found)


def _names_in(directory: str) -> Iterator[str]:
    """The names in a directory, and below it on a disk: a slash in the name of a metric makes a folder."""
    if is_remote(directory):
        yield from Storage(directory).names()
        return
    for base, folders, files in os.walk(directory):
        yield from (os.path.relpath(os.path.join(base, name), directory) for name in (*folders, *files))


def _directories(trainer: Trainer) -> Set[str]:
    named = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    return {os.fspath(directory) for directory in named if directory}


def _relative(path: str, root: str) -> str:
    if is_remote(path):
        return path
    # The last checkpoint may be a link to one that an interrupted run wrote after its save.
    directory, name = os.path.split(path)
    return os.path.relpath(os.path.join(real_path(directory), name), real_path(root))


def _file_exists(
    root: str, leftovers: Set[str], background: Any, original: Callable[..., bool], path: Any, trainer: Trainer
) -> bool:
    """Replaces ``file_exists`` of a ``ModelCheckpoint``: a file of the interrupted run is written again.

    Args:
        root: The job's checkpoint directory.
        leftovers: What the interrupted run has written since the save; known on global rank 0.
        background: Saves that are pending, which the callback does not see; or ``None``.
        original: The method.
        path: What may be taken.
        trainer: The trainer.
    """
    name = _relative(os.fspath(path), root)
    is_leftover = broadcast(trainer, name in leftovers)
    leftovers.discard(name)
    is_pending = background is not None and broadcast(trainer, background.is_pending(path))
    return bool(is_pending or (not is_leftover and original(path, trainer)))


def replace_leftovers(trainer: Trainer, root: str, present: Iterable[str], background: Any) -> List[Callable[[], None]]:
    """Let ``ModelCheckpoint`` callbacks write again, under the same name, what an interrupted run wrote after its save.

    Lightning would write ``NAME-v1.ckpt`` beside it.

    Args:
        trainer: The trainer, whose callbacks have been restored.
        root: The job's checkpoint directory.
        present: What :func:`list_checkpoints` returned before the fit was trained for the first time.
        background: Saves that are pending, or ``None``.

    Returns:
        What undoes it.
    """
    leftovers: Set[str] = set()
    if trainer.is_global_zero:
        leftovers = set(list_checkpoints(trainer, root)) - set(present)
    for callback in trainer.checkpoint_callbacks:
        known = (*getattr(callback, "best_k_models", {}), *(getattr(callback, name, "") for name in _KEPT))
        leftovers -= {_relative(os.fspath(path), root) for path in known if path}
    if background is None and not broadcast(trainer, bool(leftovers)):
        return []
    exists = partial(_file_exists, root, leftovers, background)
    found = [callback for callback in trainer.checkpoint_callbacks if hasattr(callback, "file_exists")]
    return [ReplacedMethod(callback, "file_exists", exists).undo for callback in found]


_KEPT = ("best_model_path", "last_model_path")


def note_checkpoints(trainer: Trainer, checkpoint: Dict[str, Any]) -> None:
    """Add to a save what its ``ModelCheckpoint`` callbacks decide by beside their states.

    Args:
        trainer: The trainer.
        checkpoint: The contents of the save.
    """
    for callback, state in _states(trainer.checkpoint_callbacks, checkpoint):
        more = {name: vars(callback)[name] for name in _DECIDES_BY if name in vars(callback)}
        checkpoint["callbacks"][callback.state_key] = {**state, **more}


def states_with_scores(trainer: Trainer, checkpoint: Dict[str, Any]) -> Dict[str, Any]:
    """Return the states that hold scores, each rank's own where a metric is logged without ``sync_dist``.

    Args:
        trainer: The trainer.
        checkpoint: The contents of the save on this rank.
    """
    callbacks = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]
    return {callback.state_key: state for callback, state in _states(callbacks, checkpoint)}


def adopt_checkpoints(trainer: Trainer, checkpoint: Dict[str, Any], saved_root: str, root: str) -> None:
    """Let ``ModelCheckpoint`` callbacks continue in the directories of the interrupted run, and decide as they would.

    One that the program names by the time of its start differs at each start, and Lightning then forgets the best
    checkpoints. The job's checkpoint directory itself may be another one than before.

    Args:
        trainer: The trainer, before its callbacks are restored.
        checkpoint: The contents of a save, whose paths in the job's directory are changed to those of now.
        saved_root: The job's checkpoint directory when it was saved, without links, as Lightning names directories.
        root: The one of now.
    """
    for callback, state in _states(trainer.checkpoint_callbacks, checkpoint):
        if not isinstance(state.get("dirpath"), str):
            continue
        for key, value in state.items():
            state[key] = _moved(value, saved_root, root)
        for name in _DECIDES_BY:
            if name in state:
                setattr(callback, name, state.pop(name))
        now = os.fspath(getattr(callback, "dirpath", None) or "")
        if _is_below(state["dirpath"], root) and _is_below(now, root):
            callback.dirpath = state["dirpath"]


def leave_files(trainer: Trainer, checkpoint: Dict[str, Any]) -> None:
    """Let ``ModelCheckpoint`` callbacks not remove what another training has saved at a URL.

    Lightning removes the best one from there when it saves a better one; on a disk it leaves what is in another
    directory (``ModelCheckpoint._should_remove_checkpoint``).

    Args:
        trainer: The trainer, before its callbacks are restored.
        checkpoint: The contents of a ``ckpt_path``.
    """
    for callback, state in _states(trainer.checkpoint_callbacks, checkpoint):
        is_elsewhere = state.get("dirpath") != getattr(callback, "dirpath", None)
        if is_elsewhere and is_remote(state.get("best_model_path")):
            state["best_model_path"] = ""


def _states(callbacks: Iterable[Any], checkpoint: Dict[str, Any]) -> Iterator[Tuple[Any, Dict[str, Any]]]:
    """The callbacks of which a checkpoint has a state, with it."""
    states = checkpoint.get("callbacks", {})
    for callback in callbacks:
        state = states.get(getattr(callback, "state_key", None))
        if isinstance(state, dict):
            yield callback, state


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {_moved(key, old, new): inner for key, inner in value.items()}
    return f"{new}{value[len(old) :]}" if isinstance(value, str) and _is_below(value, old) else value


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
