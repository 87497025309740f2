"""Checks of channels and directories: what each host reads, and where results are written."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Dict, Iterator, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine
from lightning_sm._doctor.project import find_unsorted_listing

__all__ = ["CHECKS"]

_LITTLE_SPACE = 10e9
_NO_SPACE = 0.5e9


def sharded_channels(machine: Machine) -> Iterator[Finding]:
    """Channels whose files SageMaker divides over the hosts, and ``DistributedSampler`` once more.

    Saves: a training on a half of the data, or less.
    """
    job = machine.job
    for name, channel in job.data_channels.items():
        if channel.is_sharded and len(job.world_hosts) > 1:
            yield Finding(
                "sharded channels",
                f"{name} is ShardedByS3Key: hosts have other files, and DistributedSampler divides them again.",
                "Use FullyReplicated, or trainer.use_distributed_sampler=false with equal numbers of batches.",
            )


def file_order(machine: Machine) -> Iterator[Finding]:
    """Directory listings of the project that nothing sorts, whose order may differ between hosts.

    Saves: a training in which ranks read the same files and skip others.
    """
    job = machine.job
    if len(job.world_hosts) < 2 or all(channel.is_sharded for channel in job.data_channels.values()):
        return
    used = find_unsorted_listing(machine)
    if used is not None:
        yield Finding(
            "file order",
            f"{used} uses the order of a directory listing, which may differ between hosts.",
            "Sort it before the data set is built: sorted(os.listdir(folder)).",
        )


def directories(machine: Machine) -> Iterator[Finding]:
    """Checkpoint, model and output directory and that of the failure file are writable; else an error.

    Saves: the time up to the first checkpoint or the model.
    """
    job = machine.job
    named = {
        "checkpoint directory": job.checkpoint_dir,
        "model directory": job.model_dir,
        "output directory": job.output_data_dir,
        "directory of the failure file": os.path.dirname(job.failure_file or ""),
    }
    for what, folder in named.items() if job.in_container else ():
        existing = Path(folder or "/")
        while not os.path.lexists(existing):
            existing = existing.parent
        # os.path answers where a directory above may not be entered; Path raises.
        is_folder = os.path.isdir(existing)
        if folder and not (is_folder and os.access(str(existing), os.W_OK | os.X_OK)):
            yield Finding(
                "directories",
                f"The {what} {folder} cannot be written: {existing} is {'read-only' if is_folder else 'a file'}.",
                "Check the mount and the owner of the directory, and what else is configured to be there.",
                is_error=True,
            )


def disk_space(machine: Machine) -> Iterator[Finding]:
    """Free space where checkpoints, models and temporary files are written: below 10 GB, below 0.5 GB an error.

    Saves: the hours until a checkpoint does not fit.
    """
    job = machine.job
    temporary = str(machine.path(machine.environ.get("TMPDIR") or "/tmp"))
    seen: Dict[int, str] = {}
    for folder in (job.base_dir, job.checkpoint_dir, job.model_dir, job.output_data_dir, temporary):
        with suppress(OSError):
            if folder is not None and os.path.isdir(folder):
                seen.setdefault(os.stat(folder).st_dev, folder)
    for folder in seen.values():
        free = shutil.disk_usage(folder).free
        if free < _LITTLE_SPACE:
            yield Finding(
                "disk space",
                f"{free / 1e9:.1f} GB are free for {folder}.",
                "Request a larger volume (VolumeSizeInGB), use FastFile for large channels, or keep fewer saves.",
                is_error=free < _NO_SPACE,
            )


CHECKS: Tuple[Check, ...] = (sharded_channels, file_order, directories, disk_space)
