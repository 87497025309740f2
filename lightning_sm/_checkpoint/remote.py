"""Checkpoints of a remote directory as files of this host, as far as they are needed.

A candidate is judged by its size and the few records that describe it, so only those are read: its local copy is a
sparse file of the same size. What is to be loaded is downloaded once for all processes of a host.
"""

import os
import re
import secrets
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, Dict, Optional, Set, cast

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.finished import FINISHED_FILE
from lightning_sm._checkpoint.integrity import META_FILE
from lightning_sm._checkpoint.manifest import MANIFEST
from lightning_sm._checkpoint.storage import Storage, StoredFile, is_remote
from lightning_sm._checkpoint.transfers import copy_error, download_files, remove_names
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm.errors import CheckpointError

__all__ = ["CheckpointCopies"]

_SUFFIX = ".ckpt"
_BLOCK = 256 * 1024
_THREADS = 8
# What describes a checkpoint folder. Of DeepSpeed's files the first rank's tells epoch and step.
_WHOLE = frozenset({MANIFEST, META_FILE, ".metadata", "latest"})
_DESCRIBES = re.compile(r"(zero_pp_rank_0_)?mp_rank_00_model_states\.pt")


class CheckpointCopies:
    """A checkpoint directory as a local one.

    A local directory is used as it is. Of a remote one, each host has a temporary folder with the same names and sizes.

    Args:
        directory: The directory or URL.
    """

    def __init__(self, directory: str) -> None:
        self.is_remote = is_remote(directory)
        #: The local directory.
        self.path = "" if self.is_remote else directory
        self._storage = Storage(directory) if self.is_remote else None
        self._files: Dict[str, StoredFile] = {}
        self._fetched: Set[str] = set()
        self._owns = False

    def refresh(self, trainer: Trainer) -> None:
        """Read which checkpoints there are. Every rank must call it.

        Raises:
            CheckpointError: A host could not read them; on all ranks.
        """
        if self._storage is None:
            return
        if not self.path:
            token = broadcast(trainer, secrets.token_hex(8))
            # Hosts that are simulated on one machine share its temporary directory.
            self.path = os.path.join(tempfile.gettempdir(), f"lightning-sm-{token}-{trainer.node_rank}")
        error: Optional[CheckpointError] = None
        self._owns = trainer.local_rank == 0
        if self._owns:
            try:
                self._copy_descriptions(self._storage)
            except CheckpointError as caught:
                error = caught
            except OSError as caught:
                error = copy_error(self._storage.url, caught)
        if any_true(trainer, error is not None):
            raise error or CheckpointError(
                f"Another process could not read the checkpoints in {self._storage.url}.", hint="Its log says why."
            )

    def fetch(self, name: str) -> None:
        """Download a checkpoint, so that the local copy is a complete one. Local rank 0 of each host calls it.

        Raises:
            CorruptedError: It was replaced or removed since :meth:`refresh`.
            CheckpointError: The storage does not return it, or the local disk is full.
        """
        if self._storage is None or name in self._fetched:
            return
        files = [file for file in self._files.values() if file.name == name or file.name.startswith(f"{name}/")]
        download_files(self._storage, files, self.path, name)
        self._fetched.add(name)

    def release(self) -> None:
        """Free the disk space of what was downloaded. The descriptions stay."""
        for name in self._fetched:
            remove(os.path.join(self.path, name))
            self._forget(name)
        self._fetched.clear()

    def close(self) -> None:
        """Remove the temporary folder, if this process made it."""
        if self._storage is not None and self.path:
            if self._owns:
                remove(self.path)
            self._files, self.path = {}, ""
            self._fetched.clear()

    def publish(self, name: str) -> None:
        """Upload a small file that was written to :attr:`path`.

        Raises:
            CheckpointError: The storage does not take it.
        """
        if self._storage is not None:
            with open(os.path.join(self.path, name), "rb") as file:
                self._storage.write(name, file.read())

    def withdraw(self, name: str) -> None:
        """Remove a small file that was in the directory at the last :meth:`refresh`; errors are logged."""
        if self._storage is not None and name in self._files:
            remove_names(self._storage.url, [name])
            self._forget(name)

    def _copy_descriptions(self, storage: Storage) -> None:
        os.makedirs(self.path, exist_ok=True)
        found = {name: file for name, file in storage.files().items() if _is_of_checkpoint(name)}
        for name in set(self._files) - set(found):
            remove(os.path.join(self.path, name))
        new = [file for name, file in found.items() if self._files.get(name) != file]
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda file: _describe(storage, file, self.path), new):
                pass
        self._files = found

    def _forget(self, name: str) -> None:
        self._files = {
            each: file for each, file in self._files.items() if each != name and not each.startswith(f"{name}/")
        }


def _is_of_checkpoint(name: str) -> bool:
    """Whether a name is that of a checkpoint, of a file in a checkpoint folder, or of ``finished.json``."""
    if name == FINISHED_FILE:
        return True
    for part in name.split("/"):
        if part.startswith("."):
            return False
        if part.endswith(_SUFFIX):
            return True
    return False


def _describe(storage: Storage, file: StoredFile, folder: str) -> None:
    """Make a local file of the same size, with the contents that describe the checkpoint."""
    path = os.path.join(folder, file.name)
    parents, base = os.path.split(file.name)
    remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    is_archive = base.endswith(_SUFFIX) if not parents.endswith(_SUFFIX) else False
    with open(path, "w+b") as target, suppress(FileNotFoundError):  # removed since it was listed
        if file.size <= _BLOCK or base in _WHOLE:
            target.write(storage.read(file.name) if file.size else b"")
            return
        target.truncate(file.size)
        if is_archive or _DESCRIBES.fullmatch(base):
            # A file that is no archive is judged by the same bytes as a local one.
            with suppress(zipfile.BadZipFile, EOFError, ValueError, RuntimeError):
                archive = zipfile.ZipFile(cast(IO[bytes], _PartialCopy(storage, file, target)))
                for name in [name for name in archive.namelist() if name.endswith("/data.pkl")][:1]:
                    archive.read(name)


class _PartialCopy:
    """A file of the storage for ``zipfile``, which writes each block that is read to the local copy."""

    def __init__(self, storage: Storage, file: StoredFile, copy: Any) -> None:
        self._storage, self._file, self._copy = storage, file, copy
        self._blocks: Set[int] = set()

    def read(self, size: int = -1) -> bytes:
        start = self._copy.tell()
        end = self._file.size if size < 0 else min(start + size, self._file.size)
        for block in range(start // _BLOCK, -(-end // _BLOCK)):
            if block not in self._blocks:
                at = block * _BLOCK
                self._copy.seek(at)
                self._copy.write(self._storage.read(self._file.name, at, min(at + _BLOCK, self._file.size)))
                self._blocks.add(block)
        self._copy.seek(start)
        return bytes(self._copy.read(end - start))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._copy.seek(offset, whence))

    def tell(self) -> int:
        return int(self._copy.tell())

    def seekable(self) -> bool:
        return True
