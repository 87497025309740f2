"""``ModelCheckpoint`` and ``CheckpointIO``."""

import functools
import sys
import time
from typing import Any, Dict

from lightning_sm._lightning._namespaces import Namespace
from lightning_sm._lightning._shims._ranges import needs

__all__ = [
    "innermost_wrapper",
    "keep_newest",
    "last_needs_best",
    "save_by_time",
    "save_last_as_file",
    "saved_by_all_ranks",
    "write_over_own",
]


def innermost_wrapper(namespace: Namespace, checkpoint_io: Any) -> Any:
    """The one of Lightning's wrapping ``CheckpointIO`` that holds the one which writes, or ``None``."""
    if not needs("innermost_wrapper", namespace):
        return None
    wrapping = namespace.module("plugins.io.wrapper")._WrappingCheckpointIO
    found = None
    while isinstance(checkpoint_io, wrapping):
        found, checkpoint_io = checkpoint_io, checkpoint_io.checkpoint_io
    return found


def keep_newest(namespace: Namespace) -> Dict[str, Any]:
    """Arguments by which a ``ModelCheckpoint`` keeps the newest two; 1.5 cannot monitor the step, and keeps one."""
    if needs("keep_newest", namespace):
        return {"mode": "max"}
    return {"monitor": "step", "mode": "max", "save_top_k": 2}


def last_needs_best(namespace: Namespace) -> bool:
    """Whether ``save_last`` is heeded at the end of an epoch only where one of the best was saved, too."""
    return needs("last_needs_best", namespace)


def save_by_time(namespace: Namespace, trainer: Any, pl_module: Any) -> None:
    """Save what is due by time after a training batch of manual optimization, where Lightning forgets to look."""
    if not needs("save_by_time", namespace) or pl_module.automatic_optimization:
        return
    for checkpoint in trainer.checkpoint_callbacks:
        interval = getattr(checkpoint, "_train_time_interval", None)
        if interval is None or checkpoint._should_skip_saving_checkpoint(trainer):
            continue
        now = time.monotonic()
        candidates = checkpoint._monitor_candidates(trainer)
        is_due = now - checkpoint._last_time_checked >= interval.total_seconds()
        # The hosts' clocks differ, and all of them take part in a save.
        if checkpoint.monitor in (None, *candidates) and trainer.strategy.broadcast(is_due):
            checkpoint._last_time_checked = now
            checkpoint._save_topk_checkpoint(trainer, candidates)
            checkpoint._save_last_checkpoint(trainer, candidates)


def save_last_as_file(namespace: Namespace, checkpoint: Any) -> None:
    """Let a ``ModelCheckpoint`` with ``save_last=True`` write a file where it would make a link."""
    if needs("save_last_as_file", namespace):
        checkpoint._link_checkpoint = functools.partial(_save_instead_of_link, checkpoint.save_weights_only)


def _save_instead_of_link(weights_only: bool, trainer: Any, filepath: str, linkpath: str) -> None:
    trainer.save_checkpoint(linkpath, weights_only)


def saved_by_all_ranks(namespace: Namespace, trainer: Any, caller: int) -> bool:
    """Whether a call of ``Trainer.save_checkpoint`` is one that every rank makes, so that the ranks may talk.

    Since 2.1 it ends with a barrier. Before, a program may let one rank alone save, and Lightning's and our own
    callbacks do not. After an error there may be one rank alone.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        caller: How many frames above this one the caller is.
    """
    if trainer.interrupted:
        return False
    if trainer.world_size == 1 or not needs("saved_by_all_ranks", namespace):
        return True
    module = str(sys._getframe(caller).f_globals.get("__name__", ""))
    return module.split(".")[0] in (namespace.name.split(".")[0], "lightning_sm")


def write_over_own(namespace: Namespace, checkpoint: Any) -> None:
    """Let a ``ModelCheckpoint`` without a monitor write over its own file, where it takes turns between two names.

    A run that is interrupted and goes on would then leave one more file each time, for its checkpoint may know the
    other name.
    """
    if needs("write_over_own", namespace):
        checkpoint.file_exists = functools.partial(_another_exists, checkpoint)


def _another_exists(checkpoint: Any, filepath: Any, trainer: Any) -> bool:
    return bool(filepath != checkpoint.best_model_path and type(checkpoint).file_exists(checkpoint, filepath, trainer))
