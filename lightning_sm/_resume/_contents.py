"""Reads what a pickle says without running any code that it names."""

import io
import pickle
from collections import OrderedDict
from typing import Any, Dict

from lightning_sm._resume._records import DamagedError, list_records, read_record

__all__ = ["Opaque", "read_contents", "read_pickle"]


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
