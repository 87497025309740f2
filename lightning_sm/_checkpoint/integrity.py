"""Integrity of checkpoints: CRC checks, digests, reading and loading without running code of the file.

``torch.save`` writes a zip archive of uncompressed records, each with a CRC-32 that ``torch.load`` does not compare: a
flipped bit in a tensor would be loaded silently. ``torch.distributed.checkpoint`` (DCP) writes a directory of such
archives with an index, and Lightning adds ``meta.pt`` to it.
"""

import hashlib
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from contextlib import contextmanager
from inspect import signature
from typing import IO, Any, Dict, FrozenSet, Iterator, List, Optional, Set, Tuple, Union

__all__ = [
    "META_FILE",
    "CorruptedError",
    "UnknownObject",
    "classes_in_pickle",
    "dcp_entries",
    "directory_size",
    "file_records",
    "load_unrestricted",
    "read_contents",
    "read_pickle",
    "state_of",
    "verify_and_hash",
    "verify_and_hash_directory",
    "weights_only_error",
]

_CHUNK = 8 * 1024 * 1024
#: Holds everything but the state of model and optimizers: ``lightning/fabric/strategies/fsdp.py``.
META_FILE = "meta.pt"
_INDEX = ".metadata"


class CorruptedError(ValueError):
    """A checkpoint is incomplete or modified. The message is the reason, as it appears in log lines."""


@contextmanager
def _open_archive(file: Union[str, IO[bytes]]) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            for record in records:
                if record.compress_type != zipfile.ZIP_STORED:
                    raise CorruptedError(f"its record {record.filename} is compressed, which torch.save never does")
                # zipfile accepts a wrong uncompressed size, with which torch.load fails.
                if record.file_size != record.compress_size:
                    raise CorruptedError(f"the size of its record {record.filename} is corrupted")
            if not any(record.CRC for record in records):
                # torch.serialization.set_crc32_options(False) writes zeros; zipfile compares no CRC if there is none.
                for record in records:
                    del record.CRC
            yield archive
    except CorruptedError:
        raise
    except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise CorruptedError(f"it is truncated, or was not written by torch.save ({reason})") from error


def file_records(path: str) -> List[Tuple[str, int, Optional[int]]]:
    """Return name, size in bytes and CRC-32 of each record of a file, from its central directory.

    The CRC-32 is ``None`` if the file was written without.

    Raises:
        CorruptedError: The file is empty, truncated or was not written by ``torch.save``.
    """
    if os.path.getsize(path) == 0:
        raise CorruptedError("it is empty")
    with _open_archive(path) as archive:
        return [(entry.filename, entry.file_size, getattr(entry, "CRC", None)) for entry in archive.infolist()]


def _verify(file: Union[str, IO[bytes]]) -> None:
    with _open_archive(file) as archive:
        corrupted = archive.testzip()
    if corrupted is not None:
        raise CorruptedError(f"its record {corrupted} is corrupted (CRC-32 or header mismatch)")


def verify_and_hash(path: str, *, check: bool = True) -> str:
    """Compare the CRC-32 of every record, and return the SHA-256 of the whole file in hexadecimal.

    Args:
        path: A file that ``torch.save`` wrote.
        check: Whether to compare the CRCs; without, any file is accepted.

    Raises:
        CorruptedError: The file is truncated, or a record is not as it was written.
    """
    if check:
        if os.path.getsize(path) == 0:
            raise CorruptedError("it is empty")
        _verify(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


class UnknownObject:
    """Stands for each object of a pickle that is not a plain value. It ignores what it is given."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.state: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> "UnknownObject":
        return UnknownObject()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore the item of an unknown container, as the following three do."""

    def append(self, item: Any) -> None:
        """Ignore the item."""

    def extend(self, items: Any) -> None:
        """Ignore the items."""

    def add(self, item: Any) -> None:
        """Ignore the item."""


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else UnknownObject

    def persistent_load(self, pid: Any) -> Any:
        return UnknownObject()


def read_pickle(content: bytes) -> Any:
    """Return the plain values of a pickle, with an :class:`UnknownObject` for everything else.

    Raises:
        CorruptedError: It is not a pickle.
    """
    return _load(_RestrictedUnpickler(io.BytesIO(content)))


def _load(unpickler: _RestrictedUnpickler) -> Any:
    try:
        return unpickler.load()
    except Exception as error:  # corrupted bytes may be read as any opcode
        raise CorruptedError(f"its contents cannot be read ({type(error).__name__}: {error})") from error


def classes_in_pickle(content: bytes) -> FrozenSet[Tuple[str, str]]:
    """Return module and name of each class and function that a pickle names, without importing them.

    Raises:
        CorruptedError: It is not a pickle.
    """
    found: Set[Tuple[str, str]] = set()

    class Noting(_RestrictedUnpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add((module, name))
            return super().find_class(module, name)

    _load(Noting(io.BytesIO(content)))
    return frozenset(found)


def read_contents(path: str) -> Dict[Any, Any]:
    """Return the dict in a file of ``torch.save``, with an :class:`UnknownObject` for each tensor or other object.

    It reads the record ``data.pkl`` only, a small part of the file, and supports files of torch 1.6 and later.

    Raises:
        CorruptedError: The file is corrupted or holds no dict.
    """
    if os.path.getsize(path) == 0:
        raise CorruptedError("it is empty")
    with _open_archive(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        if name is None:
            raise CorruptedError("it was not written by torch.save: it has no record data.pkl")
        try:
            content = archive.read(name)
        except (zipfile.BadZipFile, EOFError) as error:
            raise CorruptedError(f"its record {name} is corrupted ({error or type(error).__name__})") from error
    contents = read_pickle(content)
    if not isinstance(contents, dict):
        raise CorruptedError("it is not a Lightning checkpoint: it holds no dict")
    return contents


def directory_size(path: str) -> int:
    """Return the size in bytes of all files below a directory."""
    return sum(os.path.getsize(file) for _, file in _files(path))


def verify_and_hash_directory(path: str, *, check: bool = True) -> str:
    """Check that a DCP directory is complete, and return a SHA-256 of all names, sizes and contents in hexadecimal.

    Args:
        path: The directory.
        check: Whether to check the files against the index; without, any directory is accepted.

    Raises:
        CorruptedError: A file is missing, truncated or not as it was written.
    """
    if check:
        for shard, ranges in _shard_ranges(path).items():
            _verify_shard(path, shard, ranges)
    digest = hashlib.sha256()
    for name, file in _files(path):
        content = verify_and_hash(file, check=check and name == META_FILE)
        digest.update(f"{name}\0{os.path.getsize(file)}\0{content}\n".encode())
    return digest.hexdigest()


def _files(path: str) -> List[Tuple[str, str]]:
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted((os.path.relpath(file, path), file) for file in found)


def _shard_ranges(path: str) -> Dict[str, List[Tuple[int, int]]]:
    """Return offset and length of each entry of each shard, as the index has them."""
    for name in (_INDEX, META_FILE):
        if not os.path.isfile(os.path.join(path, name)):
            raise CorruptedError(f"it is incomplete: {name} is missing")
    with open(os.path.join(path, _INDEX), "rb") as file:
        index = read_pickle(file.read())
    ranges: Dict[str, List[Tuple[int, int]]] = {}
    for stored in state_of(state_of(index).get("storage_data")).values():
        info = state_of(stored)
        try:
            ranges.setdefault(str(info["relative_path"]), []).append((int(info["offset"]), int(info["length"])))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptedError(f"its {_INDEX} has an unknown format") from error
    if not ranges:
        raise CorruptedError(f"its {_INDEX} names no shard")
    return ranges


def state_of(value: Any) -> Dict[Any, Any]:
    """Return the attributes of an :class:`UnknownObject`, or a dict itself; an empty dict for anything else."""
    state = value.state if isinstance(value, UnknownObject) else value
    return state if isinstance(state, dict) else {}


def dcp_entries(path: str) -> Iterator[Tuple[str, bytes]]:
    """Yield the shard and the bytes of each entry of a DCP directory, one after another.

    Raises:
        CorruptedError: The index cannot be read.
    """
    for shard, ranges in _shard_ranges(path).items():
        with open(os.path.join(path, shard), "rb") as content:
            for offset, length in sorted(ranges):
                content.seek(offset)
                yield shard, content.read(length)


def _verify_shard(path: str, shard: str, ranges: List[Tuple[int, int]]) -> None:
    file = os.path.join(path, shard)
    if not os.path.isfile(file):
        raise CorruptedError(f"it is incomplete: {shard} is missing")
    size = os.path.getsize(file)
    if any(offset + length > size for offset, length in ranges):
        raise CorruptedError(f"its {shard} is truncated")
    with open(file, "rb") as content:
        for offset, length in sorted(ranges):
            content.seek(offset)
            part = content.read(length)
            # DCP writes each tensor with a torch.save of its own.
            if part.startswith(b"PK\x03\x04"):
                try:
                    _verify(io.BytesIO(part))
                except CorruptedError as error:
                    raise CorruptedError(f"its {shard} at byte {offset}: {error}") from error


def weights_only_error(path: Union[str, IO[bytes]]) -> Optional[str]:
    """Load a file with ``weights_only=True``, which runs no code of the file, and return why that fails, if it does.

    From torch 2.1 on the file is memory-mapped and its tensors are not read; :func:`verify_and_hash` compares them.
    """
    import torch

    if "weights_only" not in signature(torch.load).parameters:
        return "this torch has no weights_only"
    try:
        torch.load(path, map_location="cpu", weights_only=True, **_mmap_option(path))
    except Exception as error:  # the type depends on the version of torch
        # torch's advice to trust the file stands before these words and after the first sentence.
        return " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
    return None


def load_unrestricted(path: str) -> None:
    """Load a file with ``weights_only=False``, which runs the code that it names, to see whether that works.

    Raises:
        Exception: It cannot be loaded.
    """
    import torch

    restricted = {"weights_only": False} if "weights_only" in signature(torch.load).parameters else {}
    torch.load(path, map_location="cpu", **restricted, **_mmap_option(path))


def _mmap_option(path: Union[str, IO[bytes]]) -> Dict[str, Any]:
    import torch

    return {"mmap": True} if "mmap" in signature(torch.load).parameters and isinstance(path, str) else {}
