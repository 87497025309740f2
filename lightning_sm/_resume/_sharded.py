"""Checkpoints that are folders: what ``torch.distributed.checkpoint`` writes, with Lightning's ``meta.pt``."""

import hashlib
import io
import os
import zipfile
from typing import Any, Dict, List, Tuple

from lightning_sm._resume._contents import Opaque, read_pickle
from lightning_sm._resume._records import DamagedError, check_and_digest

__all__ = ["META", "check_and_digest_folder", "folder_size"]

#: Holds everything but the model's and the optimizer's state: ``lightning/fabric/strategies/fsdp.py``.
META = "meta.pt"
_INDEX = ".metadata"


def folder_size(path: str) -> int:
    """All bytes in a folder, with those of the folders in it."""
    return sum(os.path.getsize(file) for _, file in _files(path))


def check_and_digest_folder(path: str, *, check: bool = True) -> str:
    """See that a folder holds each part that its index names, and return a SHA-256 of all names, sizes and contents.

    Args:
        path: The folder.
        check: Whether to look into the files; without it any folder will do.

    Raises:
        DamagedError: A part is missing, too short or not what was written.
    """
    if check:
        for shard, parts in _parts(path).items():
            _check_shard(path, shard, parts)
    digest = hashlib.sha256()
    for name, file in _files(path):
        content = check_and_digest(file, check=check and name == META)
        digest.update(f"{name}\0{os.path.getsize(file)}\0{content}\n".encode())
    return digest.hexdigest()


def _files(path: str) -> List[Tuple[str, str]]:
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted((os.path.relpath(file, path), file) for file in found)


def _parts(path: str) -> Dict[str, List[Tuple[int, int]]]:
    """Offset and length of each part of each shard, as the index has them."""
    for name in (_INDEX, META):
        if not os.path.isfile(os.path.join(path, name)):
            raise DamagedError(f"it is not complete: {name} is missing")
    with open(os.path.join(path, _INDEX), "rb") as file:
        index = read_pickle(file.read())
    parts: Dict[str, List[Tuple[int, int]]] = {}
    for place in _state(_state(index).get("storage_data")).values():
        where = _state(place)
        try:
            parts.setdefault(str(where["relative_path"]), []).append((int(where["offset"]), int(where["length"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"its {_INDEX} is of an unknown kind") from error
    if not parts:
        raise DamagedError(f"its {_INDEX} names no shard")
    return parts


def _state(value: Any) -> Dict[Any, Any]:
    state = value.state if isinstance(value, Opaque) else value
    return state if isinstance(state, dict) else {}


def _check_shard(path: str, shard: str, parts: List[Tuple[int, int]]) -> None:
    file = os.path.join(path, shard)
    if not os.path.isfile(file):
        raise DamagedError(f"it is not complete: {shard} is missing")
    size = os.path.getsize(file)
    if any(offset + length > size for offset, length in parts):
        raise DamagedError(f"its {shard} is truncated")
    with open(file, "rb") as content:
        for offset, length in sorted(parts):
            content.seek(offset)
            part = content.read(length)
            # Each part is a file of torch's of its own.
            if part.startswith(b"PK\x03\x04"):
                _check_part(shard, part)


def _check_part(shard: str, part: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(part)) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        raise DamagedError(f"its {shard} is damaged ({error})") from error
    if damaged is not None:
        raise DamagedError(f"the bytes of {damaged} in its {shard} are not those that were written")
