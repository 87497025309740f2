"""The records of a file of torch's, which is a zip archive, and whether all their bytes are those that were written.

Reads what a pickle says without running any code that it names.

Checkpoints that are folders: what ``torch.distributed.checkpoint`` writes, with Lightning's ``meta.pt``.

Loads a checkpoint once, before a job relies on it.
"""

import hashlib
import io
import os
import pickle
import zipfile
import zlib
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from inspect import signature
from typing import IO, Any, Deque, Dict, List, Optional, Tuple

__all__ = [
    "DamagedError",
    "Record",
    "check_and_digest",
    "list_records",
    "read_record",
    "Opaque",
    "read_contents",
    "read_pickle",
    "META",
    "check_and_digest_folder",
    "folder_size",
    "load_with_code",
    "why_not_weights_only",
]

_CHUNK = 8 * 1024 * 1024
# What precedes a record's bytes: 30 bytes, a name and padding (PKWARE's APPNOTE.TXT, 4.3.7).
_HEADER, _SIGNATURE = 30, b"PK\x03\x04"


class DamagedError(ValueError):
    """A file is not as it was written. The text is the reason that people read."""


@dataclass(frozen=True)
class Record:
    """Where the bytes of a record are.

    Args:
        name: Its name, such as ``last/data.pkl``.
        start: Offset of its first byte in the file.
        size: Its length in bytes.
        crc: The CRC-32 that was written with it; ``None`` where torch was told to write none.
    """

    name: str
    start: int
    size: int
    crc: Optional[int]

    def compare(self, crc: int) -> None:
        """Raise :class:`DamagedError` if its bytes have another CRC-32 than was written."""
        if self.crc not in (None, crc):
            raise DamagedError(f"the bytes of its record {self.name} are not those that were written")


def list_records(path: str) -> List[Record]:
    """Return the records of a file in the order of their bytes. Reads their headers only.

    Raises:
        DamagedError: The file is empty, truncated or no file of torch's.
    """
    size = os.path.getsize(path)
    if size == 0:
        raise DamagedError("it is empty")
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                found = [_locate(file, entry) for entry in archive.infolist()]
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            if isinstance(error, DamagedError):
                raise
            raise DamagedError(f"it is truncated, or no file of torch's ({error})") from error
    if not any(record.crc for record in found):
        # torch.serialization.set_crc32_options(False) leaves zeros.
        found = [replace(record, crc=None) for record in found]
    return sorted(found, key=lambda record: record.start)


def _locate(file: IO[bytes], entry: zipfile.ZipInfo) -> Record:
    file.seek(entry.header_offset)
    header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_SIGNATURE):
        raise DamagedError(f"the header of its record {entry.filename} is damaged")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise DamagedError(f"its record {entry.filename} is compressed, which torch never does")
    lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return Record(entry.filename, entry.header_offset + _HEADER + sum(lengths), entry.file_size, entry.CRC)


def read_record(path: str, record: Record) -> bytes:
    """Return a record's bytes.

    Raises:
        DamagedError: They are not what was written.
    """
    with open(path, "rb") as file:
        file.seek(record.start)
        content = file.read(record.size)
    record.compare(zlib.crc32(content))
    return content


def check_and_digest(path: str, *, check: bool = True) -> str:
    """Compare every record with its CRC-32, and return the file's SHA-256, in one read.

    torch's own reader does not look at the CRC: a flipped bit in a tensor would be loaded in silence.

    Args:
        path: A file of torch's.
        check: Whether to compare; without it any file will do.

    Raises:
        DamagedError: A record is not what was written.
    """
    records: Deque[Record] = deque(list_records(path) if check else ())
    digest, crc, position = hashlib.sha256(), 0, 0
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
            end = position + len(chunk)
            while records and records[0].start < end:
                record = records[0]
                stop = record.start + record.size
                crc = zlib.crc32(memoryview(chunk)[max(record.start - position, 0) : max(stop - position, 0)], crc)
                if stop > end:
                    break
                record.compare(crc)
                records.popleft()
                crc = 0
            position = end
    if records:
        raise DamagedError(f"it ends before its record {records[0].name}")
    return digest.hexdigest()


class Opaque:
    """Stands for whatever a pickle names beside plain values. It keeps what it is given and does nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.state: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> "Opaque":
        return Opaque()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Leave it out, as the following three do: nobody asks for the items of an unknown kind of container."""

    def append(self, item: Any) -> None:
        """Leave it out."""

    def extend(self, items: Any) -> None:
        """Leave it out."""

    def add(self, item: Any) -> None:
        """Leave it out."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else Opaque

    def persistent_load(self, pid: Any) -> Any:
        return Opaque()


def read_pickle(content: bytes) -> Any:
    """Return the plain values of a pickle, with an :class:`Opaque` for each other.

    Raises:
        DamagedError: It is no pickle.
    """
    try:
        return _Reader(io.BytesIO(content)).load()
    except Exception as error:  # damaged bytes may be read as any instruction
        raise DamagedError(f"its contents cannot be read ({type(error).__name__}: {error})") from error


def read_contents(path: str) -> Dict[Any, Any]:
    """Return the dict that ``torch.save`` wrote into a file, with an :class:`Opaque` for each tensor or object.

    It reads the record ``data.pkl``, a small part of the file, and works for every torch since 1.6.

    Raises:
        DamagedError: The file is damaged or holds no dict.
    """
    record = next((each for each in list_records(path) if each.name.endswith("/data.pkl")), None)
    if record is None:
        raise DamagedError("it is no file of torch's: it has no record data.pkl")
    contents = read_pickle(read_record(path, record))
    if not isinstance(contents, dict):
        raise DamagedError("it is no checkpoint of Lightning's: it holds no dict")
    return contents


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


def why_not_weights_only(path: str) -> Optional[str]:
    """Load a file with ``weights_only=True``, which runs no code of the file's, and say why if that cannot be done.

    It is loaded as far as torch can without its bytes: from torch 2.1 on the file is mapped and not read. Its bytes are
    compared elsewhere.
    """
    import torch

    if "weights_only" not in signature(torch.load).parameters:
        return "this torch cannot restrict what a file may hold"
    try:
        torch.load(path, map_location="cpu", weights_only=True, **_mapped(path))
    except Exception as error:  # each version has exceptions of its own
        # Before these words and after the sentence torch advises to trust the file.
        return " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
    return None


def load_with_code(path: str) -> None:
    """Load a file in the same way with ``weights_only=False``, which runs the code that it names.

    Raises:
        Exception: It cannot be loaded in any way.
    """
    import torch

    restricted = {"weights_only": False} if "weights_only" in signature(torch.load).parameters else {}
    torch.load(path, map_location="cpu", **restricted, **_mapped(path))


def _mapped(path: str) -> Dict[str, Any]:
    import torch

    return {"mmap": True} if "mmap" in signature(torch.load).parameters and os.path.isfile(path) else {}
