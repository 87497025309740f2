"""Copies of values that saves can hold, of types that ``torch.load(weights_only=True)`` loads, and what has changed."""

import sys
import zlib
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum, EnumMeta
from types import FunctionType, ModuleType
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Set, Tuple

import numpy
import torch

from lightning_sm._lightning import has_base
from lightning_sm._lightning.results import MAX_STATE_BYTES
from lightning_sm._resume.random_state import get_generator_state, is_generator

__all__ = [
    "DEFINITIONS",
    "GENERATOR",
    "ITERATOR",
    "PLAIN",
    "TOO_LARGE",
    "NotSaved",
    "Packed",
    "address_of",
    "changed_values",
    "checksums",
    "equal_tensors",
    "is_plain_copy",
    "is_record",
    "is_same",
    "packed_or_not",
    "unpacked",
    "without_numbers_of_what_was_made",
]

# About what an object of Python takes.
_ITEM_BYTES = 64
# Of so many items of a container it is looked at what has changed in them.
_MANY = 10_000
# Where the classes are that may be asked for their length.
_COUNTED = ("array", "builtins", "collections", "pandas")
# As many containers within each other are saved: one that holds itself has no end.
_MAX_DEPTH = 50
#: Of these, modules and classes have many.
DEFINITIONS = {FunctionType, ModuleType, classmethod, property, staticmethod, type}
#: Numbers and texts.
PLAIN = (bool, int, float, str, type(None))
_SEQUENCES = {each.__name__: each for each in (list, tuple, set, frozenset)}
_MAPPINGS = {each.__name__: each for each in (dict, OrderedDict, Counter)}
_FACTORIES = {each.__name__: each for each in (list, dict, set, int, float)}
_BUFFERS = {each.__name__: each for each in (bytes, bytearray, array)}
# What a tensor of a sparse layout holds, by the names of the methods that return it.
_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}
#: Of the state of a generator.
GENERATOR = "Generator"
# Of a number of numpy's.
_SCALAR = "scalar"
# Of an enumeration.
_MEMBER = "Member"
# Of a named tuple or a frozen dataclass.
_RECORD = "Record"
#: Made anew for each epoch, beside numbers that must stay. Open files are iterators, too.
ITERATOR = "is an iterator"
#: With what the reason begins where there is no room for a value.
TOO_LARGE = "takes more than"
#: Copies of values, by the names of their owners, and their own.
Packed = Dict[str, Dict[str, Any]]
_OTHER = "is no number, text, tensor, array, generator or container of these"


class _NotSavedError(Exception):
    """A value cannot be saved; the message is the reason."""


class NotSaved(NamedTuple):
    """Stands for a value that cannot be saved: why, which object it is, and a tensor's version or another's length."""

    why: str
    number: int
    version: int
    is_called: bool


class _Room:
    """How many bytes a value may still take."""

    def __init__(self, size: int) -> None:
        self._size = self.left = size
        self.depth = 0

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _NotSavedError(f"{TOO_LARGE} {self._size >> 20} MiB")


def address_of(tensor: Any) -> Any:
    """Where the numbers of a tensor are; ``None`` for one that holds others, such as a ``DTensor``, or none yet."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr()
    except (RuntimeError, ValueError):  # the latter of a lazy module before its first batch
        return None


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return what has changed between two packed states, by name, and why some of it cannot be saved."""
    changed = {path: each for path, each in now.items() if path not in before or not is_same(each, before[path])}
    lost = {path: each.why for path, each in changed.items() if isinstance(each, NotSaved)}
    return {path: each for path, each in changed.items() if path not in lost}, lost


def is_plain_copy(packed: Any) -> bool:
    """Whether a copy is that of a number, also of numpy's, of a text or of ``None``."""
    return isinstance(packed, PLAIN) or (isinstance(packed, tuple) and packed[0] == _SCALAR)


def without_numbers_of_what_was_made(
    before: Mapping[str, Any], changed: Dict[str, Any], lost: Mapping[str, str]
) -> Dict[str, Any]:
    """Leave out what would deny that an open file, or what was read of one, is to be made again, which is not saved."""
    if all(before.get(name) is not None or why == ITERATOR for name, why in lost.items()):
        return changed
    return {name: each for name, each in changed.items() if not is_plain_copy(each)}


def checksums(packed: Any) -> Any:
    """A packed value with checksums in the place of its tensors."""
    if isinstance(packed, torch.Tensor):
        return zlib.crc32(packed.reshape(-1).view(torch.uint8).numpy().data)
    return [checksums(each) for each in packed] if isinstance(packed, (tuple, list)) else packed


def packed_or_not(value: Any, others: Set[Any], size: int = MAX_STATE_BYTES) -> Any:
    """Return a copy of a value as saves hold it, or a :class:`NotSaved`.

    Args:
        value: The value.
        others: Addresses of tensors, and numbers of generators, that are saved otherwise.
        size: The bytes that the copy may take.
    """
    if type(value) in DEFINITIONS:
        return NotSaved(_OTHER, id(value), 0, callable(value))
    try:
        if is_generator(value) and id(value) not in others:
            return (GENERATOR, get_generator_state(value))
        return _pack(value, others, _Room(size))
    except _NotSavedError as error:
        # An object may answer to any name, or with an error.
        cls = type(value)
        # Lightning begins a CombinedLoader anew in each epoch.
        is_iterator = hasattr(cls, "__next__") and not (hasattr(cls, "read") or has_base(cls, "CombinedLoader"))
        # A module makes another dictionary each time.
        number = 0 if isinstance(value, dict) else id(value)
        return NotSaved(ITERATOR if is_iterator else str(error), number, _version(value, others), callable(value))


def _version(value: Any, others: Set[Any], depth: int = 2) -> int:
    """What changes when a value is changed in place, as far as a look at its items, or at some numbers, tells.

    Numbers of what is restored otherwise do not count, as in an LSTM's list of its weights. Nothing of another class is
    called: MONAI's ``Compose`` seeds its transforms anew when it is asked for its length.
    """
    if isinstance(value, torch.Tensor):
        if address_of(value) in others:
            return id(value)
        version, some = 0, []
        with suppress(Exception):  # one without numbers, as on the device meta, or with none that Python has
            version = 0 if value.is_inference() else value._version
            # What is changed by its `data`, such as an average of weights, keeps its version.
            if type(value) in (torch.Tensor, torch.nn.Parameter):
                some = value.detach().reshape(-1)[:: value.numel() // 64 + 1].tolist()
        return hash((version, repr(some)))
    base: Any = next((each for each in (list, tuple, deque, dict, set, frozenset) if isinstance(value, each)), None)
    if base is not None:
        items = list(dict.values(value) if base is dict else base.__iter__(value))
        if depth == 0 or len(items) > _MANY:
            return hash(tuple(map(id, items)))
        kinds = (torch.Tensor, list, dict)
        versions = (_version(each, others, depth - 1) if isinstance(each, kinds) else id(each) for each in items)
        return hash(tuple(versions))
    if type(value).__module__ == "numpy" and hasattr(value, "flat"):
        return hash(value.flat[:: value.size // 4096 + 1].tobytes())
    is_counted = type(value).__module__.partition(".")[0] in _COUNTED and hasattr(type(value), "__len__")
    return len(value) if is_counted else 0


def _pack(value: Any, others: Set[Any], room: _Room) -> Any:
    """Return a copy of a value in host memory, of types that ``torch.load(weights_only=True)`` loads.

    Raises:
        _NotSavedError: It is another object, or a part of the model, or there is no room for it.
    """
    kind = type(value)
    if kind in PLAIN:
        room.take(_ITEM_BYTES + (len(value) if kind is str else 0))
        return value
    if kind is torch.Tensor:
        is_owned = value.layout is torch.strided and value.device.type != "meta" and address_of(value) not in others
        if not is_owned or value.is_quantized:
            raise _NotSavedError(_OTHER)
        room.take(_ITEM_BYTES + value.numel() * value.element_size())
        return (
            "Tensor",
            value.detach().to("cpu", copy=True),
            value.device.type == "cpu",
            value.is_leaf and value.requires_grad,
        )
    if kind.__module__ == "numpy" and isinstance(value, (numpy.ndarray, numpy.generic)):
        room.take(_ITEM_BYTES + value.nbytes)
        try:
            content = torch.as_tensor(numpy.array(value, order="C"))
        except (TypeError, ValueError):  # torch has no such type, or not in this order of bytes
            raise _NotSavedError(f"is of the type {value.dtype}") from None
        return ("ndarray" if isinstance(value, numpy.ndarray) else _SCALAR, content)
    name = kind.__name__
    room.take(_ITEM_BYTES)
    if kind in (torch.dtype, torch.device):
        return value
    if kind is torch.Size:
        return (name, list(value))
    if kind is complex:
        return (name, value.real, value.imag)
    if _BUFFERS.get(name) is kind:
        room.take(memoryview(value).nbytes)
        return (name, torch.as_tensor(numpy.array(bytearray(value))), getattr(value, "typecode", ""))
    # Of one that is too long even so, the first items tell.
    are_few = kind in (list, tuple) and 8 * len(value) <= room.left
    if are_few and all(type(each) is int and abs(each) < 2**63 for each in value):
        room.take(8 * len(value))
        return (name, torch.tensor(value, dtype=torch.int64))
    if kind is deque:
        return (name, _pack_each(value, others, room), value.maxlen)
    if _SEQUENCES.get(name) is kind:
        return (name, _pack_each(value, others, room))
    factory = getattr(value.default_factory, "__name__", "") if kind is defaultdict else ""
    if _MAPPINGS.get(name) is kind or (kind is defaultdict and _FACTORIES.get(factory) is value.default_factory):
        return (name, list(zip(_pack_each(value, others, room), _pack_each(value.values(), others, room))), factory)
    if _loaded(kind.__module__, kind.__qualname__) is kind:
        if isinstance(value, Enum):
            return (_MEMBER, kind.__module__, kind.__qualname__, value.name)
        if is_record(value):
            parts = _fields_of(value)
            return (_RECORD, kind.__module__, kind.__qualname__, list(parts), _pack_each(parts.values(), others, room))
    raise _NotSavedError(_OTHER)


def _loaded(module: str, name: str) -> Any:
    """What a loaded module has by a name, or ``None``."""
    return getattr(sys.modules.get(module), name, None)


def is_record(value: Any) -> bool:
    """Whether it is a named tuple, or of a frozen dataclass of fixed values: replaced by another one, never changed."""
    kind: Any = type(value)
    if _is_frozen(kind):
        return all(map(_is_fixed, _fields_of(value).values()))
    return _is_named_tuple(kind)


def _is_fixed(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, (*PLAIN, Enum, torch.Tensor)) or is_record(value)


def _is_frozen(kind: Any) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return isinstance(kind, type) and parameters is not None and parameters.frozen


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def _fields_of(value: Any) -> Dict[str, Any]:
    names = [each.name for each in fields(value)] if is_dataclass(value) else value._fields
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _record(kind: Any, names: Iterable[str], values: Iterable[Any]) -> Any:
    """Make a record as it was; no method of a dataclass is called.

    Raises:
        TypeError: It is not made of these values any more.
    """
    if _is_named_tuple(kind) and kind._fields == tuple(names):
        return kind._make(values)
    if not _is_frozen(kind) or not {*names} <= {each.name for each in fields(kind)}:
        raise TypeError("its class has changed")
    made = object.__new__(kind)
    for name, value in zip(names, values):
        object.__setattr__(made, name, value)
    return made


def _pack_each(values: Iterable[Any], others: Set[Any], room: _Room) -> List[Any]:
    room.depth += 1
    if room.depth > _MAX_DEPTH:
        raise _NotSavedError(f"nests more than {_MAX_DEPTH} containers")
    packed = [_pack(each, others, room) for each in values]
    room.depth -= 1
    return packed


def unpacked(packed: Any, device: Any) -> Any:
    """Return a value that :func:`packed_or_not` copied, but for generators; tensors of a device go to ``device``."""
    if not isinstance(packed, tuple):
        return packed
    name, content, *more = packed
    if name == _MEMBER:
        kind = _loaded(content, more[0])
        if not isinstance(kind, EnumMeta):
            raise TypeError("it is no enumeration any more")
        return kind[more[1]]
    if name == _RECORD:
        return _record(_loaded(content, more[0]), more[1], [unpacked(each, device) for each in more[2]])
    if name == "Tensor":
        was_on_cpu, requires_grad = more
        return (content.clone() if was_on_cpu else content.to(device)).requires_grad_(requires_grad)
    if name == "Size":
        return torch.Size(content)
    if name == "complex":
        return complex(content, *more)
    if name in _BUFFERS:
        content = content.numpy().tobytes()
        return array(more[0], content) if name == "array" else _BUFFERS[name](content)
    if name in ("ndarray", _SCALAR):
        content = content.numpy().copy()
        return content if name == "ndarray" else content[()]
    if name == "deque":
        return deque((unpacked(each, device) for each in content), more[0])
    if name in _SEQUENCES:
        content = content.tolist() if isinstance(content, torch.Tensor) else content
        return _SEQUENCES[name](unpacked(each, device) for each in content)
    items = {unpacked(key, device): unpacked(each, device) for key, each in content}
    return defaultdict(_FACTORIES.get(more[0]), items) if name == "defaultdict" else _MAPPINGS[name](items)


def equal_tensors(one: Any, other: Any) -> bool:
    """Whether two tensors on one device are equal, their dtypes and layouts too; what is not a number equals itself.

    Raises:
        Exception: What torch raises for a type that it cannot compare.
    """
    # torch.equal() takes no sparse tensor. Other layouts are unknown: jagged ones that are equal have unequal shapes.
    parts = () if one.layout is torch.strided else _SPARSE[str(one.layout)]
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    if parts:
        return all(equal_tensors(getattr(one, part)(), getattr(other, part)()) for part in parts)
    if one.is_complex():
        # torch.allclose() with `equal_nan` takes no complex numbers.
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    return torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True))


def is_same(one: Any, other: Any) -> bool:
    """Whether two copies, or states, are equal; what is not a number equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, NotSaved):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    try:
        if isinstance(one, torch.Tensor):
            return equal_tensors(one, other.to(one.device))
        return bool(one == other or (one != one and other != other))  # one that is not a number
    except Exception:  # what a project's class, an array, or a tensor of some types raises
        return False
