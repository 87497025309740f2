"""Makes a checkpoint that lies on the main host only loadable on every host, for a test, validation or prediction.

``ModelCheckpoint`` writes on global rank 0, and Lightning then loads ``ckpt_path="best"`` on every rank.
"""

import hashlib
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.contents import DamagedError, check_and_digest, list_records
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["on_every_host"]

_CHUNK = 32 * 1024**2
_LARGEST = 64 * 1024**3
_LONGEST_SECONDS = 600.0
_HINT = (
    "Test in a job of one host, which reads the checkpoint from S3, or write checkpoints to a file system that all "
    "hosts share."
)


@dataclass(frozen=True)
class _File:
    """A file as hosts compare it.

    Args:
        path: Where it is.
        size: Its bytes.
        contents: A digest of it; nothing where there is no file.
    """

    path: str
    size: int = 0
    contents: str = ""

    @classmethod
    def read(cls, path: str) -> "_File":
        """Read the checksums that torch writes beside the contents, or all of it where there are none."""
        if not os.path.isfile(path):
            return cls(path)
        try:
            records = [(record.name, record.size, record.crc) for record in list_records(path)]
        except DamagedError:
            records = []
        if records and all(crc is not None for _, _, crc in records):
            contents = hashlib.sha256(repr(records).encode()).hexdigest()
        else:
            contents = check_and_digest(path, check=False)
        return cls(path, os.path.getsize(path), contents)


@contextmanager
def on_every_host(trainer: Any, path: Any) -> Iterator[Any]:
    """Yield where this rank finds the checkpoint that rank 0 names, as long as it is loaded. Every rank must enter it.

    ``path`` may differ: ``last`` is looked for among the files of each host. The file is sent in chunks by the
    strategy's broadcast, up to 64 GiB and 10 minutes, into a temporary folder of each host that lacks it.

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
    source = broadcast(trainer, _File.read(named) if trainer.is_global_zero else _File(named))
    lacks = bool(source.contents) and not trainer.is_global_zero and _File.read(named) != source
    if not any_true(trainer, lacks):
        yield named
        return
    folder = os.path.join(tempfile.gettempdir(), f"lightning-sm-{source.contents[:32]}")
    copy = os.path.join(folder, os.path.basename(named))
    # All processes of a host see the file that its first one writes.
    writes = lacks and trainer.local_rank == 0
    if trainer.is_global_zero:
        log.info("Sending %s (%d bytes) to the hosts that lack it", named, source.size)
    try:
        _send(trainer, source, copy if writes else None)
        yield copy if lacks else named
        strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        if writes:
            remove(folder)


def _send(trainer: Any, source: _File, copy: Optional[str]) -> None:
    receiver = _Receiver(source, copy)
    chunks = _chunks(source) if trainer.is_global_zero else iter(())
    while True:
        chunk = broadcast(trainer, next(chunks, None))
        if not isinstance(chunk, bytes):
            break
        receiver.write(chunk)
    if chunk is not None:
        raise CheckpointError(f"{source.path} is on the main host only, and {chunk}.", hint=_HINT)
    problem = receiver.close()
    if problem:
        log.error("%s could not be received by global_rank %d: %s", source.path, trainer.global_rank, problem)
    if any_true(trainer, bool(problem)):
        where = f"global_rank {trainer.global_rank} could not receive it ({problem})"
        why = where if problem else "another host could not receive it, as its log says"
        raise CheckpointError(f"{source.path} is on the main host only: {why}.", hint=_HINT)


class _Receiver:
    """Writes a file, and keeps an error to itself, because the other hosts go on receiving."""

    def __init__(self, source: _File, copy: Optional[str]) -> None:
        self._source, self._copy = source, copy
        self._problem = ""
        try:
            if copy is not None:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                open(copy, "wb").close()
        except OSError as error:
            self._problem = str(error)

    def write(self, chunk: bytes) -> None:
        """Append to the file."""
        if self._copy is None or self._problem:
            return
        try:
            with open(self._copy, "ab") as file:
                file.write(chunk)
        except OSError as error:
            self._problem = str(error)

    def close(self) -> str:
        """Return what is wrong with the file, or nothing."""
        if self._copy is not None and not self._problem and _File.read(self._copy).contents != self._source.contents:
            self._problem = "other bytes have arrived"
        return self._problem


def _chunks(source: _File) -> Iterator[Any]:
    """Yield the file's bytes, or words for why it is not sent."""
    if source.size > _LARGEST:
        yield f"its {source.size} bytes are more than the {_LARGEST} that are sent"
        return
    until = time.monotonic() + _LONGEST_SECONDS
    try:
        with open(source.path, "rb") as file:
            for chunk in iter(lambda: file.read(_CHUNK), b""):
                if time.monotonic() > until:
                    yield f"sending it takes more than {_LONGEST_SECONDS:.0f} s"
                    return
                yield chunk
    except OSError as error:
        yield f"it cannot be read there ({error})"
