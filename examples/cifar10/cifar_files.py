"""Reads the files in which CIFAR-10 is published, from their folder or straight from their archive."""

import io
import pickle
import pickletools
import posixpath
import tarfile
import zlib
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILES = ("test_batch",)

# CIFAR-10's own files have 31 MB. What says that it is much larger is not read into memory.
MAX_FILE_BYTES = 256 * 2**20


class CIFARFilesError(RuntimeError):
    """CIFAR-10's files are missing or are not what they should be."""


def find(data_dir: Path) -> Optional[Path]:
    """Return CIFAR-10's folder or archive in ``data_dir``, or ``None``. The folder itself may be ``data_dir``, too."""
    for folder in (data_dir / FOLDER, data_dir):
        if any((folder / name).is_file() for name in TRAIN_FILES + TEST_FILES):
            return folder
    archive = data_dir / ARCHIVE
    return archive if archive.is_file() else None


def read(source: Path, names: Sequence[str]) -> Tuple["np.ndarray", "np.ndarray"]:
    """Return the pictures (N x 3 x 32 x 32, bytes) and labels of the batch files ``names``.

    An archive is read, never unpacked: that works where nothing can be written, and no member can escape.
    """
    try:
        files = _from_folder(source, names) if source.is_dir() else _from_archive(source, names)
    # EOFError and zlib.error are how a cut or broken gzip shows itself.
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise CIFARFilesError(f"{source} cannot be read: {error}. HINT: Copy or download the file again.") from error
    missing = [name for name in names if name not in files]
    if missing:
        raise CIFARFilesError(
            f"{source} lacks {', '.join(missing)}. HINT: CIFAR-10 has {len(TRAIN_FILES)} training files and one test "
            "file; copy or download them again."
        )
    batches = [parse_batch(files[name], f"{name} of {source}") for name in names]
    return np.concatenate([pictures for pictures, _ in batches]), np.concatenate([labels for _, labels in batches])


def parse_batch(raw: bytes, where: str) -> Tuple["np.ndarray", "np.ndarray"]:
    """Return the pictures and labels of one batch file; ``where`` names it in errors."""
    try:
        batch = _load(raw)
        entries = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
        pictures = _to_array(entries[b"data"])
        labels = _to_labels(entries[b"labels"])
    # Broken pickles raise nearly every type of exception: https://docs.python.org/3/library/pickle.html#pickle.load
    except Exception as error:
        raise CIFARFilesError(
            f"{where} is not a batch file of CIFAR-10: {type(error).__name__}: {error}. "
            "HINT: Copy or download the file again, and use only files whose source you trust."
        ) from error
    if len(pictures) != len(labels):
        raise CIFARFilesError(
            f"{where} has {len(pictures)} pictures and {len(labels)} labels. HINT: Copy or download the file again."
        )
    return pictures, labels


def _from_folder(folder: Path, names: Sequence[str]) -> Dict[str, bytes]:
    files = {}
    for name in names:
        path = folder / name
        if path.is_file():
            _check_size(path.stat().st_size, name)
            files[name] = path.read_bytes()
    return files


def _from_archive(archive: Path, names: Sequence[str]) -> Dict[str, bytes]:
    files = {}
    # As a stream ("|"), because going back in a gzip file means to unpack it once more from its start.
    with tarfile.open(archive, mode="r|gz") as tar:
        for member in tar:
            folder, name = posixpath.split(posixpath.normpath(member.name))
            if folder == FOLDER and name in names and member.isreg():
                _check_size(member.size, name)
                content = tar.extractfile(member)
                if content is not None:
                    files[name] = content.read()
    return files


def _check_size(size: int, name: str) -> None:
    if size > MAX_FILE_BYTES:
        raise OSError(f"{name} claims to have {size} bytes, more than {MAX_FILE_BYTES}")


class _Call:
    """What a pickle asks to call, written down instead of called."""

    def __init__(self, name: str, args: Tuple[object, ...]) -> None:
        self.name = name
        self.args = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Loads the pickle of an array without calling anything that the file names.

    Data files are input from outside, and a pickle may name any function. It also makes the reader independent of
    NumPy's version, whose modules moved between 1 and 2.
    """

    NAMES = ("_reconstruct", "_frombuffer", "ndarray", "dtype")
    MODULES = ("numpy", "numpy.core.multiarray", "numpy.core.numeric", "numpy._core.multiarray", "numpy._core.numeric")

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        """Return a function that writes down its call, for the names that an array of bytes needs."""
        if module in self.MODULES and name in self.NAMES:
            return lambda *args: _Call(name, args)
        # Python 3 writes bytes as an encoded string where the pickle's protocol is 2 or older.
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: str.encode(text, "latin1")
        raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which no data file needs")


def _load(raw: bytes) -> Dict[object, object]:
    # A few bytes of a pickle can ask for a table of many gigabytes; the C unpickler would allocate it.
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and not 0 <= argument <= len(raw):
            raise pickle.UnpicklingError(f"memo index {argument} in a file of {len(raw)} bytes")
    batch = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(batch, dict):
        raise ValueError(f"found a {type(batch).__name__} instead of a dict")
    return batch


def _to_array(data: object) -> "np.ndarray":
    if isinstance(data, _Call) and data.name == "_reconstruct" and isinstance(data.state, tuple):
        _, shape, dtype, fortran, content = data.state
    elif isinstance(data, _Call) and data.name == "_frombuffer":
        content, dtype, shape, order = data.args
        fortran = order != "C"
    else:
        raise ValueError("'data' is not an array")
    if fortran or _to_text(dtype.args[0]) != "u1" or len(shape) != 2 or shape[1] != 3 * 32 * 32 or shape[0] < 1:
        raise ValueError("'data' is not an array of N x 3072 bytes")
    return np.frombuffer(content, np.uint8).reshape(shape[0], 3, 32, 32)


def _to_labels(labels: object) -> "np.ndarray":
    values: List[int] = labels if isinstance(labels, list) else []
    if not values or not all(type(label) is int and 0 <= label < 10 for label in values):
        raise ValueError("'labels' is not a list of numbers from 0 to 9")
    return np.array(values, np.int64)


def _to_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
