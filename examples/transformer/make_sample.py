"""Make ``sample/austen.txt.gz``: novels by Jane Austen, from the R package janeaustenr.

Usage: ``python make_sample.py /usr/lib/R/site-library/janeaustenr/data`` (Debian package ``r-cran-janeaustenr``).
"""

import argparse
import gzip
import struct
import zlib
from pathlib import Path
from typing import Any, Dict, List

NOVELS = ("prideprejudice", "sensesensibility")

# Types in R's serialization: https://cran.r-project.org/doc/manuals/r-release/R-ints.html#SEXPTYPEs
_SYMBOL, _PAIRS, _TEXT, _BOOLEANS, _INTEGERS, _TEXTS, _LIST, _NONE, _REFERENCE = 1, 2, 9, 10, 13, 16, 19, 254, 255
_HAS_ATTRIBUTES = 0x200
_MISSING = -1


class RSerialization:
    """Reads one object in R's serialization, as far as lists, integers and texts go."""

    def __init__(self, raw: bytes) -> None:
        if raw[:2] != b"X\n":
            raise ValueError("not R's serialization in its binary form")
        self._raw = raw
        self._at = 2
        self._symbols: List[str] = []
        version, _, _ = (self._integer() for _ in range(3))
        if version >= 3:
            self._bytes(self._integer())  # the encoding of texts that name none

    def read(self) -> Any:
        """Return the object: a list with names as a dict, texts and integers as lists."""
        flags = self._integer()
        kind = flags & 0xFF
        if kind == _NONE:
            return None
        if kind == _REFERENCE:
            return self._symbols[(flags >> 8) - 1]
        if kind == _SYMBOL:
            self._symbols.append(self.read())
            return self._symbols[-1]
        if kind == _PAIRS:
            return self._pairs()
        length = self._integer()
        if kind == _TEXT:
            return None if length == _MISSING else self._bytes(length).decode("utf-8")
        if kind in (_BOOLEANS, _INTEGERS):
            value: Any = [self._integer() for _ in range(length)]
        elif kind in (_TEXTS, _LIST):
            value = [self.read() for _ in range(length)]
        else:
            raise ValueError(f"an object of type {kind}, which no list of texts holds")
        attributes = self.read() if flags & _HAS_ATTRIBUTES else {}
        return dict(zip(attributes["names"], value)) if "names" in attributes else value

    def _pairs(self) -> Dict[str, Any]:
        name = self.read()
        return {name: self.read(), **(self.read() or {})}

    def _integer(self) -> int:
        value: int = struct.unpack(">i", self._bytes(4))[0]
        return value

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._raw[self._at - count : self._at]


def read_novel(folder: Path, name: str) -> str:
    """Return the text of one novel of a package's lazy-load database (``Rdata.rdx``, ``Rdata.rdb``)."""
    index = RSerialization(zlib.decompress((folder / "Rdata.rdx").read_bytes(), wbits=47)).read()
    offset, size = index["variables"][name]
    entry = (folder / "Rdata.rdb").read_bytes()[offset : offset + size]
    lines = RSerialization(zlib.decompress(entry[4:])).read()  # 4 bytes hold the unpacked size
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    """Write the sample that the folder given as argument makes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds Rdata.rdb and Rdata.rdx")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "sample" / "austen.txt.gz")
    args = parser.parse_args()
    text = "\n\n\n".join(read_novel(args.folder, name) for name in NOVELS)
    with args.out.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.encode("utf-8"))
    print(f"{args.out}: {args.out.stat().st_size} bytes, {len(text)} characters, {len(set(text))} different ones")


if __name__ == "__main__":
    main()
