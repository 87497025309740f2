"""``Manifest``: which files make up a sharded checkpoint, with their sizes and CRC-32.

A sharded checkpoint is a folder. Where hosts have no file system in common, each writes its own shards there, and
SageMaker copies the folders of all hosts to one prefix, file by file. The manifest, the same in the folder of every
host, tells whether all of them have arrived, and that they belong to one save.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import Optional, Tuple

from lightning_sm._atomic_file import flush
from lightning_sm._resume.record import CorruptedError, SavedFile, file_crc32

__all__ = ["FORMATS", "MANIFEST", "Manifest", "has_manifest", "new_save_id"]

#: Name of the manifest in the folder.
MANIFEST = "manifest.json"
#: ``dcp`` is written by ``torch.distributed.checkpoint`` (FSDP, FSDP2), ``deepspeed`` by DeepSpeed's engine.
FORMATS = ("dcp", "deepspeed")


def new_save_id() -> str:
    """Return 16 random hexadecimal digits that identify one save."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Manifest:
    """All files of a sharded checkpoint but the manifest itself.

    Args:
        format: One of :data:`FORMATS`.
        world_size: The number of processes that saved it.
        save_id: Identifies the save, so that shards of two saves do not pass as one checkpoint.
        files: The files of all hosts, sorted by name.
        strategy: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_N``.
    """

    format: str
    world_size: int
    save_id: str
    files: Tuple[SavedFile, ...]
    strategy: str = ""

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
            files = tuple(SavedFile.from_json(each) for each in found["files"])
            head = str(found["format"]), int(found["world_size"]), str(found["save_id"])
            manifest = cls(*head, files, str(found["strategy"]))
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

    def problems(self, folder: str) -> Tuple[str, ...]:
        """Return why the folder is not the whole checkpoint, by sizes and CRC-32; nothing if it is.

        Files that the manifest does not list are ignored: SageMaker's uploader may leave some of its own.

        Args:
            folder: The checkpoint, with the files of all hosts.
        """
        return tuple(filter(None, (_problem(folder, file) for file in self.files)))


def has_manifest(path: str) -> bool:
    """Whether a path is a sharded checkpoint with a manifest, also with one that cannot be read."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def _problem(folder: str, file: SavedFile) -> Optional[str]:
    path = os.path.join(folder, file.name)
    try:
        if not os.path.isfile(path):
            return f"it is incomplete: {file.name} is missing"
        size = os.path.getsize(path)
        if size != file.size:
            return f"its {file.name} has {size} bytes instead of {file.size}"
        if file_crc32(path) != file.crc32:
            return f"its {file.name} is corrupted, or of another save (CRC-32 mismatch)"
    except OSError as error:
        return f"its {file.name} cannot be read ({error})"
    return None
