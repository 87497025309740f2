"""The records of a file of torch's, which is a zip archive, and whether all their bytes are those that were written."""

import hashlib
import os
import zipfile
import zlib
from collections import deque
from dataclasses import dataclass, replace
from typing import IO, Deque, List, Optional

__all__ = ["DamagedError", "Record", "check_and_digest", "list_records", "read_record"]

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
