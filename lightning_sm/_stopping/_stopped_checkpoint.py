"""The checkpoint of a fit that is left in its middle."""

import glob
import os
import re
from typing import Any, Optional

from lightning_sm._lightning._shims import strategy_of
from lightning_sm._log import log
from lightning_sm._saving._background_io import BackgroundCheckpointIOMixin
from lightning_sm._whole_file import remove

__all__ = ["save_directory", "save_stopped"]

_STEP = re.compile(r"stopped-step=(\d+)\.ckpt")


def save_directory(trainer: Any, directory: Optional[str]) -> Optional[str]:
    """Where to save: ``directory``, or that of the first ``ModelCheckpoint``; ``None`` where there is neither."""
    if trainer.fast_dev_run:
        return None
    known = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    return directory or next((path for path in known if path), None)


def save_stopped(trainer: Any, directory: str, steps: int) -> str:
    """Save ``stopped-step=N.ckpt`` and then remove older ones. Every rank must call it."""
    path = os.path.join(directory, f"stopped-step={steps}.ckpt")
    _end_background_saves(trainer)
    trainer.save_checkpoint(path)
    strategy_of(trainer).barrier("stopped")
    if trainer.is_global_zero:
        _remove_older(directory, steps)
    return path


def _end_background_saves(trainer: Any) -> None:
    """Wait for what is being saved, so that this checkpoint has been written when its save returns."""
    checkpoint_io = getattr(strategy_of(trainer), "checkpoint_io", None)
    if isinstance(checkpoint_io, BackgroundCheckpointIOMixin):
        try:
            checkpoint_io.finish()
        except Exception as error:  # of an earlier save; this one may succeed
            log.error("%s", error)


def _remove_older(directory: str, steps: int) -> None:
    for path in glob.glob(os.path.join(glob.escape(directory), "stopped-step=*.ckpt")):
        match = _STEP.fullmatch(os.path.basename(path))
        if match and int(match.group(1)) < steps:
            remove(path)
