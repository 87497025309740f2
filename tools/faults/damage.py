"""Damages checkpoint files as an interrupted upload, download or disk does, and reads which ones are whole."""

import json
import random
import zipfile
from pathlib import Path

from lightning_sm._export import load_file
from tools.faults.folders import damage_folder, folder_is_in_part, folder_step

__all__ = ["damage_newest", "files_in_part", "whole_checkpoints"]


def whole_checkpoints(folder, *, without_manifest=False):
    """The step of each checkpoint from which training can go on, by its path in the folder. Every byte is checked.

    Args:
        folder: A directory of checkpoints.
        without_manifest: Whether sharded ones that have lost their manifests count.
    """
    found = {}
    for path in _visible(folder, "*.ckpt"):
        if path.is_dir():
            step = folder_step(path, without_manifest=without_manifest)
            if step is not None:
                found[str(path.relative_to(folder))] = step
            continue
        content = _load(path)
        if content is not None and "optimizer_states" in content:
            found[str(path.relative_to(folder))] = int(content["global_step"])
    return found


def files_in_part(*folders, of_all_hosts=True):
    """Those files and sharded checkpoints that stand under their names and are not whole.

    Args:
        *folders: Directories of one host.
        of_all_hosts: Whether a sharded checkpoint must hold the shards of every host.
    """
    found = []
    for folder in folders:
        checkpoints = _visible(folder, "*.ckpt")
        found += [path for path in checkpoints if path.is_file() and _load(path) is None]
        found += [path for path in checkpoints if path.is_dir() and folder_is_in_part(path, of_all_hosts=of_all_hosts)]
        found += [path for path in _visible(folder, "*.pt") if _load(path) is None]
        found += [path for path in _visible(folder, "*.json") if not _is_json(path)]
    return found


def _visible(folder, pattern):
    """What is not hidden, nor a part of a sharded checkpoint."""
    found = []
    for path in sorted(Path(folder).rglob(pattern)):
        *parents, name = path.relative_to(folder).parts
        if not any(part.startswith(".") for part in (*parents, name)) and not any(
            part.endswith(".ckpt") for part in parents
        ):
            found.append(path)
    return found


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
    if path.is_dir():
        others = [Path(folder, each) for each in steps if each != name]
        return name if damage_folder(path, kind, chance, others) else None
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
