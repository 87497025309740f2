"""Broadcast of a checkpoint that only the main host has, so that every host can load it.

``ModelCheckpoint`` writes on global rank 0, and ``trainer.test(ckpt_path="best")`` loads the file on every rank.
"""

import hashlib
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.integrity import CorruptedError, file_records, verify_and_hash
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["broadcast_missing_file"]

_CHUNK = 32 * 1024**2
_MAX_BYTES = 64 * 1024**3
_MAX_SECONDS = 600.0
_HINT = (
    "Run the test in a job with one host, which reads the checkpoint from S3, or write checkpoints to a file system "
    "that all hosts share."
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
    10 minutes, to a temporary directory that is removed when the block ends.

    Args:
        trainer: The trainer, whose process group exists.
        path: What this rank would load.

    Raises:
        CheckpointError: The file is too large, takes too long or cannot be written.
    """
    if trainer.world_size == 1 or trainer.num_nodes == 1:
        yield path
        return
    named = broadcast(trainer, None if path is None else os.fspath(path))
    if named is None or "://" in named:
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
        _transfer(trainer, source, copy if writes else None)
        yield copy if is_missing else named
        strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        if writes:
            remove(folder)


def _transfer(trainer: Trainer, source: _FileInfo, copy: Optional[str]) -> None:
    receiver = _Receiver(source, copy)
    chunks = _chunks(source) if trainer.is_global_zero else iter(())
    while True:
        chunk = broadcast(trainer, next(chunks, None))
        if not isinstance(chunk, bytes):
            break
        receiver.write(chunk)
    if chunk is not None:
        raise CheckpointError(f"Only the main host has {source.path}, and {chunk}.", hint=_HINT)
    problem = receiver.close()
    if problem:
        log.error("global_rank %d could not receive %s: %s", trainer.global_rank, source.path, problem)
    if any_true(trainer, bool(problem)):
        own = f"global_rank {trainer.global_rank} could not receive it ({problem})"
        reason = own if problem else "another host could not receive it (see its log)"
        raise CheckpointError(f"Only the main host has {source.path}: {reason}.", hint=_HINT)


class _Receiver:
    """Writes the file. An error is kept until :meth:`close`, because every rank must take part in each broadcast."""

    def __init__(self, source: _FileInfo, copy: Optional[str]) -> None:
        self._source, self._copy = source, copy
        self._problem = ""
        try:
            if copy is not None:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                open(copy, "wb").close()
        except OSError as error:
            self._problem = str(error)

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        if self._copy is None or self._problem:
            return
        try:
            with open(self._copy, "ab") as file:
                file.write(chunk)
        except OSError as error:
            self._problem = str(error)

    def close(self) -> str:
        """Return what is wrong with the file, or an empty string."""
        if self._copy is not None and not self._problem and _FileInfo.read(self._copy).digest != self._source.digest:
            self._problem = "its checksums do not match"
        return self._problem


def _chunks(source: _FileInfo) -> Iterator[Any]:
    """Yield the file's bytes, or a string with the reason why it is not sent."""
    if source.size > _MAX_BYTES:
        yield f"its {source.size} bytes exceed the limit of {_MAX_BYTES} for a broadcast"
        return
    deadline = time.monotonic() + _MAX_SECONDS
    try:
        with open(source.path, "rb") as file:
            for chunk in iter(lambda: file.read(_CHUNK), b""):
                if time.monotonic() > deadline:
                    yield f"its broadcast takes more than {_MAX_SECONDS:.0f} s"
                    return
                yield chunk
    except OSError as error:
        yield f"it cannot be read there ({error})"
