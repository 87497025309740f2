"""Make ``sample/cifar-10-python.tar.gz``: Fashion-MNIST pictures in CIFAR-10's file format.

Usage: ``python make_sample.py /usr/share/datasets/fashion-mnist`` (Debian package ``dataset-fashion-mnist``).
"""

import argparse
import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import numpy as np

TRAIN_PER_CLASS = 160
TEST_PER_CLASS = 40
TRAIN_BATCHES = 5
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path) -> "np.ndarray":
    """Read one gzipped IDX file of bytes, the format of the MNIST family."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def choose(labels: "np.ndarray", per_class: int) -> "np.ndarray":
    """Take the first ``per_class`` pictures of every class, in the order of the file."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in range(len(CLASSES))]))


def to_rows(pictures: "np.ndarray") -> "np.ndarray":
    """Turn N x 28 x 28 grey into N x 3072: a black frame of two pixels, then the same plane as red, green and blue."""
    framed = np.pad(pictures, ((0, 0), (2, 2), (2, 2)))
    return np.repeat(framed[:, None], 3, axis=1).reshape(len(framed), -1)


class Python2Pickle:
    """Writes the pickles of Python 2, in which CIFAR-10 was published.

    Python 3 cannot write the byte strings that every reader of CIFAR-10 expects, and its pickles of arrays differ
    between NumPy 1 and 2. Written by hand, the bytes depend on no version.
    """

    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x02")

    def dump(self, value: Dict[bytes, object]) -> bytes:
        """Return the pickle of ``value``."""
        self._put(value)
        return bytes(self._out + b".")

    def _put(self, value: object) -> None:
        out = self._out
        if isinstance(value, bytes):
            out += b"U" + struct.pack("<B", len(value)) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
            out += value
        elif isinstance(value, int):
            out += b"K" + struct.pack("<B", value) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
        elif isinstance(value, list):
            out += b"]("
            for item in value:
                self._put(item)
            out += b"e"
        elif isinstance(value, dict):
            out += b"}("
            for key, item in value.items():
                self._put(key)
                self._put(item)
            out += b"u"
        elif isinstance(value, np.ndarray):
            self._put_array(value)
        else:
            raise TypeError(f"CIFAR-10's files hold no {type(value).__name__}")

    def _put_array(self, array: "np.ndarray") -> None:
        rows, columns = array.shape
        out = self._out
        out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        out += b"(K\x01"
        self._put(rows)
        self._put(columns)
        out += b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        self._put(np.ascontiguousarray(array, np.uint8).tobytes())
        out += b"tb"


def make_batch(title: str, source: str, pictures: "np.ndarray", labels: "np.ndarray", chosen: "np.ndarray") -> bytes:
    """Return one batch file. Its ``filenames`` tell which picture of which source file each row is."""
    batch: Dict[bytes, object] = {
        b"batch_label": title.encode(),
        b"labels": [int(label) for label in labels[chosen]],
        b"data": to_rows(pictures[chosen]),
        b"filenames": [f"{source}-{index:05d}.png".encode() for index in chosen],
    }
    return Python2Pickle().dump(batch)


def make_files(folder: Path) -> List[Tuple[str, bytes]]:
    """Return the names and contents of all files of the sample."""
    files = []
    pictures, labels = (read_idx(folder / f"train-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    parts = np.array_split(choose(labels, TRAIN_PER_CLASS), TRAIN_BATCHES)
    for number, part in enumerate(parts, start=1):
        title = f"training batch {number} of {TRAIN_BATCHES}"
        files.append((f"data_batch_{number}", make_batch(title, "train", pictures, labels, part)))
    pictures, labels = (read_idx(folder / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    chosen = choose(labels, TEST_PER_CLASS)
    files.append(("test_batch", make_batch("testing batch 1 of 1", "t10k", pictures, labels, chosen)))
    meta: Dict[bytes, object] = {
        b"num_cases_per_batch": len(parts[0]),
        b"label_names": [name.encode() for name in CLASSES],
        b"num_vis": 3072,
    }
    files.append(("batches.meta", Python2Pickle().dump(meta)))
    return files


def pack(files: Sequence[Tuple[str, bytes]]) -> bytes:
    """Return the tar of ``files`` in CIFAR-10's layout, without dates or owners, so that its bytes can be repeated."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files:
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def main() -> None:
    """Write the sample that the folder given as argument makes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds train-images-idx3-ubyte.gz and the other three files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "sample" / "cifar-10-python.tar.gz")
    args = parser.parse_args()
    tar = pack(make_files(args.folder))
    with args.out.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(tar)
    print(f"{args.out}: {args.out.stat().st_size} bytes, {len(tar)} unpacked")


if __name__ == "__main__":
    main()
