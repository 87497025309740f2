"""``Manifest``: which files make up a sharded checkpoint, with their sizes and CRC-32.

A sharded checkpoint is a folder. Where hosts have no file system in common, each writes its own shards there, and
SageMaker copies the folders of all hosts to one prefix, file by file. The manifest, the same in the folder of every
host, tells whether all of them have arrived, and that they belong to one save.
"""

import json
import os
import secrets
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Optional, Tuple

from lightning_sm._atomic_file import flush
from lightning_sm._checkpoint.integrity import CorruptedError

__all__ = ["FORMATS", "MANIFEST", "Manifest", "ShardFile", "file_crc32", "new_save_id"]

#: Name of the manifest in the folder.
MANIFEST = "manifest.json"
#: ``dcp`` is written by ``torch.distributed.checkpoint`` (FSDP, FSDP2), ``deepspeed`` by DeepSpeed's engine.
FORMATS = ("dcp", "deepspeed")
_CHUNK = 8 * 1024 * 1024


def new_save_id() -> str:
    """Return 16 random hexadecimal digits that identify one save."""
    return secrets.token_hex(8)


def file_crc32(path: str) -> int:
    """Return the CRC-32 of a file.

    Raises:
        OSError: It cannot be read.
    """
    crc = 0
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            crc = zlib.crc32(chunk, crc)
    return crc


@dataclass(frozen=True)
class ShardFile:
    """One file of a sharded checkpoint.

    Args:
        name: Its path relative to the folder, with ``/`` inside.
        size: Its size in bytes.
        crc32: The CRC-32 of its contents.
    """

    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """All files of a sharded checkpoint but the manifest itself.

    Args:
        format: One of :data:`FORMATS`.
        world_size: The number of processes that saved it.
        save_id: Identifies the save, so that shards of two saves do not pass as one checkpoint.
        files: The files of all hosts, sorted by name.
    """

    format: str
    world_size: int
    save_id: str
    files: Tuple[ShardFile, ...]

    @property
    def size(self) -> int:
        """The size in bytes of all files."""
        return sum(file.size for file in self.files)

    @classmethod
    def read(cls, folder: str) -> Optional["Manifest"]:
        """Return the manifest in a folder, or ``None`` if there is none.

        Args:
            folder: The checkpoint.

        Raises:
            CorruptedError: It is not as :meth:`write` writes it.
            OSError: It cannot be read.
        """
        try:
            with open(os.path.join(folder, MANIFEST), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return cls.from_json(content)

    @classmethod
    def from_json(cls, content: bytes) -> "Manifest":
        """Return the manifest that :meth:`to_json` made ``content`` of.

        Raises:
            CorruptedError: It is not as :meth:`to_json` makes it.
        """
        try:
            found = json.loads(content)
            files = tuple(_shard_file(each) for each in found["files"])
            manifest = cls(str(found["format"]), int(found["world_size"]), str(found["save_id"]), files)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptedError(f"its {MANIFEST} cannot be read ({type(error).__name__}: {error})") from error
        if manifest.format not in FORMATS:
            raise CorruptedError(f"its {MANIFEST} has the unknown format {manifest.format!r}")
        if not files:
            raise CorruptedError(f"its {MANIFEST} lists no file")
        if len({file.name for file in files}) != len(files):
            raise CorruptedError(f"its {MANIFEST} lists a file twice")
        return manifest

    def to_json(self) -> bytes:
        """Return the manifest as JSON, one file in a line."""
        head = {key: value for key, value in asdict(self).items() if key != "files"}
        lines = ",\n".join(json.dumps(asdict(file)) for file in self.files)
        return f'{json.dumps(head)[:-1]}, "files": [\n{lines}\n]}}\n'.encode()

    def write(self, folder: str) -> None:
        """Write the manifest into a folder, and flush it.

        Args:
            folder: The checkpoint, which is not visible under its final name yet.

        Raises:
            OSError: It cannot be written.
        """
        path = os.path.join(folder, MANIFEST)
        with open(path, "wb") as file:
            file.write(self.to_json())
        flush(path)

    def problems(self, folder: str, *, check_contents: bool) -> Tuple[str, ...]:
        """Return why the folder is not the whole checkpoint; nothing if it is.

        Files that the manifest does not list are ignored: SageMaker's uploader may leave some of its own.

        Args:
            folder: The checkpoint, with the files of all hosts.
            check_contents: Whether to compare the CRC-32 of each file, which reads all of it; otherwise its size only.
        """
        return tuple(filter(None, (_problem(folder, file, check_contents) for file in self.files)))


def _shard_file(found: Any) -> ShardFile:
    file = ShardFile(str(found["name"]), int(found["size"]), int(found["crc32"]))
    # It is joined to the path of the folder.
    if file.name.startswith("/") or any(part in ("", ".", "..") for part in file.name.split("/")):
        raise ValueError(f"{file.name!r} is no path within the checkpoint")
    return file


def _problem(folder: str, file: ShardFile, check_contents: bool) -> Optional[str]:
    path = os.path.join(folder, file.name)
    try:
        found = _size_problem(file, os.path.getsize(path) if os.path.isfile(path) else None)
        if found is None and check_contents and file_crc32(path) != file.crc32:
            found = f"its {file.name} is corrupted, or of another save (CRC-32 mismatch)"
    except OSError as error:
        found = f"its {file.name} cannot be read ({error})"
    return found


def _size_problem(file: ShardFile, size: Optional[int]) -> Optional[str]:
    if size is None:
        return f"it is incomplete: {file.name} is missing"
    if size != file.size:
        return f"its {file.name} has {size} bytes instead of {file.size}"
    return None
