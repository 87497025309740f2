"""Damages checkpoints as an interrupted upload, download or disk does, and finds files that stand there in part."""

import hashlib
import json
import random
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tools.faults.series import FitKey, Series, fit_records

__all__ = ["Damaged", "damage_newest", "digest", "files_in_part", "load"]


@dataclass(frozen=True)
class Damaged:
    """What was damaged.

    Args:
        name: The path of the save, or of the record of a fit, in the directory of checkpoints.
        fit: The fit.
        had_ended: Whether the fit had ended.
    """

    name: str
    fit: FitKey
    had_ended: bool


def damage_newest(folder, kind, chance: random.Random, parts=("",)):
    """Damage the newest whole save of the newest fit, or the newest record of a fit, where there is one.

    Args:
        folder: A directory of checkpoints.
        kind: One of the kinds of damage of ``tools.faults.plan``.
        chance: Chooses the file and the place.
        parts: A part of each program's name, in the order of the programs.
    """
    folder, series = Path(folder), Series(folder)
    if kind == "fit record truncated":
        records = fit_records(folder)
        if not records:
            return None
        fit = max(records, key=lambda each: series.number(each, parts))
        content = records[fit].read_bytes()
        records[fit].write_bytes(content[: chance.randrange(1, content.rindex(b"}"))])
        return Damaged(str(records[fit].relative_to(folder)), fit, had_ended=True)
    saves = series.whole()
    if kind == "none" or not saves:
        return None
    save = max(saves, key=lambda each: (series.number(each.fit, parts), each.number))
    others = [other for other in saves if other.fit == save.fit and other is not save]
    if not _damage(save, kind, chance, others):
        return None
    return Damaged(str(save.content.relative_to(folder)), save.fit, save.fit in series.ended)


def _damage(save, kind, chance, others):
    """Damage a save, or one of its shards; return whether anything was changed."""
    files = [path for path in sorted(save.paths()) if path.suffix in (".distcp", ".pt", ".ckpt")]
    path = chance.choice(files)
    content = bytearray(path.read_bytes())
    if kind == "record missing":
        save.record.unlink()
    elif kind == "truncated":
        path.write_bytes(content[: chance.randrange(1, len(content))])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "bit-flipped":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    elif kind == "missing":
        path.unlink()
    elif kind == "shard doubled":
        # As the file of a rank that there is not.
        shutil.copyfile(path, path.with_name(_of_rank_two(path.name)))
    elif kind == "shard of another save":
        found = [other.content / path.relative_to(save.content) for other in others]
        found = [each for each in found if each.is_file() and each.read_bytes() != bytes(content)]
        if not found:
            return False
        shutil.copyfile(chance.choice(found), path)
    else:
        # What had not been copied when the host went away.
        for each in chance.sample(files, chance.randrange(1, len(files) + 1)):
            each.unlink()
    return True


def _of_rank_two(name):
    found = re.sub(r"(__|rank_)[01]_", r"\g<1>2_", name, count=1)
    return found if found != name else f"copy-of-{name}"


def files_in_part(root, *, of_all_hosts=True):
    """Those files and saves that stand under their names and are not whole.

    A file of the series without its record is none yet. Of an older save, whose files may be about to be removed, some
    may be missing.

    Args:
        root: The directory of checkpoints of one host.
        of_all_hosts: Whether the newest save must hold what every host has written.
    """
    root, series = Path(root), Series(root)
    found = list(series.unreadable)
    for save in series.saves:
        found += save.changed()
        if of_all_hosts and save is series.newest(save.fit):
            found += save.missing()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        folders = path.relative_to(root).parts[:-1]
        hidden = any(part.startswith(".") for part in (*folders, path.name))
        is_of_series = folders and folders[0] in series.programs and folders[2:3] != ("checkpoints",)
        # What is within a folder of shards of the project's own has no form that could be checked.
        if hidden or is_of_series or any(each.endswith(".ckpt") for each in folders):
            continue
        if path.suffix in (".ckpt", ".pt") and load(path) is None:
            found.append(path)
        if path.suffix == ".json" and not _is_json(path):
            found.append(path)
    return found


def load(path):
    """The content of a file of torch, each byte of which is checked; ``None`` where it is not whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        return torch.load(path, map_location="cpu", weights_only=False)
    except (zipfile.BadZipFile, OSError, RuntimeError, KeyError, EOFError):
        return None


def digest(state):
    """One word for all tensors, but the ballast."""
    total = hashlib.sha256()
    for name in sorted(state):
        if "ballast" not in name and torch.is_tensor(state[name]):
            total.update(name.encode() + state[name].detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def _is_json(path):
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True
