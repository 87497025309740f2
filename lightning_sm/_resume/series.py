"""``Series``: the checkpoints that a job keeps of one fit, in a directory of their own, with their records.

``<checkpoint directory>/<program>-<digits>/fit-K/step-N.ckpt`` is a file or a folder of shards; ``step-N.json`` beside
it, which is written last, is its :class:`CheckpointRecord`, and ``fit.json`` the :class:`FitRecord`.
"""

import json
import os
import re
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

from lightning_sm._logging import log
from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile, write_json
from lightning_sm._resume.storage import Storage, is_remote
from lightning_sm._resume.transfers import list_names, names_in, remove_names

__all__ = ["STATE_KEY", "Series", "complete_record", "newest_first", "other_series", "saved_record", "saves_in"]

#: Key of what is added to the checkpoints of a series; its entry ``record`` is the record without files.
STATE_KEY = "lightning_sm"
FIT_FILE = "fit.json"
_RECORD = re.compile(r"step-\d+(-\d+)?\.json")
_SAVE = re.compile(r"step-\d+(-\d+)?\.(ckpt|rest)")
_Value = TypeVar("_Value")
# The newest, and one before it: the newest may be damaged or not have been uploaded whole.
_KEPT = 2


class Series:
    """The saves of one fit.

    Args:
        root: The job's checkpoint directory, or its URL.
        program: The name of the directory of the program's fits.
        number: The number of the fit in its program.
    """

    def __init__(self, root: str, program: str, number: int) -> None:
        self.root, self.program, self.number = root.rstrip("/"), program, number

    @property
    def directory(self) -> str:
        """The directory or URL of the fit."""
        return f"{self.root}/{self.program}/fit-{self.number}"

    def path(self, name: str) -> str:
        """The path or URL of a checkpoint, record or other file."""
        return f"{self.directory}/{name}"

    def records(self) -> List[CheckpointRecord]:
        """Return the records of this host, newest first; one that cannot be read is named in the log.

        Raises:
            CheckpointError: A storage does not answer.
        """
        names = [name for name in list_names(self.directory) if _RECORD.fullmatch(name)]
        found = (_read(self.path(name), CheckpointRecord.from_json) for name in names)
        return newest_first(record for record in found if record is not None)

    def fit(self) -> Optional[FitRecord]:
        """Return the record of the fit, or ``None``.

        Raises:
            CheckpointError: A storage does not answer.
        """
        return _read(self.path(FIT_FILE), FitRecord.from_json)

    def write_fit(self, record: FitRecord) -> None:
        """Write the record of the fit.

        Raises:
            CheckpointError, OSError: It cannot be written.
        """
        _write(self.directory, FIT_FILE, record.to_json())

    def remove_but(self, kept: Iterable[str]) -> None:
        """Remove all checkpoints of the fit but these, each record before its checkpoint."""
        names = names_in(self.directory)
        stems = {os.path.splitext(name)[0] for name in kept}
        found = [name for name in names if _RECORD.fullmatch(name) or _SAVE.fullmatch(name)]
        old = [name for name in found if os.path.splitext(name)[0] not in stems]
        remove_names(self.directory, sorted(old, key=lambda name: not name.endswith(".json")))

    def remove_later_fits(self) -> None:
        """Remove the saves of the program's later fits, which started from what is trained anew now."""
        parent = f"{self.root}/{self.program}"
        remove_names(parent, [name for name in names_in(parent) if _fit_number(name) > self.number])

    def thin_out_earlier(self) -> None:
        """Keep the last save only of the fits before this one, which have ended."""
        for number in range(self.number):
            earlier = Series(self.root, self.program, number)
            fit = earlier.fit()
            if fit is not None and fit.checkpoint is not None:
                earlier.remove_but([fit.checkpoint])


def newest_first(records: Iterable[CheckpointRecord]) -> List[CheckpointRecord]:
    """Return records sorted, the newest first."""
    return sorted(records, key=lambda record: record.number, reverse=True)


def other_series(root: str, program: str) -> Tuple[str, ...]:
    """Return the names of the directories of other programs' fits in a checkpoint directory.

    Raises:
        CheckpointError: A storage does not answer.
    """
    return tuple({name: None for name, _ in _fits_in(root, but=program)})


def saves_in(root: str) -> List[CheckpointRecord]:
    """Return the records of all fits of all programs in a local checkpoint directory."""
    return [record for name, number in _fits_in(root) for record in Series(root, name, number).records()]


def saved_record(checkpoint: Any) -> Optional[Mapping[str, Any]]:
    """Return the record in a checkpoint that is about to be written into a series; ``None`` for any other."""
    state = checkpoint.get(STATE_KEY) if isinstance(checkpoint, Mapping) else None
    record = state.get("record") if isinstance(state, Mapping) else None
    return record if isinstance(record, Mapping) else None


def complete_record(
    record: Mapping[str, Any], directory: str, files: Sequence[SavedFile], rest: Optional[str] = None
) -> None:
    """Write the record of a checkpoint that is complete, and remove the saves that it replaces.

    Args:
        record: The record without files.
        directory: The directory or URL of the fit.
        files: The files of the checkpoint.
        rest: The file of these that is not shared, if the others are.

    Raises:
        CheckpointError, OSError: It cannot be written.
    """
    content = {**record, "files": [vars(file) for file in files], "rest": rest}
    written = CheckpointRecord.from_json(content)
    _write(directory, written.file_name, written.to_json())
    remove_replaced(directory)


def remove_replaced(directory: str) -> None:
    """Remove all but the newest saves of a fit on this host."""
    root, program, fit = directory.rsplit("/", 2)
    series = Series(root, program, _fit_number(fit))
    series.remove_but([record.name for record in series.records()[:_KEPT]])


def _fit_number(name: str) -> int:
    match = re.fullmatch(r"fit-(\d+)", name)
    return -1 if match is None else int(match.group(1))


def _fits_in(root: str, but: str = "") -> List[Tuple[str, int]]:
    """Program and number of each fit in a checkpoint directory, but those of one program."""
    programs = [name for name in list_names(root) if name != but and re.search(r"-[0-9a-f]{6}$", name)]
    found = ((name, _fit_number(fit)) for name in programs for fit in list_names(f"{root}/{name}"))
    return [(name, number) for name, number in found if number >= 0]


def _read(path: str, parse: Callable[[Any], _Value]) -> Optional[_Value]:
    directory, _, name = path.rpartition("/")
    try:
        if is_remote(path):
            content = Storage(directory).read(name)
        else:
            with open(path, "rb") as file:
                content = file.read()
        return parse(json.loads(content))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("Skipped %s: it cannot be read (%s: %s)", path, type(error).__name__, error)
        return None


def _write(directory: str, name: str, content: Any) -> None:
    if is_remote(directory):
        Storage(directory).write(name, json.dumps(content, indent=1).encode())
        return
    os.makedirs(directory, exist_ok=True)
    write_json(os.path.join(directory, name), content)
