"""``latest_checkpoint``: what ``Fabric.save`` has written into the job's checkpoint directory.

``fabric.json`` in that directory lists the saves with their files. A save is written under a hidden name, listed, and
then renamed, so that at each moment the list describes what is there under a name, be it the new file or the old one.
"""

import functools
import json
import os
import secrets
from dataclasses import asdict, replace
from typing import Any, List, Optional, Tuple

from lightning_sm._atomic_file import partial_path, remove_on_error, remove_stale, replace_atomically
from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning.collectives import broadcast, gather_objects
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._logging import log
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm._resume.ranks import raise_on_all_ranks
from lightning_sm._resume.record import CheckpointRecord, SavedFile
from lightning_sm._resume.storage import Storage, is_remote
from lightning_sm._resume.transfers import fetch_missing_shards
from lightning_sm.errors import CheckpointError

__all__ = ["latest_checkpoint"]

_INDEX = "fabric.json"
# So many saves of one name are listed: SageMaker uploads the list at once, and a large file that it names later, so
# that a restart may find the list with an earlier file.
_LISTED = 20


def latest_checkpoint(fabric: Any) -> Optional[str]:
    """Return the path of the newest whole checkpoint that this program has saved in the job, for ``fabric.load``.

    All ranks get the same path, and a host that lacks files of the checkpoint gets them from another host. Every rank
    must call it, after ``fabric.launch()`` and before the first save: from then on ``fabric.save`` to a path in the
    job's checkpoint directory writes atomically, and lists the checkpoint there, in ``fabric.json``, with sizes and
    CRC-32. Only what is listed is returned. Outside a container nothing is listed.

    Files and variables that are read: see :class:`~lightning_sm.TrainingJob`, whose ``checkpoint_dir`` it is.

    Args:
        fabric: The ``Fabric`` that trains.

    Returns:
        The path; ``None`` if the job has none yet, and outside a container.

    Raises:
        CheckpointError: The directory holds checkpoints of a job with another name, a host cannot be read, or the
            processes have not been launched.

    Example::

        >>> path = lightning_sm.latest_checkpoint(fabric)  # doctest: +SKIP
        >>> if path is not None:  # doctest: +SKIP
        ...     fabric.load(path, state)
    """
    job = read_job()
    if job.checkpoint_dir is None:
        return None
    with failure_reported(job):
        saves = _Saves(fabric, job.checkpoint_dir, ProgramIdentity.of(job))
        if not isinstance(vars(fabric).get("save"), ReplacedMethod):
            ReplacedMethod(fabric, "save", saves.save)
        return saves.latest()


class _Saves:
    """The saves of a program in a directory."""

    def __init__(self, fabric: Any, directory: str, identity: ProgramIdentity) -> None:
        self._fabric, self._directory, self._identity = fabric, directory, identity

    def latest(self) -> Optional[str]:
        """The newest whole one."""
        _check_launched(self._fabric)
        # A launcher may give each process other arguments, and its name to one host only.
        self._identity = broadcast(self._fabric, self._identity)
        reads = self._fabric.local_rank == 0
        read = raise_on_all_ranks(self._fabric, self._directory, lambda: self._read() if reads else [])
        # Rank 0 alone writes the list; its host may be another one than before.
        found = max(gather_objects(self._fabric, read), key=lambda saves: saves[-1].number if saves else -1)
        self._check_job(found)
        for save in reversed(found):
            if ProgramIdentity.from_json(save.job).series != self._identity.series:
                continue
            problem = fetch_missing_shards(self._fabric, self._directory, save.files)
            if problem is None:
                return os.path.join(self._directory, save.name)
            if self._fabric.is_global_zero:
                log.warning("Skipped %s in %s: %s", save.name, self._directory, problem)
        return None

    def _read(self) -> List[CheckpointRecord]:
        try:
            return [CheckpointRecord.from_json(entry) for entry in json.loads(Storage(self._directory).read(_INDEX))]
        except FileNotFoundError:
            return []
        except (KeyError, TypeError, ValueError) as error:
            log.warning("Skipped %s in %s: %s: %s", _INDEX, self._directory, type(error).__name__, error)
            return []

    def _check_job(self, saves: List[CheckpointRecord]) -> None:
        others = (ProgramIdentity.from_json(save.job) for save in saves)
        other = next((each for each in others if not self._identity.is_same_job(each)), None)
        if other is not None:
            raise CheckpointError(
                f"{self._directory} was written by {other}, and this is {self._identity}.",
                hint="Give each job a checkpoint_s3_uri of its own; to continue that training, load its checkpoint.",
            )

    def save(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        """Do what ``Fabric.save`` does; in the directory atomically, and list it. Every rank must call it."""
        fabric = self._fabric
        relative = path if is_remote(path) else os.path.relpath(os.path.abspath(path), self._directory)
        name, token = broadcast(fabric, (os.fspath(relative), secrets.token_hex(8)))
        if is_remote(name) or name.startswith(os.pardir):
            original(path, *args, **kwargs)
            return
        target = os.path.join(self._directory, name)
        partial = partial_path(target, token)
        with remove_on_error(partial):
            original(partial, *args, **kwargs)
            mine = raise_on_all_ranks(fabric, target, lambda: self._files(partial, name))
            files = {file.name: file for part in gather_objects(fabric, mine) for file in part}
            raise_on_all_ranks(fabric, target, lambda: self._list(name, tuple(files.values())))
            # Where hosts share a file system, rank 0 renames it for all of them.
            for renames in (fabric.is_global_zero, fabric.local_rank == 0):
                raise_on_all_ranks(fabric, target, functools.partial(_rename, renames, partial, target, token))

    def _files(self, partial: str, name: str) -> List[SavedFile]:
        """This host's files of a save, as they will be named."""
        if self._fabric.local_rank != 0:
            return []
        directory, hidden = os.path.split(partial)
        found = (SavedFile.read(directory, file.name) for file in Storage(directory).files(hidden))
        return [replace(file, name=file.name.replace(hidden, name, 1)) for file in found]

    def _list(self, name: str, files: Tuple[SavedFile, ...]) -> None:
        """List a save, beside those that it replaces. Global rank 0 does that."""
        if not (self._fabric.is_global_zero and files):
            return
        found = self._read()
        number = found[-1].number + 1 if found else 0
        saves = [each for each in found if os.path.exists(os.path.join(self._directory, each.name))]
        replaced = [each for each in saves if each.name == name]
        saves = [each for each in saves if each not in replaced[: 1 - _LISTED]]
        saves.append(CheckpointRecord(name, number, job=asdict(self._identity), files=files))
        Storage(self._directory).write(_INDEX, json.dumps([asdict(each) for each in saves]).encode())


def _check_launched(fabric: Any) -> None:
    import torch.distributed as dist

    if fabric.world_size > 1 and not dist.is_initialized():
        raise CheckpointError(
            "latest_checkpoint was called before the processes of the Fabric were launched.",
            hint="Call fabric.launch() first.",
        )


def _rename(renames: bool, partial: str, target: str, token: str) -> None:
    if renames and os.path.exists(partial):
        replace_atomically(partial, target)
        remove_stale(os.path.dirname(target), token)
