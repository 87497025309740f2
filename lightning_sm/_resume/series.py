"""``Series``: the checkpoints that a job keeps of one fit, in a directory of their own, with their records.

``<checkpoint directory>/<program>-<digits>/fit-K/step-N.ckpt`` is a file or a folder of shards; ``step-N.json`` beside
it, which is written last, is its :class:`CheckpointRecord`, and ``fit.json`` the :class:`FitRecord`.
"""

import json
import os
import re
from dataclasses import asdict, replace
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, TypeVar, Union

from lightning_sm._logging import log
from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile
from lightning_sm._resume.storage import Storage
from lightning_sm.errors import CheckpointError

__all__ = [
    "STATE_KEY",
    "Series",
    "complete_record",
    "is_in_series",
    "newest_first",
    "other_series",
    "remove_from",
    "saved_record",
]

#: Key of what is added to the checkpoints of a series; its entry ``record`` is the record without files.
STATE_KEY = "lightning_sm"
_PROGRAM = re.compile(r".*-[0-9a-f]{6}")
_RECORD = re.compile(r"step-\d+(-\d+)?\.json")
_SAVE = re.compile(r"step-\d+(-\d+)?\.ckpt")
_Value = TypeVar("_Value")
# The newest, and one before it: the newest may be damaged or not have been uploaded whole.
_KEPT = 2


def is_in_series(path: str) -> bool:
    """Whether a path relative to a checkpoint directory is in the folder of a fit."""
    program, _, below = path.partition("/")
    return _PROGRAM.fullmatch(program) is not None and _fit_number(below.partition("/")[0]) >= 0


class Series:
    """The saves of one fit.

    Args:
        root: The job's checkpoint directory, or its URL.
        program: The name of the directory of the program's fits.
        number: The number of the fit in its program.

    Raises:
        CheckpointError: A storage does not answer (in any method).
        OSError: A local directory cannot be used (in any method).
    """

    def __init__(self, root: str, program: str, number: int) -> None:
        self.root, self.program, self.number = root.rstrip("/"), program, number
        #: The directory or URL of the fit.
        self.directory = f"{self.root}/{program}/fit-{number}"
        self.storage = Storage(self.directory)

    def path(self, name: str) -> str:
        """The path or URL of a checkpoint, record or other file."""
        return f"{self.directory}/{name}"

    def records(self) -> List[CheckpointRecord]:
        """Return the records of this host, newest first; one that cannot be read is named in the log."""
        names = [name for name in self.storage.names() if _RECORD.fullmatch(name)]
        found = (self._read(name, CheckpointRecord.from_json) for name in names)
        return newest_first(record for record in found if record is not None)

    def fit(self) -> Optional[FitRecord]:
        """Return the record of the fit, or ``None``."""
        return self._read(FitRecord.file_name, FitRecord.from_json)

    def write(self, record: Union[CheckpointRecord, FitRecord]) -> None:
        """Write the record of a save, or that of the fit."""
        self.storage.write(record.file_name, json.dumps(asdict(record), indent=1).encode())

    def _read(self, name: str, parse: Callable[[Any], _Value]) -> Optional[_Value]:
        try:
            return parse(json.loads(self.storage.read(name)))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("Skipped %s: it cannot be read (%s: %s)", self.path(name), type(error).__name__, error)
            return None

    def remove_but(self, kept: Iterable[str]) -> None:
        """Remove all checkpoints of the fit but these, each record before its checkpoint."""
        stems = {os.path.splitext(name)[0] for name in kept}
        found = [name for name in self.storage.names() if _RECORD.fullmatch(name) or _SAVE.fullmatch(name)]
        old = [name for name in found if os.path.splitext(name)[0] not in stems]
        remove_from(self.storage, sorted(old, key=lambda name: not name.endswith(".json")))

    def remove_replaced(self) -> None:
        """Remove all but the newest saves of the fit on this host, when no thread is writing there."""
        self.remove_but([record.name for record in self.records()[:_KEPT]])

    def remove_later_fits(self) -> None:
        """Remove the saves of the program's later fits, which started from what is trained anew now."""
        program = Storage(f"{self.root}/{self.program}")
        # A hidden one is what a kill has left of such a removal.
        later = [name for name in program.names() if _fit_number(name) > self.number or name.startswith(".fit-")]
        remove_from(program, later)

    def thin_out_earlier(self) -> None:
        """Keep the last save only of the fits before this one on this host, when this one has ended."""
        for number in range(self.number):
            earlier = Series(self.root, self.program, number)
            earlier.remove_but([record.name for record in earlier.records()[:1]])


def remove_from(storage: Storage, names: Iterable[str]) -> None:
    """Remove files or folders. What remains at a URL is logged: it is no harm."""
    for name in names:
        try:
            storage.remove(name)
        except CheckpointError as error:
            log.warning("%s", error)


def newest_first(records: Iterable[CheckpointRecord]) -> List[CheckpointRecord]:
    """Return records sorted, the newest first."""
    return sorted(records, key=lambda record: record.number, reverse=True)


def other_series(root: str, program: str) -> Tuple[str, ...]:
    """Return the names of the directories of other programs' fits in a checkpoint directory.

    Raises:
        CheckpointError: A storage does not answer.
    """
    found = (name for name in Storage(root).names() if _PROGRAM.fullmatch(name) and name != program)
    return tuple(name for name in found if any(_fit_number(each) >= 0 for each in Storage(f"{root}/{name}").names()))


def saved_record(checkpoint: Any) -> Optional[CheckpointRecord]:
    """Return the record of a checkpoint that is about to be written into a series; ``None`` for any other."""
    state = checkpoint.get(STATE_KEY) if isinstance(checkpoint, Mapping) else None
    return CheckpointRecord(**state["record"]) if isinstance(state, Mapping) else None


def complete_record(record: CheckpointRecord, directory: str, files: Iterable[SavedFile]) -> None:
    """Write the record of a checkpoint that is complete, and remove the saves that it replaces.

    Args:
        record: The record without files.
        directory: The directory or URL of the fit.
        files: The files of the checkpoint.

    Raises:
        CheckpointError, OSError: It cannot be written.
    """
    root, program, fit = directory.rsplit("/", 2)
    series = Series(root, program, _fit_number(fit))
    series.write(replace(record, files=tuple(files)))
    series.remove_replaced()


def _fit_number(name: str) -> int:
    match = re.fullmatch(r"fit-(\d+)", name)
    return -1 if match is None else int(match.group(1))
