"""Checks of channels and directories: sizes and input modes, what is writable, disk space, older checkpoints."""

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import read_text
from lightning_sm._doctor.project_source import find_unsorted_listing
from lightning_sm._resume.series import saves_in
from lightning_sm._sagemaker.job import Channel, TrainingJob

__all__ = ["CHECKS", "list_files", "replicated_channels"]

# For all channels together. FastFile lists and sizes objects over the network.
_WALK_SECONDS = 4.0
_GB = 1e9
_LITTLE_SPACE = 10 * _GB
_NO_SPACE = 0.5 * _GB
# What libraries write caches to: huggingface_hub, datasets, torch.hub, pip, tempfile.
_CACHES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "XDG_CACHE_HOME",
    "TMPDIR",
)


@dataclass(frozen=True)
class _Content:
    """What a channel holds, as far as it was counted."""

    files: int = 0
    size: int = 0
    is_complete: bool = True
    is_sorted: bool = True
    unreadable: str = ""

    def __str__(self) -> str:
        amount = f"{self.files:,} file{'' if self.files == 1 else 's'}, {_size(self.size)}"
        return amount if self.is_complete else f"at least {amount}"


def _count(path: str, seconds: float) -> _Content:
    """Count the files of a channel for so many seconds; raise where the channel itself cannot be read."""
    deadline = time.monotonic() + seconds
    files, size, is_sorted, unreadable = 0, 0, True, ""
    folders = [path]
    while folders:
        folder = folders.pop()
        names: List[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        files += 1
                        try:
                            size += entry.stat().st_size
                        except OSError as error:
                            unreadable = unreadable or f"{entry.path}: {error.strerror}"
                    if time.monotonic() > deadline:
                        return _Content(files, size, False, is_sorted and names == sorted(names), unreadable)
        except OSError as error:
            if folder == path:
                raise
            unreadable = unreadable or f"{folder}: {error.strerror}"
        is_sorted = is_sorted and names == sorted(names)
    return _Content(files, size, True, is_sorted, unreadable)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _settings(job: TrainingJob) -> Dict[str, Any]:
    """Return ``inputdataconfig.json``, whose fields beside the input mode are not a part of ``Channel``."""
    with suppress(ValueError):
        content = json.loads(read_text(Path(job.sources.get("channels", ""))) or "{}")
        return content if isinstance(content, dict) else {}
    return {}


def replicated_channels(job: TrainingJob) -> Dict[str, str]:
    """Return the directory of each channel that should have the same files on all hosts and whose files are local.

    Args:
        job: The job.
    """
    settings = _settings(job)
    return {
        name: channel.path
        for name, channel in job.data_channels.items()
        if channel.input_mode == "File" and settings.get(name, {}).get("S3DistributionType") != "ShardedByS3Key"
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
    return f"{len(files):,} {noun}, {_size(sum(size for _, size in files))}, digest {digest}"


def _channels(machine: Machine) -> Iterator[Finding]:
    """Each channel: mode, files, size, unsorted listings; a pipe or a missing folder is an error."""
    job = machine.job
    if not job.in_container:
        return
    if not job.data_channels:
        yield Finding("channels", Status.OK, "none")
    settings = _settings(job)
    for name, channel in job.data_channels.items():
        shard = settings.get(name, {}).get("S3DistributionType") == "ShardedByS3Key"
        seconds = _WALK_SECONDS / len(job.data_channels)
        yield from _channel(machine, channel, shard and len(job.world_hosts) > 1, seconds)


def _channel(machine: Machine, channel: Channel, is_sharded: bool, seconds: float) -> Iterator[Finding]:
    check, mode = f"channel {channel.name}", channel.input_mode or "mode unknown"
    if channel.input_mode == "Pipe":
        yield Finding(
            check,
            Status.ERROR,
            "Pipe: a stream without files, which no data module reads",
            "Set the channel's input mode to FastFile or File.",
        )
        return
    if is_sharded:
        yield Finding(
            check,
            Status.WARNING,
            "ShardedByS3Key: each host has other files, and DistributedSampler divides them once more",
            "Use FullyReplicated, or trainer.use_distributed_sampler=false with equal numbers of batches.",
        )
    if not machine.is_here:
        yield Finding(check, Status.OK, mode)
        return
    try:
        content = _count(channel.path, seconds)
    except OSError as error:
        yield Finding(check, Status.ERROR, f"{channel.path}: {error.strerror}", "Check the channel's S3 prefix.")
        return
    if not content.files and content.is_complete:
        yield Finding(
            check, Status.WARNING, f"{channel.path} is empty", "Check the channel's S3 prefix: it names no object."
        )
        return
    yield Finding(check, Status.OK, f"{mode}, {content}" + (", read-only" if mode == "FastFile" else ""))
    if content.unreadable:
        yield Finding(
            check,
            Status.WARNING,
            f"a part of it cannot be read: {content.unreadable}",
            "Check owner and mode; a link must point into the channel.",
        )
    if not content.is_sorted and len(machine.job.world_hosts) > 1 and not is_sharded:
        yield _order(machine, check)


def _order(machine: Machine, check: str) -> Finding:
    """Almost no file system sorts: it is a fault where the project uses its order."""
    text = "os.listdir and glob return its files unsorted, in an order that may differ between hosts"
    used = find_unsorted_listing(machine)
    if used is None:
        return Finding(check, Status.OK, text)
    return Finding(
        check,
        Status.WARNING,
        f"{text}, and {used} uses that order",
        "Sort file lists before the data set is built: sorted(os.listdir(folder)); else ranks train on the same "
        "files and skip others.",
    )


def _caches(machine: Machine) -> Iterator[Finding]:
    """Cache directories of libraries inside a channel; an error in a read-only one."""
    for name in _CACHES:
        folder = machine.environ.get(name)
        for channel in machine.job.data_channels.values() if folder and machine.is_here else ():
            if os.path.abspath(str(folder)).startswith(channel.path.rstrip("/") + "/") or folder == channel.path:
                yield Finding(
                    "caches",
                    Status.ERROR if channel.input_mode in ("FastFile", "Pipe") else Status.WARNING,
                    f"{name} is {folder}, in the channel {channel.name} ({channel.input_mode or 'mode unknown'}), "
                    "which is read-only in FastFile and Pipe mode",
                    f"Set {name} to a directory below /tmp.",
                )


def _directories(machine: Machine) -> Iterator[Finding]:
    """Checkpoint, model and output directories and the failure file are writable; else an error."""
    job = machine.job
    if not (job.in_container and machine.is_here):
        return
    named = {
        "checkpoint directory": job.checkpoint_dir,
        "model directory": job.model_dir,
        "output directory": job.output_data_dir,
        "failure file": os.path.dirname(job.failure_file or "") or None,
    }
    for check, folder in named.items():
        if folder is not None:
            yield _directory(check, folder)


def _directory(check: str, folder: str) -> Finding:
    existing = Path(folder)
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    # os.path answers where a directory above may not be entered; Path raises.
    is_folder = os.path.isdir(existing)
    if is_folder and os.access(str(existing), os.W_OK | os.X_OK):
        return Finding(check, Status.OK, f"{folder} is writable")
    why = "is not writable" if is_folder else "is no directory"
    return Finding(
        check,
        Status.ERROR,
        f"{folder}: {existing} {why}",
        "Check the mount and the owner of the directory, and what else is configured to be there.",
    )


def _disk(machine: Machine) -> Iterator[Finding]:
    """Free disk space: a warning below 10 GB, an error below 0.5 GB."""
    job = machine.job
    if not machine.is_here:
        return
    seen: Dict[int, List[str]] = {}
    for folder in (job.base_dir, job.checkpoint_dir, job.model_dir, job.output_data_dir, str(machine.path("/tmp"))):
        with suppress(OSError):
            if folder is not None and os.path.isdir(folder):
                seen.setdefault(os.stat(folder).st_dev, []).append(folder)
    for folders in seen.values():
        yield _space(folders[0], shutil.disk_usage(folders[0]).free)


def _space(folder: str, free: float) -> Finding:
    text = f"{_size(free)} free for {folder}"
    if free >= _LITTLE_SPACE:
        return Finding("disk space", Status.OK, text)
    return Finding(
        "disk space",
        Status.ERROR if free < _NO_SPACE else Status.WARNING,
        text,
        "Request a larger volume (VolumeSizeInGB), use FastFile for large channels, or keep fewer checkpoints "
        "(save_top_k).",
    )


def _older_checkpoints(machine: Machine) -> Iterator[Finding]:
    """Saves that are there: the newest, those of another job."""
    job, check = machine.job, "older checkpoints"
    if not (job.in_container and machine.is_here and job.checkpoint_dir and os.path.isdir(job.checkpoint_dir)):
        return
    found = saves_in(job.checkpoint_dir)
    names = {str(record.job.get("job_name")) for record in found if record.job.get("job_name")}
    others = sorted(names - {job.name}) if job.name is not None else []
    if others:
        yield Finding(
            check,
            Status.WARNING,
            f"{job.checkpoint_dir} has checkpoints of the job {others[0]}: sagemaker.resume=auto stops there",
            "Use a checkpoint prefix of its own for each job, or set sagemaker.resume to always or never.",
        )
    elif found:
        yield Finding(check, Status.OK, f"{len(found)} saves; the newest is {max(found, key=lambda each: each.time)}")


CHECKS: Tuple[Check, ...] = (_channels, _caches, _directories, _disk, _older_checkpoints)
