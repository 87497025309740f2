"""Saves of the series that share their large files with a checkpoint that a callback of the project has just saved.

At one step a ``ModelCheckpoint`` and the series hold the same weights and states of optimizers. These are linked, and
what differs, a small part, is a file of its own: ``step-N.rest``, beside a file or in a folder of shards.
"""

import os
from typing import Any, Dict, Mapping, Optional

from lightning_sm._atomic_file import flush
from lightning_sm._logging import log
from lightning_sm._resume.record import REST, SavedFile
from lightning_sm._resume.series import STATE_KEY
from lightning_sm._resume.storage import is_remote

__all__ = ["link_file", "merge_rest", "source_to_share", "write_rest"]

#: What a save shares. Learning rates stand among the states of optimizers, and may have been changed in between.
SHARED = ("state_dict", "optimizer_states", "current_model_state")
_HINT = "A ModelCheckpoint with a larger every_n_epochs, or with save_weights_only, writes less."
_has_said = False


def source_to_share(checkpoint: Any, target: str) -> Optional[str]:
    """Take the path of the checkpoint to share out of one that is about to be saved; ``None`` where that cannot be."""
    state = checkpoint.get(STATE_KEY) if isinstance(checkpoint, dict) else None
    source: Optional[str] = state.pop("share", None) if isinstance(state, dict) else None
    if source is None or not (is_remote(source) or is_remote(target)):
        return source
    _say_once(source, target, "objects at a URL have no links")
    return None


def link_file(source: str, target: str) -> bool:
    """Make a hard link; return whether the file system can do that."""
    try:
        os.link(source, target)
    except OSError as error:
        _say_once(source, target, str(error))
        return False
    return True


def _say_once(source: str, target: str, reason: str) -> None:
    global _has_said
    if not _has_said:
        _has_said = True
        log.info("The weights are written twice, to %s and to %s: %s. HINT: %s", source, target, reason, _HINT)


def write_rest(checkpoint: Mapping[str, Any], directory: str, name: str) -> SavedFile:
    """Write what a save does not share beside its file, or into its folder, and return that file.

    Raises:
        OSError, RuntimeError: It cannot be written.
    """
    import torch

    rest = {key: value for key, value in checkpoint.items() if key not in SHARED}
    name = f"{os.path.splitext(name)[0]}{REST}"
    torch.save(rest, os.path.join(directory, name))
    flush(os.path.join(directory, name))
    return SavedFile.read(directory, name)


def merge_rest(checkpoint: Dict[str, Any], path: str, *, weights_only: bool) -> None:
    """Put what :func:`write_rest` has written into the checkpoint that it was shared with.

    Args:
        checkpoint: The contents of the shared checkpoint, which are changed.
        path: The file with the rest.
        weights_only: Whether to load it without running code of the file.
    """
    import torch

    rest = torch.load(path, map_location="cpu", weights_only=weights_only)
    shared = {key: value for key, value in checkpoint.items() if key in SHARED}
    checkpoint.clear()
    checkpoint.update(rest, **shared)
