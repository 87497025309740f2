"""Damages sharded checkpoints, and tells which are whole, by their manifests and without the package's own checks."""

import json
import random
import shutil
import zlib
from pathlib import Path

from lightning_sm._checkpoint.integrity import CorruptedError, read_contents

__all__ = ["damage_folder", "folder_is_in_part", "folder_step"]

_MANIFEST = "manifest.json"
_TAG = "checkpoint"
# What holds the step: Lightning's own file, DeepSpeed's of ZeRO-2, and of ZeRO-3.
_CONTENTS = ("meta.pt", f"{_TAG}/mp_rank_00_model_states.pt", f"{_TAG}/zero_pp_rank_0_mp_rank_00_model_states.pt")


def folder_step(folder, *, without_manifest=False):
    """The step of a folder from which training can go on; ``None`` where it is not whole.

    Args:
        folder: The checkpoint.
        without_manifest: Whether a folder that has lost its manifest counts as whole.
    """
    listed = _listed(folder)
    if listed is None:
        return _step(folder) if without_manifest and not Path(folder, _MANIFEST).exists() else None
    if any(not _is_written(Path(folder, name), *what) for name, what in listed.items()):
        return None
    # DeepSpeed reads whatever has the name of a shard.
    if Path(folder, _TAG).is_dir():
        here = {str(path.relative_to(folder)) for path in Path(folder).rglob("*.pt")}
        if here - listed.keys():
            return None
    return _step(folder)


def folder_is_in_part(folder, *, of_all_hosts):
    """Whether a folder stands under its name without being what was to be written.

    Args:
        folder: The checkpoint.
        of_all_hosts: Whether it must hold every shard, not one host's only.
    """
    listed = _listed(folder)
    if listed is None:
        return True
    return any(
        (of_all_hosts or Path(folder, name).exists()) and not _is_written(Path(folder, name), *what)
        for name, what in listed.items()
    )


def _listed(folder):
    """Size and CRC-32 of each file of the manifest; ``None`` where it cannot be read."""
    try:
        files = json.loads(Path(folder, _MANIFEST).read_bytes())["files"]
        return {file["name"]: (file["size"], file["crc32"]) for file in files}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_written(path, size, crc32):
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) == size and zlib.crc32(content) == crc32


def _step(folder):
    for name in _CONTENTS:
        path = Path(folder, name)
        if path.is_file():
            try:
                return int(read_contents(str(path))["global_step"])
            except (CorruptedError, KeyError):
                return None
    return None


def damage_folder(folder, kind, chance: random.Random, others=()):
    """Damage a sharded checkpoint.

    Args:
        folder: The checkpoint.
        kind: One of ``FOLDER_DAMAGES``, but "none".
        chance: Chooses the shard and the place.
        others: Older checkpoints, for the shard of another save.

    Returns:
        Whether anything was changed.
    """
    folder = Path(folder)
    shards = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".distcp", ".pt")]
    shard = chance.choice(shards)
    content = bytearray(shard.read_bytes())
    if kind == "shard truncated":
        shard.write_bytes(content[: chance.randrange(1, len(content))])
    elif kind == "shard empty":
        shard.write_bytes(b"")
    elif kind == "shard bit-flipped":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        shard.write_bytes(content)
    elif kind == "shard missing":
        shard.unlink()
    elif kind == "shard doubled":
        # As the file of a rank that there is not.
        shutil.copyfile(shard, shard.with_name(_of_rank_two(shard.name)))
    elif kind == "shard of another save":
        found = [Path(other, shard.relative_to(folder)) for other in others]
        found = [path for path in found if path.is_file() and path.read_bytes() != bytes(content)]
        if not found:
            return False
        shutil.copyfile(chance.choice(found), shard)
    elif kind == "manifest missing":
        (folder / _MANIFEST).unlink()
    else:
        # What had not been copied when the host went away.
        for path in chance.sample(shards, chance.randrange(1, len(shards) + 1)):
            path.unlink()
    return True


def _of_rank_two(name):
    for old, new in (("__0_", "__2_"), ("__1_", "__2_"), ("rank_0_", "rank_2_"), ("rank_1_", "rank_2_")):
        if old in name:
            return name.replace(old, new, 1)
    return f"copy-of-{name}"
