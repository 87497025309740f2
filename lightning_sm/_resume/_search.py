"""Where checkpoints are looked for, so that what counts as saved for a restart is what a restart finds."""

import os
from typing import FrozenSet, Iterator

__all__ = ["checkpoint_names", "will_be_found"]

_SUFFIX = ".ckpt"


def checkpoint_names(directory: str) -> Iterator[str]:
    """Yield the checkpoints below a directory, however deep, as paths from there.

    Checkpoints are files and folders named ``*.ckpt``. Hidden ones, and those in hidden folders, are somebody's
    unfinished work.
    """
    yield from _below(directory, "", frozenset())


def will_be_found(directory: str, path: str) -> bool:
    """Whether :func:`checkpoint_names` of ``directory`` yields ``path`` when a checkpoint has been written there.

    Args:
        directory: The directory that is searched.
        path: A path, or the pattern of one, such as ``…/{epoch}/{val_loss:.2f}.ckpt``.
    """
    if "://" in path:
        return False
    folder, name = os.path.split(path)
    *folders, name = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(directory)).split(
        "/"
    )
    if any(part.startswith(".") for part in (*folders, name)):  # ".." leads out of the directory
        return False
    return name.endswith(_SUFFIX) and not any(part.endswith(_SUFFIX) for part in folders)


def _below(directory: str, below: str, above: FrozenSet[str]) -> Iterator[str]:
    here = os.path.realpath(os.path.join(directory, below))
    if here in above:  # a link that leads back
        return
    try:
        entries = sorted(os.listdir(here))
    except OSError:
        return
    for entry in entries:
        name = os.path.join(below, entry)
        path = os.path.join(directory, name)
        # A symlink that leads nowhere is no checkpoint, but what is left of one.
        if entry.startswith(".") or not os.path.exists(path):
            continue
        if entry.endswith(_SUFFIX):
            yield name
        elif os.path.isdir(path):
            yield from _below(directory, name, above | {here})
