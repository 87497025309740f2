"""``CheckpointRecord`` and ``FitRecord``: what a job says of a checkpoint and of a fit, as JSON beside it."""

import json
import os
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Mapping, Optional, Tuple

__all__ = ["MANIFEST", "CheckpointRecord", "CorruptedError", "FitRecord", "SavedFile", "read_manifest"]

#: The name of the record in the folder of a sharded checkpoint. Where hosts have no file system in common, each writes
#: its own shards, and SageMaker copies the folders of all hosts to one prefix, file by file. The record, the same in
#: the folder of every host, tells whether all of them have arrived, and that they belong to one save.
MANIFEST = "manifest.json"
_CHUNK = 8 * 1024 * 1024


class CorruptedError(ValueError):
    """A checkpoint is incomplete or modified. The message is the reason, as it appears in log lines."""


def _crc32(path: str) -> int:
    crc = 0
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            crc = zlib.crc32(chunk, crc)
    return crc


def _is_within(name: str) -> bool:
    """Whether a path names something within the directory that it is relative to."""
    return not any(part in ("", ".", "..") for part in name.split("/"))


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint.

    Args:
        name: Its path relative to the directory of the record, with ``/`` inside.
        size: Its size in bytes.
        crc32: The CRC-32 of its contents; ``None`` if nobody has read it.
    """

    name: str
    size: int
    crc32: Optional[int] = None

    @classmethod
    def of(cls, name: str, content: bytes) -> "SavedFile":
        """Return a file with this content."""
        return cls(name, len(content), zlib.crc32(content))

    @classmethod
    def read(cls, directory: str, name: str) -> "SavedFile":
        """Return what a file is now.

        Raises:
            OSError: It cannot be read.
        """
        path = os.path.join(directory, name)
        return cls(name, os.path.getsize(path), _crc32(path))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "SavedFile":
        """Return the file that :func:`dataclasses.asdict` described.

        Raises:
            ValueError: The name leads out of the directory.
        """
        crc32 = found["crc32"]
        file = cls(str(found["name"]), int(found["size"]), None if crc32 is None else int(crc32))
        if not _is_within(file.name):
            raise ValueError(f"{file.name!r} is no path within the checkpoint")
        return file

    def problem(self, path: str) -> Optional[str]:
        """Why what is at a path, under any name, is not this file; ``None`` if it is."""
        try:
            size = os.path.getsize(path)
            if size != self.size:
                return f"{self.name} has {size} bytes instead of {self.size}"
            if self.crc32 not in (None, _crc32(path)):
                return f"{self.name} is corrupted, or of another save (CRC-32 mismatch)"
        except FileNotFoundError:
            return f"{self.name} is missing"
        except OSError as error:
            return f"{self.name} cannot be read ({error})"
        return None


@dataclass(frozen=True)
class CheckpointRecord:
    """One checkpoint: ``step-N.json`` beside ``step-N.ckpt``, a file or a folder of shards, or :data:`MANIFEST` in one.

    Args:
        name: The name of the checkpoint; with Fabric its path relative to the job's checkpoint directory.
        number: Counts the saves of a fit; the newest save has the largest.
        step: The number of optimizer steps.
        epoch: The epoch in which training continues.
        kind: The moment of the save, a value of ``lightning_sm._lightning.restart.SavePoint``; of other callbacks none.
        world_size: The number of processes that saved it.
        strategy: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_N`` for a folder; empty for a single file.
        save_id: Identifies the save, as a later save may have the same name.
        time: When it was saved, in seconds since 1970.
        job: The job that saved it, a :class:`ProgramIdentity` as plain values.
        model: What was trained, a :class:`ModelIdentity` as plain values.
        files: All files of the checkpoint, of all hosts.
    """

    name: str
    number: int = 0
    step: int = 0
    epoch: int = 0
    kind: str = ""
    world_size: int = 0
    strategy: str = ""
    save_id: str = ""
    time: float = 0.0
    job: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    files: Tuple[SavedFile, ...] = ()

    @property
    def file_name(self) -> str:
        """The name of the record's own file."""
        return f"{os.path.splitext(self.name)[0]}.json"

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, step {self.step})"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "CheckpointRecord":
        """Return the record of which ``asdict`` made this.

        Raises:
            KeyError, TypeError, ValueError: It is no such record.
        """
        record = cls(**{**content, "files": tuple(map(SavedFile.from_json, content["files"]))})
        is_name = isinstance(record.name, str) and _is_within(record.name)
        names = {file.name for file in record.files}
        if not (is_name and isinstance(record.number, int) and names and len(names) == len(record.files)):
            raise ValueError("it is no record of a checkpoint")
        return record

    @classmethod
    def parse(cls, content: bytes) -> "CheckpointRecord":
        """Return the record that the file in a folder of shards holds.

        Raises:
            CorruptedError: It holds none.
        """
        try:
            return cls.from_json(json.loads(content))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptedError(f"its {MANIFEST} cannot be read ({type(error).__name__}: {error})") from error

    def problem(self, directory: str) -> Optional[str]:
        """Why files in a directory are not the whole checkpoint, by sizes and CRC-32; ``None`` if they are."""
        problems = (file.problem(os.path.join(directory, file.name)) for file in self.files)
        return next((f"its {problem}" for problem in problems if problem is not None), None)


@dataclass(frozen=True)
class FitRecord:
    """What is known of one fit of a program: ``fit.json``.

    Args:
        job: The job that trains it.
        present: The checkpoints of the project's own callbacks that were there before the fit; others may be replaced
            when the fit is resumed.
        ended: Whether training and all ``on_train_end`` hooks have ended.
        weights: The file with the weights after ``on_train_end``, where callbacks change them there.
        raised: The error that it raised, and the step, where it has not ended.
    """

    #: The name of the record's file.
    file_name: ClassVar[str] = "fit.json"
    job: Mapping[str, Any] = field(default_factory=dict)
    present: Tuple[str, ...] = ()
    ended: bool = False
    weights: Optional[SavedFile] = None
    raised: Optional[str] = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "FitRecord":
        """Return the record of which ``asdict`` made this.

        Raises:
            KeyError, TypeError, ValueError: It is no such record.
        """
        weights = content["weights"]
        record = cls(**{**content, "present": tuple(content["present"]), "weights": None})
        return record if weights is None else replace(record, weights=SavedFile.from_json(weights))


def read_manifest(folder: str) -> Optional[CheckpointRecord]:
    """Return the record in the folder of a sharded checkpoint, or ``None`` if there is none.

    Raises:
        CorruptedError: It is not whole.
        OSError: It cannot be read.
    """
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            return CheckpointRecord.parse(file.read())
    except FileNotFoundError:
        return None
