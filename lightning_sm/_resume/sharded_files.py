"""The files of checkpoint folders: hidden names, lists, checksums, copies, room in memory; what all ranks agree on."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from lightning_sm._atomic_file import flush, remove, restore_replaced
from lightning_sm._lightning.checkpoints import is_failed_write, reasons_of
from lightning_sm._lightning.collectives import gather_objects
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.manifest import new_save_id
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.storage import is_remote
from lightning_sm.errors import CheckpointError

__all__ = [
    "MEMORY",
    "FolderRanks",
    "Stage",
    "copy_folder",
    "flush_folders",
    "keep_files_of_others",
    "list_files",
    "missing_room",
    "agree",
    "partial_folder",
    "raise_on_all_ranks",
    "read_shards",
    "remove_folder",
    "remove_stale",
    "restore_interrupted",
    "share_of",
]

#: Where a save in the background keeps its copy: files there are in host memory.
MEMORY = "/dev/shm"
_Value = TypeVar("_Value")
_UNREADABLE = "cannot be read ({})"
_HINT = "Check the free space on the disk and its mount: use a larger volume_size, or keep fewer checkpoints."
_PARTIAL = re.compile(r"\..+\.(partial|removed)-[0-9a-f]{16}")


def partial_folder(target: str, save_id: str, directory: Optional[str] = None) -> str:
    """Return the hidden name of a checkpoint while it is being written, beside ``target`` or in another directory."""
    parent, name = os.path.split(target)
    return os.path.join(parent if directory is None else directory, f".{name[:100]}.partial-{save_id}")


def list_files(folder: str) -> List[Tuple[str, int]]:
    """Return names, relative to the folder and with ``/`` inside, and sizes in bytes of the files in it, sorted."""
    found = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sorted((os.path.relpath(path, folder).replace(os.sep, "/"), os.path.getsize(path)) for path in found)


def share_of(files: Sequence[Tuple[str, int]], index: int, count: int) -> List[str]:
    """Return the names that process ``index`` of ``count`` reads, so that each reads about as many bytes.

    >>> files = [("a", 10), ("b", 10), ("c", 20), ("d", 1)]
    >>> share_of(files, 0, 2), share_of(files, 1, 2)
    (['c', 'd'], ['a', 'b'])
    """
    bytes_of = [0] * count
    mine = []
    for name, size in sorted(files, key=lambda file: (-file[1], file[0])):
        least = bytes_of.index(min(bytes_of))
        bytes_of[least] += size
        if least == index:
            mine.append(name)
    return mine


# CRC-32 of zlib runs at about 1 GB/s in a thread, without the GIL.
_THREADS = 4


def read_shards(folder: str, names: Sequence[str], *, flushed: bool) -> List[SavedFile]:
    """Return size and CRC-32 of files, and flush them before.

    Args:
        folder: The checkpoint.
        names: Relative to it.
        flushed: Whether they are on a disk and must be flushed.

    Raises:
        OSError: One cannot be read or flushed.
    """

    def read(name: str) -> SavedFile:
        if flushed:
            flush(os.path.join(folder, name))
        return SavedFile.read(folder, name)

    with ThreadPoolExecutor(max(1, min(_THREADS, os.cpu_count() or 1, len(names)))) as threads:
        return list(threads.map(read, names))


def flush_folders(folder: str) -> None:
    """Flush the folder and those in it, so that their entries are on the disk."""
    for path, _, _ in os.walk(folder):
        flush(path)


def copy_folder(source: str, target: str, files: Sequence[SavedFile]) -> None:
    """Copy files from one folder to another, and flush them.

    Raises:
        OSError: One cannot be copied.
    """
    for file in files:
        path = os.path.join(target, file.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # The kernel copies, without the GIL.
        shutil.copyfile(os.path.join(source, file.name), path)
        shutil.copymode(os.path.join(source, file.name), path)
        flush(path)


def keep_files_of_others(partial: str, target: str, files: Sequence[SavedFile]) -> None:
    """Let a folder that will replace another keep its files that other hosts write anew, as they are.

    After a restart each host has the files of all, and SageMaker deletes in S3 what a host deletes: the deletion of an
    older file by this host could arrive after the upload of the newer one by the other. The manifest tells them apart.

    Args:
        partial: The new folder, with this host's files.
        target: The folder that it replaces.
        files: The files of all hosts.
    """
    for file in files:
        own, old = os.path.join(partial, file.name), os.path.join(target, file.name)
        if not os.path.lexists(own) and os.path.isfile(old):
            os.makedirs(os.path.dirname(own), exist_ok=True)
            with suppress(OSError):  # a file system without hard links
                os.link(old, own)


def remove_folder(path: str) -> None:
    """Remove a checkpoint: first its name, so that nobody sees a part of it. Errors are ignored.

    Args:
        path: A folder or a file.
    """
    parent, name = os.path.split(os.path.abspath(path))
    hidden = os.path.join(parent, f".{name[:100]}.removed-{new_save_id()}")
    with suppress(OSError):  # another host on a shared file system was faster, or nothing is there
        os.rename(path, hidden)
        remove(hidden)


def remove_stale(directory: str, keep: str = "") -> None:
    """Remove the incomplete folders of earlier runs that were killed.

    Args:
        directory: The directory of checkpoints.
        keep: The path of the only one that is being written now, by another host on a shared file system.
    """
    for name in _entries(directory):
        path = os.path.join(directory, name)
        if _PARTIAL.fullmatch(name) and os.path.isdir(path) and path != keep:
            log.info("Removing the incomplete checkpoint of an interrupted run: %s", path)
            remove(path)


def restore_interrupted(directory: str) -> None:
    """Restore the folders below a directory whose replacement was killed halfway, under their final names."""
    for path, folders, _ in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".") and not name.endswith(".ckpt")]
        with suppress(OSError):
            for name in restore_replaced(path):
                log.info("Restored %s, whose replacement was interrupted", os.path.join(path, name))


def _entries(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def missing_room(size: int, directory: str = "") -> Optional[str]:
    """Return why files of ``size`` bytes cannot be kept in memory; ``None`` if they can.

    Args:
        size: In bytes.
        directory: Where they would be; by default :data:`MEMORY`.
    """
    directory = directory or MEMORY
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return f"{directory} cannot be used ({error})"
    # A file system in memory may be larger than the memory that is left.
    free = min(found.f_bavail * found.f_frsize, _available_memory().get("MemAvailable", size))
    if free < size:
        return f"{directory} has room for {free / 1e6:.0f} MB, and about {size / 1e6:.0f} MB are needed"
    return None if os.access(directory, os.W_OK) else f"{directory} is not writable"


def _available_memory() -> Dict[str, int]:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = (line.split() for line in file)
            return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class Stage:
    """A folder that the strategy writes into, the same path on every host.

    Args:
        path: The folder.
        leaders: For each global rank, the one that acts for all ranks that see the same folder.
    """

    path: str
    leaders: Tuple[int, ...]


def raise_on_all_ranks(trainer: Trainer, what: str, action: Callable[[], _Value], problem: str = _UNREADABLE) -> _Value:
    """Run something on this rank, and raise an error on all ranks if it failed on any. Every rank must call it.

    Args:
        trainer: The trainer.
        what: The path or URL that it is about.
        action: What each rank does; it calls no collective.
        problem: What failed, as the words after ``what``.

    Raises:
        CheckpointError: It failed on another rank, or for the storage's or the disk's sake on this one.
        Exception: Any other error of this rank.
    """
    result, error = None, None
    try:
        result = action()
    except Exception as caught:
        error = caught
    agree(trainer, what, error, problem)
    return result  # type: ignore[return-value]  # without an error it is what the action returned


def agree(trainer: Trainer, what: str, error: Optional[BaseException], problem: str = _UNREADABLE) -> None:
    """Raise on all ranks if any rank has an error; see :func:`raise_on_all_ranks`."""
    own: Optional[Tuple[str, Optional[str], bool]] = None
    if error is not None:
        own = (reasons_of(error), None, is_failed_write(error))
        if isinstance(error, CheckpointError):
            own = (error.problem.rstrip("."), error.hint, True)
    failures = [(rank, each) for rank, each in enumerate(gather_objects(trainer, own)) if each is not None]
    if not failures:
        return
    if error is not None and not (own and own[2]):
        raise error
    rank, (reason, hint, _) = failures[0]
    where = reason if "global_rank" in reason else f"global_rank {rank}: {reason}"
    raise CheckpointError(f"{what} {problem.format(where)}.", hint=hint or _HINT) from error


def _problem_of(target: str) -> str:
    kept = "Older ones of other names are" if is_remote(target) else "An older one is"
    return "could not be saved ({}). " + f"{kept} unchanged"


class FolderRanks:
    """What all ranks of a trainer agree on while they save a folder. Every method but ``lead`` is collective.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        #: Names and sizes of the files in the last folder that was read, as this host sees them.
        self.listed: List[Tuple[str, int]] = []
        self._leaders: Dict[str, Tuple[int, ...]] = {}

    def attempt(self, target: str, action: Callable[[], Any]) -> Any:
        """Run something on this rank, and raise an error on all ranks if it failed on any."""
        return raise_on_all_ranks(self.trainer, f"The checkpoint {target}", action, _problem_of(target))

    def agree(self, target: str, error: Optional[BaseException]) -> None:
        agree(self.trainer, f"The checkpoint {target}", error, _problem_of(target))

    def prepare(self, target: str, path: str) -> Stage:
        """Create the folder ``path`` on every host, and find out which hosts see the same one."""
        trainer, directory = self.trainer, os.path.dirname(path)
        is_first = trainer.local_rank == 0
        known = self._leaders.get(directory)
        marker = os.path.join(path, ".rank-")

        def create() -> None:
            if not is_first:
                return
            os.makedirs(directory, exist_ok=True)
            if known is None:
                remove_stale(directory, keep=path)
            os.makedirs(path, exist_ok=True)
            if known is None:
                with open(f"{marker}{trainer.global_rank}", "wb"):
                    pass

        try:
            self.attempt(target, create)
        except BaseException:
            if is_first:
                remove(path)
            raise
        if known is None:
            # Each name is asked for the first time, so that a network file system has it in no cache.
            firsts = [rank for rank, first in enumerate(gather_objects(trainer, is_first)) if first]
            seen = [rank for rank in firsts if os.path.exists(f"{marker}{rank}")]
            known = tuple(gather_objects(trainer, min(seen, default=trainer.global_rank)))
            self._leaders[directory] = known
            if is_first:
                with suppress(OSError):
                    os.unlink(f"{marker}{trainer.global_rank}")
        return Stage(path, known)

    def read_files(self, target: str, stage: Stage) -> Tuple[SavedFile, ...]:
        """Flush the files of all hosts, and return them. The ranks of a host share the work."""
        trainer = self.trainer
        listed = self.attempt(target, lambda: list_files(stage.path) if self.lead(stage) else [])
        leader = stage.leaders[trainer.global_rank]
        self.listed = gather_objects(trainer, listed)[leader]
        members = [rank for rank, of in enumerate(stage.leaders) if of == leader]
        mine = share_of(self.listed, members.index(trainer.global_rank), len(members))
        # Memory needs no flush.
        flushed = not stage.path.startswith(MEMORY)
        read = self.attempt(target, lambda: read_shards(stage.path, mine, flushed=flushed))
        files: Dict[str, SavedFile] = {}
        for file in (each for part in gather_objects(trainer, read) for each in part):
            if files.setdefault(file.name, file) != file:
                raise CheckpointError(
                    f"The checkpoint {target} could not be saved: two hosts wrote different contents to {file.name}. "
                    "An older one is unchanged.",
                    hint="Turn off DeepSpeed's checkpoint option use_node_local_storage.",
                )
        return tuple(files[name] for name in sorted(files))

    def lead(self, stage: Stage) -> bool:
        return stage.leaders[self.trainer.global_rank] == self.trainer.global_rank
