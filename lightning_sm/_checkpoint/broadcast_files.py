"""Broadcast of checkpoints that not every host has, so that every host can load them.

``ModelCheckpoint`` writes a file on global rank 0, and ``trainer.test(ckpt_path="best")`` loads it on every rank. Of a
sharded checkpoint each host has the files that its own ranks wrote.
"""

import hashlib
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._atomic_file import remove, replace_atomically
from lightning_sm._checkpoint.folder_files import share_of
from lightning_sm._checkpoint.folders import ShardedFolder, has_manifest, is_intact
from lightning_sm._checkpoint.integrity import CorruptedError, file_records, verify_and_hash
from lightning_sm._checkpoint.manifest import Manifest
from lightning_sm._lightning.collectives import any_true, broadcast, gather_objects
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["broadcast_missing_file", "complete_folder"]

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


@dataclass(frozen=True)
class _FileInfo:
    """What hosts compare of a file.

    Args:
        path: Its path.
        size: Its size in bytes.
        digest: A digest of its contents; empty if there is no file.
    """

    path: str
    size: int = 0
    digest: str = ""

    @classmethod
    def read(cls, path: str) -> "_FileInfo":
        """Digest the CRCs in the file's zip directory, or the whole file if there are none."""
        if not os.path.isfile(path):
            return cls(path)
        try:
            records = file_records(path)
        except CorruptedError:
            records = []
        if records and all(crc is not None for _, _, crc in records):
            digest = hashlib.sha256(repr(records).encode()).hexdigest()
        else:
            digest = verify_and_hash(path, check=False)
        return cls(path, os.path.getsize(path), digest)


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
    if named is None or "://" in named:
        yield named
        return
    if any_true(trainer, has_manifest(named)):
        problem = complete_folder(trainer, named)
        if problem is not None:
            raise CheckpointError(f"{named} cannot be loaded: {problem}.", hint=_FOLDER_HINT)
        yield named
        return
    source = broadcast(trainer, _FileInfo.read(named) if trainer.is_global_zero else _FileInfo(named))
    is_missing = bool(source.digest) and not trainer.is_global_zero and _FileInfo.read(named) != source
    if not any_true(trainer, is_missing):
        yield named
        return
    folder = os.path.join(tempfile.gettempdir(), f"lightning-sm-{source.digest[:32]}")
    copy = os.path.join(folder, os.path.basename(named))
    # Local rank 0 writes the file for all processes of its host.
    writes = is_missing and trainer.local_rank == 0
    if trainer.is_global_zero:
        log.info("Broadcasting %s (%d bytes) to the hosts that do not have it", named, source.size)
    try:
        receiver = _Receiver(copy if writes else None, lambda file: _FileInfo.read(file).digest == source.digest)
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
        is_intact: Whether a received file is as it was sent.
    """

    def __init__(self, target: Optional[str], is_intact: Callable[[str], bool]) -> None:
        self._target, self._is_intact = target, is_intact
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
                if self._is_intact(self._partial):
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


@dataclass(frozen=True)
class _Part:
    """What one rank has found of a sharded checkpoint on its host.

    Args:
        host: The index of its host.
        save_id: That of the manifest; ``None`` if the host has none.
        missing: Files of the manifest that are absent, have another size or, where that was checked, another CRC-32.
        problem: Why the folder cannot be used on this host, whatever other hosts have.
    """

    host: int
    save_id: Optional[str] = None
    missing: FrozenSet[str] = frozenset()
    problem: Optional[str] = None


def complete_folder(trainer: Trainer, path: str) -> Optional[str]:
    """Check a sharded checkpoint with a manifest, and send each host the files that it lacks. Every rank must call it.

    The ranks of a host share the check of its files: names, sizes and CRC-32. A file that a host lacks, or has
    corrupted or of another save, is sent by the strategy's broadcast from a host that has it, into the folder, where it
    appears complete; at most 64 GiB in 10 minutes. On one host nothing is sent.

    Args:
        trainer: The trainer, whose process group exists.
        path: The folder, which has the same path on every host. A host may lack it altogether.

    Returns:
        Why the checkpoint cannot be used, the same on every rank; ``None`` if every host has all of it now.

    Raises:
        CheckpointError: What a host lacks is too large, takes too long or cannot be written.
    """
    host = int(strategy_of(trainer).node_rank) if trainer.world_size > 1 else 0
    folder, own = _read_part(path, host)
    parts = gather_objects(trainer, own)
    problem = _common_problem(parts)
    if problem is not None:
        return problem
    first = next(rank for rank, part in enumerate(parts) if part.save_id is not None)
    manifest = broadcast(trainer, None if folder is None else folder.manifest, first)
    assert manifest is not None
    checked = _check_share(path, manifest, own, [rank for rank, part in enumerate(parts) if part.host == host], trainer)
    parts = gather_objects(trainer, checked)
    lacking: Dict[int, FrozenSet[str]] = {}
    for part in parts:
        lacking[part.host] = lacking.get(part.host, frozenset()) | part.missing
    nowhere = frozenset.intersection(*lacking.values())
    if nowhere or len(lacking) == 1:
        return _describe_missing(path, manifest, nowhere, len(lacking))
    _send_missing(trainer, path, manifest, parts, lacking)
    return None


def _read_part(path: str, host: int) -> Tuple[Optional[ShardedFolder], _Part]:
    if not os.path.isdir(path):
        return None, _Part(host)
    try:
        folder = ShardedFolder.read(path)
    except (CorruptedError, OSError) as error:
        return None, _Part(host, problem=str(error))
    if folder.manifest is None:
        return None, _Part(host)
    return folder, _Part(host, folder.manifest.save_id, frozenset(folder.missing), folder.extra_problem)


def _common_problem(parts: Sequence[_Part]) -> Optional[str]:
    for rank, part in enumerate(parts):
        if part.problem is not None:
            return part.problem if len({each.host for each in parts}) == 1 else f"on global_rank {rank}, {part.problem}"
    found = {part.save_id for part in parts if part.save_id is not None}
    if len(found) > 1:
        return "the hosts have it of different saves (their manifests name different ones)"
    return None if found else "no host has its manifest"


def _check_share(path: str, manifest: Manifest, own: _Part, ranks: List[int], trainer: Trainer) -> _Part:
    """Compare the CRC-32 of this rank's share of the files that its host has."""
    if own.save_id is None:
        return _Part(own.host, missing=frozenset(file.name for file in manifest.files))
    present = [file for file in manifest.files if file.name not in own.missing]
    names = [(file.name, file.size) for file in present]
    share = frozenset(share_of(names, ranks.index(trainer.global_rank), len(ranks)))
    corrupted = frozenset(
        file.name for file in present if file.name in share and not is_intact(os.path.join(path, file.name), file)
    )
    for name in sorted(corrupted):
        log.warning("global_rank %d: %s/%s is corrupted or of another save (CRC-32)", trainer.global_rank, path, name)
    return _Part(own.host, own.save_id, own.missing | corrupted)


def _describe_missing(path: str, manifest: Manifest, missing: FrozenSet[str], hosts: int) -> Optional[str]:
    if not missing:
        return None
    names = ", ".join(sorted(missing)[:3])
    where = "" if hosts == 1 else " on every host"
    return (
        f"{len(missing)} of {len(manifest.files)} files of its manifest are missing, corrupted or of another save"
        f"{where} ({names})"
    )


def _send_missing(
    trainer: Trainer, path: str, manifest: Manifest, parts: Sequence[_Part], lacking: Dict[int, FrozenSet[str]]
) -> None:
    own = parts[trainer.global_rank]
    limits = _Limits()
    files = [file for file in manifest.files if any(file.name in names for names in lacking.values())]
    if trainer.local_rank == 0 and lacking[own.host]:
        names = sorted(lacking[own.host])
        text = "global_rank %d: its host gets %d of %d files of %s from other hosts (%s)"
        log.warning(text, trainer.global_rank, len(names), len(manifest.files), path, ", ".join(names[:3]))
    for file in files:
        src = next(rank for rank, part in enumerate(parts) if file.name not in lacking[part.host])
        writes = trainer.local_rank == 0 and file.name in lacking[own.host]
        target = os.path.join(path, file.name)
        receiver = _Receiver(target if writes else None, partial(is_intact, file=file))
        problem = _transfer(trainer, target, file.size, receiver, src, limits)
        if problem is not None:
            raise CheckpointError(f"Not every host has {target}, and {problem}.", hint=_FOLDER_HINT)
    if trainer.local_rank == 0 and own.save_id is None:
        manifest.write(path)
    strategy_of(trainer).barrier("checkpoint complete on every host")
