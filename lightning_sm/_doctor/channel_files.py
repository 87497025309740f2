"""What channels hold, by which hosts are compared: ranks divide data by its position in a list of files."""

import hashlib
import json
import os
from contextlib import suppress
from typing import Dict, List, Tuple

from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["list_files", "replicated_channels"]


def replicated_channels(job: TrainingJob) -> Dict[str, str]:
    """Return the directory of each channel that should have the same files on all hosts and whose files are local.

    Args:
        job: The job.
    """
    return {
        name: channel.path
        for name, channel in job.data_channels.items()
        if channel.input_mode == "File" and not channel.is_sharded
    }


def list_files(folder: str, before: float = float("inf")) -> str:
    """Return the number and size of the files below a folder, with a digest of their relative names and sizes.

    Args:
        folder: The folder.
        before: Files that changed later, in seconds since the epoch, are left out: caches that the program writes.
    """
    files: List[Tuple[str, int]] = []
    for parent, _, names in os.walk(folder):
        inside = parent[len(folder) :].lstrip(os.sep)
        for name in names:
            with suppress(OSError):
                found = os.stat(os.path.join(parent, name))
                if found.st_ctime < before:
                    files.append((os.path.join(inside, name), found.st_size))
    digest = hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()[:12]
    noun = "file" if len(files) == 1 else "files"
    return f"{len(files):,} {noun}, {sum(size for _, size in files):,} bytes, digest {digest}"
