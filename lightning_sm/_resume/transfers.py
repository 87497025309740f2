"""Every host gets the files of a checkpoint: from a URL, or from another host that has them.

``ModelCheckpoint`` writes a file on global rank 0, and ``trainer.test(ckpt_path="best")`` loads it on every rank. Of a
sharded checkpoint each host has the files that its own ranks wrote.
"""

import importlib.util
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Dict, Iterator, Optional, Sequence, Set

from lightning_sm._atomic_file import partial_path, remove, remove_on_error, replace_atomically
from lightning_sm._lightning.collectives import broadcast, gather_objects
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.loadable import load_problem
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.ranks import agree_on_error, partition_by_size, raise_on_all_ranks
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, CorruptedError, SavedFile
from lightning_sm._resume.storage import Storage, check_url, is_remote, is_s3
from lightning_sm.errors import CheckpointError

__all__ = [
    "LocalFiles",
    "check_loadable",
    "fetch_missing_shards",
    "has_file",
    "has_folder",
    "local_checkpoint",
    "own_checkpoint_io",
    "remote_folder_problem",
]

_CHUNK = 32 * 1024**2
_HINT = "Pass another checkpoint, or none: the job then resumes from its newest whole one."


class LocalFiles:
    """The files of checkpoints on this host: those of a directory where they are, those of a URL in ``TMPDIR``."""

    def __init__(self) -> None:
        self._folder = ""
        self._owns = False

    def obtain(self, trainer: Trainer, directory: str, files: Sequence[SavedFile]) -> Optional[str]:
        """Let every host have all of these files. Every rank must call it.

        Args:
            trainer: The trainer, whose process group exists.
            directory: The directory, with the same path on every host, or the URL.
            files: The files, the same on every rank.

        Returns:
            Why the checkpoint cannot be used, the same on every rank; ``None`` if every host has all of it now.

        Raises:
            CheckpointError: A storage does not answer, or a file cannot be written; on all ranks.
        """
        if is_remote(directory):
            if not self._folder:
                token = broadcast(trainer, secrets.token_hex(8))
                # Hosts that are simulated on one machine share its temporary directory.
                self._folder = os.path.join(tempfile.gettempdir(), f"lightning-sm-{token}-{trainer.node_rank}")
                self._owns = trainer.local_rank == 0
            mine = files if self._owns else ()
            problem = raise_on_all_ranks(trainer, directory, lambda: _download(directory, mine, self._folder))
            problem = broadcast(trainer, problem)
            if problem is not None:
                return problem
        return fetch_missing_shards(trainer, self._folder if is_remote(directory) else directory, files)

    def obtain_given(self, trainer: Trainer, path: Any) -> Any:
        """Let every host have the checkpoint that global rank 0 would load.

        Every rank must call it. A URL whose ``CheckpointIO`` is a project's own, or that is not on S3, is left to
        Lightning.

        Returns:
            Its path, or what was given.

        Raises:
            CheckpointError: It is not there, not whole or of another strategy, or cannot be read; on all ranks.
        """
        named = broadcast(trainer, None if path is None else os.fspath(path).rstrip("/"))
        if named is None or (is_remote(named) and not _is_ours(trainer, named)):
            return path
        directory, name = named.rpartition("/")[::2] if is_remote(named) else os.path.split(os.path.abspath(named))
        record = self._record_of(trainer, directory, name)
        if record is None:
            return named
        problem = self.obtain(trainer, directory, record.files)
        if problem is not None:
            raise CheckpointError(f"The checkpoint {named} cannot be loaded: {problem}.", hint=_HINT)
        if record.strategy:
            check_loadable(trainer, record, f"The checkpoint {named}")
        return self.path(directory, name)

    @staticmethod
    def _record_of(trainer: Trainer, directory: str, name: str) -> Optional[CheckpointRecord]:
        """The files of a checkpoint, if any host must get some of them."""

        def read() -> Optional[CheckpointRecord]:
            if trainer.local_rank != 0 or (is_remote(directory) and not trainer.is_global_zero):
                return None
            path = os.path.join(directory, name)
            if is_remote(directory):
                return _remote_record(directory, name)
            if os.path.isdir(path):
                return _folder_record(directory, name)
            if not (trainer.is_global_zero and trainer.num_nodes > 1 and os.path.isfile(path)):
                return None
            return CheckpointRecord(name, files=(SavedFile.read(directory, name),))

        found = gather_objects(trainer, raise_on_all_ranks(trainer, f"{directory}/{name}", read))
        records = [each for each in found if each is not None]
        if len({each.save_id for each in records}) > 1:
            problem = f"The checkpoint {directory}/{name} cannot be loaded: the hosts have it of different saves."
            raise CheckpointError(problem, hint=_HINT)
        return records[0] if records else None

    def path(self, directory: str, name: str) -> str:
        """Where a file or folder is that was obtained."""
        return os.path.join(self._folder if is_remote(directory) else directory, name)

    def close(self) -> None:
        """Remove what was downloaded, when every rank of this host has read it."""
        if self._owns:
            remove(self._folder)
        self._folder, self._owns = "", False


def check_loadable(trainer: Trainer, record: CheckpointRecord, what: str) -> None:
    """Raise an error if the trainer's strategy cannot load a checkpoint.

    Args:
        trainer: The trainer.
        record: The record of the checkpoint.
        what: What it is, for the error.

    Raises:
        CheckpointError: It cannot.
    """
    found = load_problem(trainer, record.strategy, record.world_size)
    if found is not None:
        problem, hint = found
        raise CheckpointError(f"{what} cannot be loaded: {problem}.", hint=hint)


def _is_ours(trainer: Trainer, url: str) -> bool:
    """Whether Lightning cannot load a URL, or reads it by fsspec in each process."""
    if is_sharded(trainer):
        # These strategies take the URL for the path of a local file.
        check_url(url, "ckpt_path")
        return True
    strategy = strategy_of(trainer)
    checkpoint_io = own_checkpoint_io(strategy)
    package = type(checkpoint_io).__module__.partition(".")[0]
    # s3torchconnector's loads no local file, but in a fit ours is around it.
    is_wrapped = package == "s3torchconnector" and checkpoint_io is not strategy.checkpoint_io
    is_known = is_wrapped or package in ("lightning", "lightning_fabric", "pytorch_lightning")
    return is_s3(url) and is_known and importlib.util.find_spec("s3fs") is not None


def own_checkpoint_io(strategy: Any) -> Any:
    """Return the ``CheckpointIO`` of a strategy, of which ours may be the outer one."""
    found: Any = getattr(strategy, "checkpoint_io", None)
    while hasattr(found, "inner"):
        found = found.inner
    return found


def _folder_record(directory: str, name: str) -> Optional[CheckpointRecord]:
    """The record in a sharded checkpoint, with the files named from the directory that the folder is in, if any."""
    path = f"{name}/{MANIFEST}"
    try:
        content = Storage(directory).read(path)
        record = CheckpointRecord.parse(content)
    except FileNotFoundError:
        return None
    except CorruptedError as error:
        problem = f"The checkpoint {directory}/{name} cannot be loaded: {error}."
        raise CheckpointError(problem, hint=_HINT) from error
    files = (replace(file, name=f"{name}/{file.name}") for file in record.files)
    return replace(record, files=(*files, SavedFile.of(path, content)))


def _remote_record(directory: str, name: str) -> CheckpointRecord:
    """What is known of a checkpoint at a URL: the files that its record lists, or those that are there."""
    files = Storage(directory).files(name) if name and not directory.endswith(":/") else []
    if not files:
        hint = "Correct the URL; or it was removed since it was saved."
        raise CheckpointError(f"There is no checkpoint {directory}/{name}.", hint=hint)
    return _folder_record(directory, name) or CheckpointRecord(name, files=tuple(files))


def _download(directory: str, files: Sequence[SavedFile], folder: str) -> Optional[str]:
    """Download files, and return why that is in vain, if it is: one is not there with its size."""
    if not files:
        return None
    problem = _remote_problem(directory, files)
    if problem is not None:
        return problem
    total = sum(file.size for file in files)
    log.info("Downloading %s from %s (%.1f MB)", _checkpoint_name(files), directory, total / 1e6)
    try:
        os.makedirs(folder, exist_ok=True)
        if shutil.disk_usage(folder).free < total:
            raise OSError(f"{total} bytes are needed in {folder}")
        for file in files:
            path = os.path.join(folder, file.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileNotFoundError):  # it was removed meanwhile
                Storage(directory).download(file, path)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoints in {directory} cannot be copied to this host ({type(error).__name__}: {error}).",
            hint="Its temporary directory needs room for the largest checkpoint: use a larger volume_size, or set "
            "TMPDIR.",
        ) from error
    return None


def _remote_problem(directory: str, files: Sequence[SavedFile]) -> Optional[str]:
    """Why files at a URL are not there with their sizes; ``None`` if they are."""
    there = {file.name: file.size for file in Storage(directory).files(_checkpoint_name(files))}
    problems = [
        f"{file.name} is missing"
        if file.name not in there
        else f"{file.name} has {there[file.name]} bytes instead of {file.size}"
        for file in files
        if there.get(file.name) != file.size
    ]
    return _summary(problems[0], len(problems), len(files)) if problems else None


def _summary(problem: str, number: int, total: int) -> str:
    return f"{number} of its {total} files cannot be used: {problem}" if total > 1 else problem


def _checkpoint_name(files: Sequence[SavedFile]) -> str:
    """The name of the checkpoint that these are the files of: one file, or all in one folder."""
    return files[0].name.partition("/")[0]


def fetch_missing_shards(trainer: Trainer, directory: str, files: Sequence[SavedFile]) -> Optional[str]:
    """Check the files of a checkpoint, and send each host those that it lacks. Every rank must call it.

    The ranks of a host share the check of its files: sizes and CRC-32. A file that a host lacks, or has corrupted or of
    another save, is sent by the strategy's broadcast from a host that has it, and appears complete. On one host nothing
    is sent.

    Args:
        trainer: The trainer, whose process group exists.
        directory: The directory of the files, which has the same path on every host.
        files: What the checkpoint consists of, the same on every rank.

    Returns:
        Why the checkpoint cannot be used, the same on every rank; ``None`` if every host has all of it now.

    Raises:
        CheckpointError: A host cannot write what it lacks.
    """
    hosts = gather_objects(trainer, trainer.node_rank)
    host = hosts[trainer.global_rank]
    ranks = [rank for rank, of in enumerate(hosts) if of == host]
    mine = partition_by_size(files, ranks.index(trainer.global_rank), len(ranks))
    problems = {file.name: file.problem(os.path.join(directory, file.name)) for file in mine}
    found = gather_objects(trainer, {name: problem for name, problem in problems.items() if problem is not None})
    lacking: Dict[int, Set[str]] = {each: set() for each in hosts}
    for of, broken in zip(hosts, found):
        lacking[of].update(broken)
    nowhere = sorted(set.intersection(*lacking.values()))
    if nowhere:
        reason = next(broken[nowhere[0]] for broken in found if nowhere[0] in broken)
        where = "; no host has it whole" if len(lacking) > 1 else ""
        return _summary(f"{reason}{where}", len(nowhere), len(files))
    for file in (each for each in files if any(each.name in names for names in lacking.values())):
        source = next(rank for rank, of in enumerate(hosts) if file.name not in lacking[of])
        writes = trainer.local_rank == 0 and file.name in lacking[host]
        _send(trainer, source, os.path.join(directory, file.name), file, writes=writes)
    strategy_of(trainer).barrier("checkpoint complete on every host")
    return None


def _send(trainer: Trainer, source: int, path: str, file: SavedFile, *, writes: bool) -> None:
    """Send a file from a rank to those that write it, by broadcasts, in which every rank must take part."""
    if trainer.is_global_zero:
        log.warning("Sending %s (%d bytes) to the hosts that do not have it", path, file.size)
    token: str = broadcast(trainer, secrets.token_hex(8))
    chunks = _chunks(path) if trainer.global_rank == source else iter(())
    received = iter(lambda: broadcast(trainer, next(chunks, None), source), None)

    error = None
    try:
        if writes:
            _write_received(received, path, partial_path(path, token), file)
    except OSError as caught:
        error = caught
    for _ in received:  # what this rank does not write
        pass

    agree_on_error(trainer, path, error, "is not on every host, and could not be sent ({})")


def _write_received(received: Iterator[bytes], path: str, partial: str, file: SavedFile) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with remove_on_error(partial):
        with open(partial, "wb") as target:
            target.writelines(received)
        problem = file.problem(partial)
        if problem is not None:
            raise OSError(f"received incompletely: {problem}")
        replace_atomically(partial, path)


def _chunks(path: str) -> Iterator[bytes]:
    with suppress(OSError), open(path, "rb") as file:  # those that receive it find that something is missing
        yield from iter(lambda: file.read(_CHUNK), b"")


@contextmanager
def local_checkpoint(path: str) -> Iterator[str]:
    """Yield a path where a checkpoint can be read by one process: that of a temporary copy, if it is at a URL.

    Raises:
        CheckpointError: The storage does not return it.
    """
    if not is_remote(path):
        yield path
        return
    directory, _, name = path.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="lightning-sm-") as folder:
        _download(directory, _remote_record(directory, name).files, folder)
        yield os.path.join(folder, name)


def remote_folder_problem(url: str) -> Optional[str]:
    """Why a folder with a record at a URL is not whole, by names and sizes; ``None`` if it may be, or is no folder.

    Raises:
        CheckpointError: The storage cannot be read.
    """
    directory, _, name = url.rpartition("/")
    return _remote_problem(directory, _remote_record(directory, name).files)


def has_file(path: str) -> bool:
    """Whether there is a file, or a folder, at a path or URL."""
    directory, name = os.path.split(path)
    return name in Storage(directory).names()


def has_folder(path: str) -> bool:
    """Whether there is a folder at a path, or are files below a URL."""
    return bool(Storage(path).files()) if is_remote(path) else os.path.isdir(path)
