"""Damages checkpoint files as an interrupted upload, download or disk does, and reads which ones are whole."""

import json
import random
import zipfile
from pathlib import Path

from lightning_sm._export import load_file

__all__ = ["damage_newest", "files_in_part", "whole_checkpoints"]


def whole_checkpoints(folder):
    """The step of each checkpoint from which training can go on, by its path in the folder. Every byte is checked."""
    found = {}
    for path in _visible(folder, "*.ckpt"):
        content = _load(path)
        if content is not None and "optimizer_states" in content:
            found[str(path.relative_to(folder))] = int(content["global_step"])
    return found


def files_in_part(*folders):
    """Those files that stand under their names and are not whole."""
    found = []
    for folder in folders:
        found += [path for path in _visible(folder, "*.ckpt") if _load(path) is None]
        found += [path for path in _visible(folder, "*.pt") if _load(path) is None]
        found += [path for path in _visible(folder, "*.json") if not _is_json(path)]
    return found


def _visible(folder, pattern):
    paths = sorted(Path(folder).rglob(pattern))
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _load(path):
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        return load_file(str(path), weights_only=False)
    except (zipfile.BadZipFile, OSError, RuntimeError, KeyError, EOFError):
        return None


def _is_json(path):
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def damage_newest(folder, kind, chance: random.Random):
    """Damage the newest checkpoint of a folder, and return its name, or ``None`` where there is none yet."""
    steps = whole_checkpoints(folder)
    if kind == "none" or not steps:
        return None
    name = max(steps, key=lambda each: (steps[each], each))
    path = Path(folder, name)
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        content = content[: chance.randrange(1, len(content))]
    elif kind == "empty":
        content = bytearray()
    elif kind == "bit-flipped":
        _flip(path, content, chance)
    elif kind == "half-synced":
        if chance.random() < 0.5:
            path.unlink()
            return name
        content = content[: len(content) // 2]
    path.write_bytes(content)
    return name


def _flip(path, content, chance):
    """Flip one bit within a record: what lies between the records is padding that nobody reads."""
    with zipfile.ZipFile(path) as archive:
        record = chance.choice([each for each in archive.infolist() if each.file_size > 0])
    header = record.header_offset
    name, extra = (int.from_bytes(content[header + at : header + at + 2], "little") for at in (26, 28))
    at = header + 30 + name + extra + chance.randrange(record.compress_size)
    content[at] ^= 1 << chance.randrange(8)
