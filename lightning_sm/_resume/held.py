"""What objects hold: the project's own objects, states of libraries' objects, generators; and how each is set."""

import functools
import sys
from array import array
from collections import OrderedDict, defaultdict, deque
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import torch

from lightning_sm._lightning.results import metric_states, set_metric_states
from lightning_sm._logging import log
from lightning_sm._resume.program import is_others, is_own, is_plain, is_projects
from lightning_sm._resume.random_state import (
    add_generator_within,
    generators_within,
    is_generator,
    new_generator,
    set_generator_state,
)
from lightning_sm._resume.values import DEFINITIONS, GENERATOR, PLAIN, is_record, unpacked

__all__ = [
    "LOADER",
    "Generators",
    "Stateful",
    "Variables",
    "attributes_of",
    "held",
    "is_metric",
    "set_packed",
    "value_of",
]

# As many objects that one holds, and items of each container.
_MAX_HELD = 100
#: With what the names of the data sets of a loader begin, and of what they hold.
LOADER = "loader"
_CONTAINERS = (list, dict, set, deque)
_HOLD_NOTHING = {*PLAIN, *DEFINITIONS} - {FunctionType}


class Stateful:
    """The state of an object that saves itself: of a module beside the model, such as a teacher, or of a scheduler."""

    __slots__ = ("__dict__", "holder")

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.state = holder.state_dict()
        if isinstance(holder, torch.nn.Module):
            self.metrics = metric_states(holder)

    def load(self, name: str, value: Any) -> None:
        """Set one of the two."""
        try:
            if name == "metrics":
                set_metric_states(self.holder, value)
            else:
                self.holder.load_state_dict(value)
        except Exception as error:  # what its class raises, where the program makes it otherwise than before
            log.warning("Not restored: the state of a %s: %s", type(self.holder).__qualname__, error)


class Variables:
    """What a function keeps: variables of functions around it, its attributes, and containers among its defaults."""

    __slots__ = ("__dict__", "cells", "function")

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        containers = {f"default {key}": each for key, each in defaults if isinstance(each, _CONTAINERS)}
        full = {name: cell.cell_contents for name, cell in self.cells.items() if _is_set(cell)}
        vars(self).update({**full, **containers, **vars(function)})

    def set(self, name: str, value: Any) -> None:
        """Set a variable or an attribute."""
        if name in self.cells:
            self.cells[name].cell_contents = value
        elif not name.startswith("default "):
            setattr(self.function, name, value)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the function around it has not yet set the variable
        return False


class Generators:
    """The generators within a container or object, by paths, but for known ones, to which these are added."""

    __slots__ = ("__dict__", "holder")

    def __init__(self, holder: Any, known: Set[int]) -> None:
        self.holder = holder
        vars(self).update({path: each for path, each in generators_within(holder).items() if id(each) not in known})
        known.update(map(id, vars(self).values()))


def is_metric(value: Any) -> bool:
    """Whether it is of torchmetrics."""
    return isinstance(value, sys.modules["torchmetrics"].Metric)


def held(owner: str, holder: Any, seen: Set[int], most: int = 0) -> Iterator[Tuple[str, Any]]:
    """The plain objects of the project that an object holds, also in short lists and dictionaries.

    Such as a handwritten average of the weights, a meter, or a transform; and modules that are no part of the model.
    Functions of the project, by their variables.

    Args:
        owner: The name of the object.
        holder: The object.
        seen: Numbers of the objects that are known, to which these are added.
        most: How many these may become; by default a hundred more.
    """
    most = most or len(seen) + _MAX_HELD
    for name, value in list(attributes_of(holder).items()):
        for key, each in _parts_of(value):
            path = f"{owner}.{name}{key}"
            cls: Any = type(each)
            if id(each) in seen or len(seen) >= most:
                continue
            if cls is FunctionType:
                keeps = each.__closure__ or each.__defaults__ or each.__kwdefaults__ or each.__dict__
                if keeps and is_own(each.__module__ or ""):
                    seen.add(id(each))
                    variables = Variables(each)
                    yield path, variables
                    yield from held(path, variables, seen, most)
                continue
            if not (cls.__dictoffset__ or _slots_of(cls)) or is_record(each):
                continue
            # A data set may be torch's, such as a subset of the project's, or a library's; and be replaced by another.
            is_data = name in ("dataset", "datasets") and owner.startswith(LOADER)
            path += f" {cls.__qualname__}" if is_data else ""
            if is_plain(cls) or is_data:
                seen.add(id(each))
                if is_projects(each):
                    yield path, each
                yield from held(path, each, seen, most)
            # A data set may hold the model, and is read again from how it was when the epoch began.
            elif not owner.startswith(LOADER) and _is_stateful(cls):
                seen.add(id(each))
                found = _stateful(each, seen)
                if found is not None:
                    yield path, found
            elif not owner.startswith(LOADER) and _holds_values_only(each):
                seen.add(id(each))
                yield path, each


def _holds_values_only(value: Any) -> bool:
    """Whether a library's object is all that a save can hold of it, as a ``SobolEngine``: no file, client or lock."""
    own = {} if is_others(type(value).__module__) else vars(value)
    return bool(own) and all(map(_is_value, own.values()))


def _is_value(value: Any, depth: int = 3) -> bool:
    kind = type(value)
    if kind in _CONTAINERS or kind in (tuple, torch.Size):
        items = [*value, *value.values()] if kind is dict else value
        return depth > 0 and len(value) <= _MAX_HELD and all(_is_value(each, depth - 1) for each in items)
    is_of_torch = kind in (torch.Tensor, torch.dtype, torch.device)
    return kind in PLAIN or is_of_torch or kind.__module__ == "numpy" or is_generator(value)


def _parts_of(value: Any, depth: int = 4) -> Iterator[Tuple[str, Any]]:
    """The objects in short containers, bound methods and partials, by paths; an object itself without one."""
    items: Dict[Any, Any] = {}
    kind = type(value)
    if kind in _HOLD_NOTHING:
        return
    if kind in (list, tuple, deque) and len(value) <= _MAX_HELD:
        items = dict(enumerate(value))
    elif kind in (dict, OrderedDict, defaultdict) and len(value) <= _MAX_HELD:
        # The text of a tensor, as of optimizers' parameters, names nothing, and takes long to make.
        items = {key: each for key, each in value.items() if not isinstance(key, torch.Tensor)}
    elif kind is MethodType:
        items = {"__self__": value.__self__}
    elif kind is functools.partial:
        items = {"func": value.func, "args": value.args, "keywords": value.keywords}
    else:
        yield "", value
    for key, each in items.items() if depth else ():
        yield from ((f"[{key!r}]{path}", part) for path, part in _parts_of(each, depth - 1))


def _stateful(value: Any, seen: Set[int]) -> Optional[Stateful]:
    """The state of a library's object, but of what is around the model, or has a part of its state on other ranks."""
    if isinstance(value, torch.nn.Module):
        is_distributed = any(type(each).__module__.startswith("torch.distributed") for each in value.modules())
        if is_distributed or any(id(parameter) in seen for parameter in value.parameters()):
            return None
    try:
        return Stateful(value)
    except Exception:  # what its class raises, such as ZeroRedundancyOptimizer
        return None


@functools.lru_cache(maxsize=None)
def _is_stateful(cls: Any) -> bool:
    """Whether objects of a library's class, or modules, save themselves. Loaders are read again."""
    has_state = hasattr(cls, "state_dict") and hasattr(cls, "load_state_dict") and not hasattr(cls, "__iter__")
    is_free = not any(is_others(base.__module__) for base in cls.__mro__[:-1])
    return issubclass(cls, torch.nn.Module) or (has_state and is_free)


def attributes_of(owner: Any) -> Mapping[str, Any]:
    """What ``vars`` has of an object, and what is in the slots of a project's one, by names.

    Of a dictionary, whose items are attributes, too, its items.
    """
    if isinstance(owner, dict):
        return {name: value for name, value in owner.items() if isinstance(name, str)}
    cls: Any = type(owner)
    own = getattr(owner, "__dict__", {})
    slots = [name for name in _slots_of(cls) if hasattr(owner, name)]
    return {**own, **{name: getattr(owner, name) for name in slots}} if slots else own


@functools.lru_cache(maxsize=None)
def _slots_of(cls: Any) -> List[str]:
    items = [item for base in cls.__mro__ for item in vars(base).items()] if is_plain(cls) else []
    return [name for name, each in items if isinstance(each, MemberDescriptorType)]


def value_of(owner: Any, name: str) -> Any:
    """An attribute, or a buffer of a module; ``None`` where there is neither."""
    own = attributes_of(owner)
    return own[name] if name in own else own.get("_buffers", {}).get(name)


def set_packed(owner: Any, name: str, packed: Any, device: Any) -> None:
    """Set an attribute, in place where others may hold the same object."""
    now = value_of(owner, name)
    if isinstance(packed, tuple) and packed[0] == GENERATOR:
        if is_generator(now):
            set_generator_state(now, packed[1])
        elif isinstance(owner, Generators):
            add_generator_within(owner.holder, name, packed[1], device)
        elif now is None:
            _assign(owner, name, new_generator(packed[1], device))
        return
    try:
        value = unpacked(packed, device)
    except (KeyError, TypeError) as error:  # of an enumeration that is not loaded, or has other members now
        log.warning("Not restored: the attribute %s of a %s (%s)", name, type(owner).__qualname__, error)
        return
    if isinstance(owner, Stateful):
        owner.load(name, value)
        return
    if type(now) is type(value):
        if isinstance(now, (list, deque)):
            now.clear()
            now.extend(value)
            return
        if isinstance(now, (dict, set)):
            now.clear()
            now.update(value)
            return
        if isinstance(now, (array, bytearray)):
            now[:] = value
            return
        is_alike = isinstance(now, torch.Tensor) and (now.shape, now.dtype) == (value.shape, value.dtype)
        if is_alike and now.device == value.device and not now.is_inference():
            now.detach().copy_(value.detach())
            return
    try:
        _assign(owner, name, value)
    except Exception as error:  # what a library's class raises
        log.warning("Not restored: the attribute %s of a %s (%s)", name, type(owner).__qualname__, error)


def _assign(owner: Any, name: str, value: Any) -> None:
    kind: Any = type(owner)
    if isinstance(owner, Variables):
        owner.set(name, value)
    elif is_plain(kind):  # which may refuse, or change, what is assigned
        object.__setattr__(owner, name, value)
    else:
        setattr(owner, name, value)
