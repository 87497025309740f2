"""Reads the job's own series of checkpoints from their records, without the package's code."""

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Sequence, Tuple

__all__ = ["FitKey", "Position", "Save", "Series", "fit_records"]

_PROGRAM = re.compile(r"(?P<program>.+)-[0-9a-f]{6}")
_FIT = re.compile(r"fit-(?P<number>\d+)")
_RECORD = re.compile(r"step-\d+(-\d+)?\.json")

#: A fit by the folder of its program and its number there.
FitKey = Tuple[str, int]
#: A fit by its number in the job, and a step.
Position = Tuple[int, int]


@dataclass(frozen=True)
class Save:
    """One save, as its record says.

    Args:
        fit: The fit.
        record: The path of the record.
        number: It grows from save to save of a fit.
        step: The optimizer steps that had been done.
        files: Size and CRC-32 of each file, by its path from the folder of the fit.
    """

    fit: FitKey
    record: Path
    number: int
    step: int
    files: Mapping[str, Tuple[int, int]]

    @property
    def key(self) -> Tuple[FitKey, str]:
        return (self.fit, self.record.name)

    @property
    def content(self) -> Path:
        """The checkpoint, a file or a folder."""
        return self.record.with_suffix(".ckpt")

    def paths(self) -> Dict[Path, Tuple[int, int]]:
        return {self.record.parent / name: what for name, what in self.files.items()}

    def missing(self) -> List[Path]:
        return [path for path in self.paths() if not path.is_file()]

    def changed(self) -> List[Path]:
        """The files that are there with another content."""
        return [path for path, what in self.paths().items() if path.is_file() and _content_of(path) != what]

    def is_whole(self) -> bool:
        return not self.missing() and not self.changed()


class Series:
    """What stands in a directory of checkpoints.

    Args:
        root: The directory.
    """

    def __init__(self, root):
        self.root = Path(root)
        self.saves: List[Save] = []
        self.unreadable: List[Path] = []
        self.ended = set()
        for fit, folder in _fits(self.root):
            for path in sorted(folder.iterdir()):
                if path.name == "fit.json":
                    self._add_end(fit, path)
                elif _RECORD.fullmatch(path.name):
                    self._add_save(fit, path)

    def _add_end(self, fit, path):
        record = _read(path)
        if record is None:
            self.unreadable.append(path)
        elif record["ended"]:
            self.ended.add(fit)

    def _add_save(self, fit, path):
        record = _read(path)
        try:
            files = {file["name"]: (file["size"], file["crc32"]) for file in record["files"]}
            self.saves.append(Save(fit, path, int(record["number"]), int(record["step"]), files))
        except (KeyError, TypeError, ValueError):
            self.unreadable.append(path)

    @property
    def programs(self) -> List[str]:
        return sorted({fit[0] for fit, _ in _fits(self.root)})

    def newest(self, fit: FitKey):
        """The newest save of a fit, whole or not; ``None`` where there is none."""
        return max((save for save in self.saves if save.fit == fit), key=lambda save: save.number, default=None)

    def whole(self) -> List[Save]:
        """The saves of which every byte is there. What a record does not list may stand beside it."""
        return [save for save in self.saves if save.is_whole()]

    def position(
        self, whole: Sequence[Save], ended: FrozenSet[FitKey], parts: Sequence[str], starts: Sequence[int]
    ) -> Position:
        """Where a job goes on: the first fit that has not ended, and the step of its newest save.

        Args:
            whole: The saves that can be resumed from.
            ended: The fits that had ended.
            parts: A part of each program's name, in the order of the programs.
            starts: The step with which each fit of the job begins.
        """
        numbers = {self.number(fit, parts) for fit in ended}
        current = next(number for number in range(len(starts) + 1) if number not in numbers)
        saves = [save for save in whole if self.number(save.fit, parts) == current]
        if saves:
            return (current, max(saves, key=lambda save: save.number).step)
        return (current, starts[current] if current < len(starts) else 0)

    @staticmethod
    def number(fit: FitKey, parts: Sequence[str]) -> int:
        """The number that a fit has in the job, all programs of which but the last have one fit."""
        program, own = fit
        if len(parts) == 1:
            return own
        before = [number for number, part in enumerate(parts) if part in program]
        assert len(before) == 1, f"{program} is the series of none of {parts}"
        return before[0] + own


def fit_records(root) -> Dict[FitKey, Path]:
    """The records of the fits that have ended."""
    return {fit: folder / "fit.json" for fit, folder in _fits(Path(root)) if (folder / "fit.json").is_file()}


def _fits(root):
    """Each fit of a directory with its folder."""
    found = []
    for folder in sorted(root.glob("*/fit-*")):
        program, fit = _PROGRAM.fullmatch(folder.parent.name), _FIT.fullmatch(folder.name)
        if program and fit and folder.is_dir():
            found.append(((folder.parent.name, int(fit["number"])), folder))
    return found


def _read(path):
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _content_of(path):
    content = path.read_bytes()
    return (len(content), zlib.crc32(content))
