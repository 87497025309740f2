"""Broadcast of checkpoints that not every host has, so that every host can load them.

``ModelCheckpoint`` writes a file on global rank 0, and ``trainer.test(ckpt_path="best")`` loads it on every rank. Of a
sharded checkpoint each host has the files that its own ranks wrote.
"""

import os
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Sequence, Set

from lightning_sm._atomic_file import remove, replace_atomically
from lightning_sm._lightning.collectives import any_true, broadcast, gather_objects
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.manifest import Manifest, has_manifest
from lightning_sm._resume.record import CorruptedError, SavedFile
from lightning_sm._resume.sharded_files import share_of
from lightning_sm._resume.storage import is_remote
from lightning_sm.errors import CheckpointError

__all__ = ["broadcast_missing_file", "complete_files", "complete_folder"]

_CHUNK = 32 * 1024**2
_MAX_BYTES = 64 * 1024**3
_MAX_SECONDS = 600.0
_HINT = (
    "Run the test in a job with one host, which reads the checkpoint from S3, or write checkpoints to a file system "
    "that all hosts share."
)
_FOLDER_HINT = (
    "Let SageMaker restart the job, which gives each host the files of all, or write checkpoints to a file system that "
    "all hosts share."
)


@contextmanager
def broadcast_missing_file(trainer: Trainer, path: Any) -> Iterator[Any]:
    """Yield the path under which this rank can load the checkpoint of global rank 0. Every rank must call it.

    ``path`` may differ between ranks: ``ckpt_path="last"`` is resolved with the files of each host. If a host lacks the
    file or has another version of it, rank 0 sends it in chunks with the strategy's broadcast, at most 64 GiB in
    10 minutes, to a temporary directory that is removed when the block ends. The files of a sharded checkpoint with a
    manifest are completed where it is, by :func:`complete_folder`.

    Args:
        trainer: The trainer, whose process group exists.
        path: What this rank would load.

    Raises:
        CheckpointError: The file is too large, takes too long or cannot be written, or no host has a file of a sharded
            checkpoint intact.
    """
    if trainer.world_size == 1 or trainer.num_nodes == 1:
        yield path
        return
    named = broadcast(trainer, None if path is None else os.fspath(path))
    if named is None or is_remote(named):
        yield named
        return
    if any_true(trainer, has_manifest(named)):
        problem = complete_folder(trainer, named)
        if problem is not None:
            raise CheckpointError(f"{named} cannot be loaded: {problem}.", hint=_FOLDER_HINT)
        yield named
        return
    parent, name = os.path.split(named)
    source = broadcast(trainer, SavedFile.read(parent, name) if os.path.isfile(named) else None)
    is_missing = source is not None and not trainer.is_global_zero and not source.is_intact(parent)
    if not any_true(trainer, is_missing):
        yield named
        return
    assert source is not None
    folder = os.path.join(tempfile.gettempdir(), f"lightning-sm-{source.size}-{source.crc32}")
    copy = os.path.join(folder, name)
    # Local rank 0 writes the file for all processes of its host.
    writes = is_missing and trainer.local_rank == 0
    if trainer.is_global_zero:
        log.info("Broadcasting %s (%d bytes) to the hosts that do not have it", named, source.size)
    try:
        receiver = _Receiver(copy if writes else None, source)
        problem = _transfer(trainer, named, source.size, receiver, 0, _Limits())
        if problem is not None:
            raise CheckpointError(f"Only the main host has {named}: {problem}.", hint=_HINT)
        yield copy if is_missing else named
        strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        if writes:
            remove(folder)


class _Limits:
    """What may still be sent of the 64 GiB and 10 minutes of one checkpoint."""

    def __init__(self) -> None:
        self.bytes = _MAX_BYTES
        self.deadline = time.monotonic() + _MAX_SECONDS


def _transfer(
    trainer: Trainer, path: str, size: int, receiver: "_Receiver", src: int, limits: _Limits
) -> Optional[str]:
    """Send a file of global rank ``src``, and return on every rank why that failed, if it did."""
    chunks = _chunks(path, size, limits) if trainer.global_rank == src else iter(())
    while True:
        chunk = broadcast(trainer, next(chunks, None), src)
        if not isinstance(chunk, bytes):
            break
        receiver.write(chunk)
    if chunk is not None:
        receiver.discard()
        return str(chunk)
    problem = receiver.close()
    if problem:
        log.error("global_rank %d could not receive %s: %s", trainer.global_rank, path, problem)
    if any_true(trainer, bool(problem)):
        own = f"global_rank {trainer.global_rank} could not receive it ({problem})"
        return own if problem else "another host could not receive it (see its log)"
    return None


class _Receiver:
    """Writes a file, or nothing. An error is kept until :meth:`close`: every rank must take part in each broadcast.

    Args:
        target: The file to write; ``None`` on ranks that have it.
        file: What is sent.
    """

    def __init__(self, target: Optional[str], file: SavedFile) -> None:
        self._target, self._file = target, file
        self._partial = ""
        self._problem = ""
        if target is None:
            return
        folder, name = os.path.split(target)
        self._partial = os.path.join(folder, f".{name[:100]}.received")
        try:
            os.makedirs(folder, exist_ok=True)
            open(self._partial, "wb").close()
        except OSError as error:
            self._problem = str(error)

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        if self._target is None or self._problem:
            return
        try:
            with open(self._partial, "ab") as file:
                file.write(chunk)
        except OSError as error:
            self._problem = str(error)

    def close(self) -> str:
        """Give the file its name, and return what is wrong with it, or an empty string."""
        if self._target is not None and not self._problem:
            try:
                if self._file.is_at(self._partial):
                    replace_atomically(self._partial, self._target)
                else:
                    self._problem = "its checksums do not match"
            except OSError as error:
                self._problem = str(error)
        if self._problem:
            self.discard()
        return self._problem

    def discard(self) -> None:
        """Remove what has been received."""
        if self._target is not None:
            remove(self._partial)


def _chunks(path: str, size: int, limits: _Limits) -> Iterator[Any]:
    """Yield the file's bytes, or a string with the reason why it is not sent."""
    limits.bytes -= size
    if limits.bytes < 0:
        yield f"its {size} bytes exceed the limit of {_MAX_BYTES} for a broadcast"
        return
    try:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(_CHUNK), b""):
                if time.monotonic() > limits.deadline:
                    yield f"its broadcast takes more than {_MAX_SECONDS:.0f} s"
                    return
                yield chunk
    except OSError as error:
        yield f"it cannot be read there ({error})"


def complete_files(trainer: Trainer, directory: str, files: Sequence[SavedFile]) -> Optional[str]:
    """Check the files of a checkpoint, and send each host those that it lacks. Every rank must call it.

    The ranks of a host share the check of its files: sizes and CRC-32. A file that a host lacks, or has corrupted or of
    another save, is sent by the strategy's broadcast from a host that has it, and appears complete; at most 64 GiB in
    10 minutes. On one host nothing is sent.

    Args:
        trainer: The trainer, whose process group exists.
        directory: The directory of the files, which has the same path on every host.
        files: What the checkpoint consists of, the same on every rank.

    Returns:
        Why the checkpoint cannot be used, the same on every rank; ``None`` if every host has all of it now.

    Raises:
        CheckpointError: What a host lacks is too large, takes too long or cannot be written.
    """
    host = int(strategy_of(trainer).node_rank) if trainer.world_size > 1 else 0
    hosts = gather_objects(trainer, host)
    ranks = [rank for rank, of in enumerate(hosts) if of == host]
    share = share_of([(file.name, file.size) for file in files], ranks.index(trainer.global_rank), len(ranks))
    broken = [file.name for file in files if file.name in set(share) and not file.is_intact(directory)]
    lacking: Dict[int, Set[str]] = {each: set() for each in hosts}
    for of, names in zip(hosts, gather_objects(trainer, broken)):
        lacking[of].update(names)
    nowhere = sorted(set.intersection(*lacking.values()))
    if nowhere:
        where = "" if len(lacking) == 1 else " on every host"
        found = f"{len(nowhere)} of its {len(files)} files are" if len(files) > 1 else "it is"
        return f"{found} missing, incomplete or corrupted{where} ({', '.join(nowhere[:3])})"
    limits = _Limits()
    for file in files:
        if not any(file.name in names for names in lacking.values()):
            continue
        src = next(rank for rank, of in enumerate(hosts) if file.name not in lacking[of])
        path = os.path.join(directory, file.name)
        if trainer.is_global_zero:
            log.warning("Sending %s (%d bytes) to the hosts that do not have it", path, file.size)
        writes = trainer.local_rank == 0 and file.name in lacking[host]
        receiver = _Receiver(path if writes else None, file)
        problem = _transfer(trainer, path, file.size, receiver, src, limits)
        if problem is not None:
            raise CheckpointError(f"Not every host has {path}, and {problem}.", hint=_FOLDER_HINT)
    strategy_of(trainer).barrier("checkpoint complete on every host")
    return None


def complete_folder(trainer: Trainer, path: str) -> Optional[str]:
    """Check a sharded checkpoint with a manifest, and send each host the files that it lacks. Every rank must call it.

    Args:
        trainer: The trainer, whose process group exists.
        path: The folder, which has the same path on every host. A host may lack it altogether.

    Returns:
        Why the checkpoint cannot be used, the same on every rank; ``None`` if every host has all of it now.

    Raises:
        CheckpointError: What a host lacks is too large, takes too long or cannot be written.
    """
    manifest, problem = None, None
    try:
        manifest = Manifest.read(path) if os.path.isdir(path) else None
    except (CorruptedError, OSError) as error:
        problem = str(error)
    found = gather_objects(trainer, (manifest, problem))
    problem = next((each for _, each in found if each is not None), None)
    manifests = [each for each, _ in found if each is not None]
    if problem is not None or not manifests:
        return problem or "no host has its manifest"
    if len({each.save_id for each in manifests}) > 1:
        return "the hosts have it of different saves (their manifests name different ones)"
    problem = complete_files(trainer, path, manifests[0].files)
    if problem is None and trainer.local_rank == 0 and manifest is None:
        manifests[0].write(path)
    return problem
