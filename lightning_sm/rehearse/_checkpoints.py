"""What stands for managed spot training's copy of the checkpoints in S3."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, Mapping, Tuple

__all__ = ["fetch", "send", "snapshot"]

Snapshot = Mapping[str, Tuple[int, int]]


def snapshot(folder: Path) -> Dict[str, Tuple[int, int]]:
    """Each file below ``folder`` with its time and size, by which a change is seen."""
    found: Dict[str, Tuple[int, int]] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            if path.is_file():
                state = path.stat()
                found[str(path.relative_to(folder))] = (state.st_mtime_ns, state.st_size)
    return found


def fetch(bucket: Path, folder: Path) -> Dict[str, Tuple[int, int]]:
    """Fill a host's checkpoint folder as the service does before it starts the container."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in snapshot(bucket):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(bucket / name, folder / name)
    return snapshot(folder)


def send(folder: Path, before: Snapshot, bucket: Path) -> None:
    """Copy what a host changed since ``before``, and delete what it deleted.

    Only changes travel: a host that never wrote a checkpoint must not put its old copy over the new one of another.
    """
    after = snapshot(folder)
    for name in before:
        if name not in after and (bucket / name).exists():
            (bucket / name).unlink()
    for name, state in after.items():
        if before.get(name) != state:
            (bucket / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, bucket / name)
