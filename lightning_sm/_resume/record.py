"""``CheckpointRecord`` and ``FitRecord``: what a job says of a save and of a fit, as JSON beside the checkpoint."""

import json
import os
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm._atomic_file import replace_atomically

__all__ = ["CheckpointRecord", "CorruptedError", "FitRecord", "SavedFile", "file_crc32", "write_json"]

_CHUNK = 8 * 1024 * 1024


class CorruptedError(ValueError):
    """A checkpoint is incomplete or modified. The message is the reason, as it appears in log lines."""


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
class SavedFile:
    """One file of a checkpoint.

    Args:
        name: Its path relative to the directory of the record, with ``/`` inside.
        size: Its size in bytes.
        crc32: The CRC-32 of its contents.
    """

    name: str
    size: int
    crc32: int

    @classmethod
    def read(cls, directory: str, name: str) -> "SavedFile":
        """Return what a file is now.

        Raises:
            OSError: It cannot be read.
        """
        path = os.path.join(directory, name)
        return cls(name, os.path.getsize(path), file_crc32(path))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "SavedFile":
        """Return the file that :func:`dataclasses.asdict` described.

        Raises:
            ValueError: The name leads out of the directory.
        """
        file = cls(str(found["name"]), int(found["size"]), int(found["crc32"]))
        if file.name.startswith("/") or any(part in ("", ".", "..") for part in file.name.split("/")):
            raise ValueError(f"{file.name!r} is no path within the checkpoint")
        return file

    def is_at(self, path: str) -> bool:
        """Whether the file at a path, under any name, has this size and CRC-32.

        Raises:
            OSError: It cannot be read.
        """
        return os.path.getsize(path) == self.size and file_crc32(path) == self.crc32

    def is_intact(self, directory: str) -> bool:
        """Whether the file is there with its size and CRC-32."""
        try:
            return self.is_at(os.path.join(directory, self.name))
        except OSError:
            return False


def write_json(path: str, content: Any) -> None:
    """Write a small JSON file atomically.

    Raises:
        OSError: It cannot be written.
    """
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name}.new")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    replace_atomically(partial, path)


@dataclass(frozen=True)
class CheckpointRecord:
    """One save of the job's own series: ``step-N.json`` beside ``step-N.ckpt``, a file or a folder of shards.

    Args:
        name: The name of the checkpoint, ``step-N.ckpt``.
        number: Counts the saves of a fit; the newest save has the largest.
        step: The number of optimizer steps.
        epoch: The epoch in which training continues.
        kind: The moment of the save, a value of ``lightning_sm._lightning.restart.SavePoint``.
        world_size: The number of processes that saved it.
        strategy: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_N`` for a folder; empty for a single file.
        save_id: Identifies the save, as a later save may have the same name.
        time: When it was saved, in seconds since 1970.
        job: The job that saved it, as :meth:`ProgramIdentity.to_json` says.
        model: What was trained, as :meth:`ModelIdentity.to_json` says.
        files: All files of the checkpoint, of all hosts.
        rest: The file with all but weights and states of optimizers, where those are a hard link to the checkpoint of
            a callback of the project.
    """

    name: str
    number: int
    step: int
    epoch: int
    kind: str
    world_size: int
    strategy: str = ""
    save_id: str = ""
    time: float = 0.0
    job: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    files: Tuple[SavedFile, ...] = ()
    rest: Optional[str] = None

    @property
    def file_name(self) -> str:
        """The name of the record's own file."""
        return f"{os.path.splitext(self.name)[0]}.json"

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, step {self.step})"

    def to_json(self) -> Dict[str, Any]:
        """Return the record as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "CheckpointRecord":
        """Return the record that :meth:`to_json` described.

        Raises:
            KeyError, TypeError, ValueError: It is no such record.
        """
        record = cls(**{**content, "files": ()})
        files = tuple(map(SavedFile.from_json, content["files"]))
        is_name = record.name not in ("", ".", "..") and os.path.basename(record.name) == record.name
        if not (is_name and isinstance(record.number, int) and files):
            raise ValueError("it is no record of a checkpoint")
        return replace(record, files=files)


@dataclass(frozen=True)
class FitRecord:
    """What is known of one fit of a program: ``fit.json``.

    Args:
        job: The job that trains it.
        model: What is trained.
        present: The checkpoints of the project's own callbacks that were there before the fit; others may be replaced
            when the fit is resumed.
        ended: Whether training and all ``on_train_end`` hooks have ended.
        checkpoint: The checkpoint that was saved when training ended.
        criteria: What ends it, such as ``max_epochs``.
        weights: The file with the weights after ``on_train_end``, where callbacks change them there.
    """

    job: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    present: Tuple[str, ...] = ()
    ended: bool = False
    checkpoint: Optional[str] = None
    criteria: Mapping[str, Any] = field(default_factory=dict)
    weights: Optional[SavedFile] = None

    def to_json(self) -> Dict[str, Any]:
        """Return the record as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "FitRecord":
        """Return the record that :meth:`to_json` described.

        Raises:
            KeyError, TypeError, ValueError: It is no such record.
        """
        weights = content["weights"]
        record = cls(**{**content, "present": tuple(content["present"]), "weights": None})
        return record if weights is None else replace(record, weights=SavedFile.from_json(weights))
