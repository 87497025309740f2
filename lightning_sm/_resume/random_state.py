"""States of random number generators: those of the process, and those that samplers and loaders hold."""

import functools
import json
import os
import random
from contextlib import contextmanager
from types import BuiltinMethodType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

import numpy
import torch
from torch.utils.data import DataLoader, Sampler

from lightning_sm._lightning.stand_in import original

__all__ = [
    "add_generator_within",
    "generators_within",
    "get_generator_state",
    "get_process_state",
    "is_drawn_by",
    "is_generator",
    "keep_process_state",
    "new_generator",
    "sampler_attributes",
    "set_generator_state",
    "set_process_state",
]

_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
# Whose samplers and loaders count nothing that Lightning does not restore.
_LIBRARIES = frozenset({"torch", "lightning", "pytorch_lightning", "lightning_fabric", "torchdata"})
_DATA = frozenset({"dataset", "data_source"})
_ARGUMENTS = frozenset({"batch_size", "num_workers", "prefetch_factor", "timeout"})
# How many objects are looked at for generators that they hold, and items of each container.
_MAX_OBJECTS, _MAX_ITEMS = 2_000, 100
# Packages whose objects hold the whole program.
_WHOLE = {
    "lightning", "lightning_fabric", "lightning_sm", "logging", "multiprocessing", "pytorch_lightning", "threading",
}  # fmt: skip
# Set by ``seed_everything``, which may draw another seed in each attempt. Distributed samplers are made with it.
_SEED = "PL_GLOBAL_SEED"


def get_process_state() -> Dict[str, Any]:
    """Return the states of Python's, numpy's and torch's generators of this process, and of its GPU or NeuronCore.

    And ``PL_GLOBAL_SEED``, where ``seed_everything`` has set it.
    """
    state = {name: get_generator_state(generator) for name, generator in _of_process().items()}
    for name, device in _of_devices().items():
        if name != "cuda" or device.is_initialized():
            state[name] = device.get_rng_state()
    if _SEED in os.environ:
        state["seed"] = os.environ[_SEED]
    return state


def set_process_state(state: Mapping[str, Any]) -> None:
    """Set what :func:`get_process_state` returned."""
    for name, generator in _of_process().items():
        set_generator_state(generator, state[name])
    for name, device in _of_devices().items():
        if name in state:
            device.set_rng_state(state[name].cpu())
    if "seed" in state:
        os.environ[_SEED] = state["seed"]


@contextmanager
def keep_process_state() -> Iterator[None]:
    """Let the program go on after the block with the random numbers that it would have had without it."""
    state = get_process_state()
    try:
        yield
    finally:
        set_process_state(state)


def _of_devices() -> Dict[str, Any]:
    """The modules of torch for the kinds of devices that are here and whose generators Lightning leaves to us."""
    modules = {name: getattr(torch, name, None) for name in ("cuda", "neuron")}
    return {name: module for name, module in modules.items() if module is not None and module.is_available()}


def _of_process() -> Dict[str, Any]:
    return {"torch": torch.default_generator, "python": random, "numpy": numpy.random}


def sampler_attributes(loader: Any) -> Iterator[Tuple[str, Any, str, Any]]:
    """Path, owner, name and value of what samplers hold and may change: see :func:`is_drawn_by`; weights, orders.

    Not the data, and not what Lightning's samplers keep of an epoch. Of a loader what its own class adds, and its
    generator.
    """
    of_loaders = vars(DataLoader(()))  # type: ignore[arg-type]
    for path, owner, name, value in _all_attributes(loader):
        package = type(owner).__module__.partition(".")[0]
        is_own = package not in _LIBRARIES
        if type(value) is int:
            # Of torch's samplers, the one for several processes has a seed.
            may_change = name == "seed" or (is_own and name not in _ARGUMENTS)
        elif is_generator(value):
            may_change = True
        else:
            is_kept = name in _DATA or (owner is loader and name in of_loaders)
            may_change = not is_kept and (is_own or (package == "torch" and isinstance(value, (list, torch.Tensor))))
        if may_change:
            yield path, owner, name, value


def is_drawn_by(value: Any) -> bool:
    """Whether samplers derive the order of an epoch from it: a generator, a seed, the epochs that they have counted."""
    return type(value) is int or is_generator(value)


def _all_attributes(loader: Any) -> Iterator[Tuple[str, Any, str, Any]]:
    owners, seen = [("", loader)], set()
    for at, owner in owners:  # grows by the samplers that each of them holds
        if id(owner) in seen or not hasattr(owner, "__dict__"):
            continue
        seen.add(id(owner))
        for name, value in vars(owner).items():
            inner = original(value)
            # torch takes anything that gives indices, such as a list.
            if _is_sampler(inner) or (name in ("sampler", "batch_sampler") and hasattr(inner, "__dict__")):
                owners.append((f"{at}.{name}" if at else name, inner))
            else:
                yield f"{at}.{name}", owner, name, value


def _is_sampler(value: Any) -> bool:
    """Whether it is a sampler, or what Lightning's distributed one takes for the data set in place of a sampler."""
    return isinstance(value, Sampler) or type(value).__name__ == "_DatasetSamplerWrapper"


def generators_within(value: Any) -> Dict[str, Any]:
    """The generators in what a container or object holds, such as a library's transforms, by paths; not the process's.

    Nothing is called of what is looked at: some objects answer with new ones, or change when they are asked.
    """
    seen = set(map(id, (torch.default_generator, vars(random)["_inst"], vars(numpy.random.mtrand)["_rand"])))
    places, found = [("", value)], {}
    for path, each in places:  # grows
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_generator(each):
            found[path] = each
        elif len(places) < _MAX_OBJECTS:
            items = ((f"{path}.{name}", item) for name, item in _items_of(each))
            places.extend(place for place in items if is_generator(place[1]) or _has_items(place[1]))
    return found


def add_generator_within(value: Any, path: str, state: Any, device: Any) -> None:
    """Make a generator that a program makes with its first batch, where :func:`generators_within` had found it.

    Args:
        value: The container or object.
        path: The generator's path.
        state: What :func:`get_generator_state` returned.
        device: The training's device.
    """
    *parents, name = path.split(".")[1:]
    for parent in parents:
        value = {str(key): item for key, item in _items_of(value)}.get(parent)
        if not _has_items(value):
            return
    own = {} if type(value) in (list, tuple, dict) else dict(_items_of(value))
    if own and own.get(name) is None:
        object.__setattr__(value, name, new_generator(state, device))
        # Hugging Face's collators make one in each process, and note in which.
        for key in [key for key, each in own.items() if key.endswith("_pid") and each is None]:
            object.__setattr__(value, key, os.getpid())


def _has_items(value: Any) -> bool:
    kind: Any = type(value)
    return len(value) <= _MAX_ITEMS if kind in (list, tuple, dict) else _has_attributes(kind)


@functools.lru_cache(maxsize=None)
def _has_attributes(kind: Any) -> bool:
    if kind in (MethodType, BuiltinMethodType):
        return True
    is_left_out = issubclass(kind, (type, ModuleType, torch.Tensor, torch.nn.Module))
    if is_left_out or kind.__module__.partition(".")[0] in _WHOLE:
        return False
    # A TypeVar of Python 3.12 keeps attributes and has no __dict__; a proxy's is a property, which may raise.
    own = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return isinstance(own, (GetSetDescriptorType, MemberDescriptorType))


def _items_of(value: Any) -> Iterable[Tuple[Any, Any]]:
    if type(value) in (list, tuple, dict):
        return enumerate(value.values() if type(value) is dict else value)
    if type(value) in (MethodType, BuiltinMethodType):
        return [("__self__", value.__self__)]
    return list(object.__getattribute__(value, "__dict__").items())


def is_generator(value: Any) -> bool:
    """Whether it is a generator of torch, Python or numpy with a state of its own."""
    kind: Any = type(value)
    # SystemRandom has no state, others of their own may have any.
    has_another_state = issubclass(kind, random.Random) and kind.getstate is not random.Random.getstate
    return issubclass(kind, _GENERATORS) and not has_another_state


def get_generator_state(generator: Any) -> Any:
    """The state of a generator, or of a module with one, in a form that is saved fast: a tensor, or JSON."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "getstate"):
        state = generator.getstate()
    elif hasattr(generator, "get_state"):
        state = generator.get_state(legacy=False)
    else:
        state = generator.bit_generator.state
    return json.dumps(state, default=lambda inner: inner.tolist())


def new_generator(state: Any, device: Any) -> Any:
    """A generator with a state that :func:`get_generator_state` returned; ``device`` is that of one for GPUs."""
    generator: Any
    content = state if isinstance(state, torch.Tensor) else json.loads(state)
    if isinstance(content, torch.Tensor):
        generator = torch.Generator("cpu" if content.shape == torch.default_generator.get_state().shape else device)
    elif isinstance(content, list):
        generator = random.Random()
    elif "has_gauss" in content:
        generator = numpy.random.RandomState()
    else:
        generator = numpy.random.Generator(getattr(numpy.random, content["bit_generator"])())
    set_generator_state(generator, state)
    return generator


def set_generator_state(generator: Any, state: Any) -> None:
    """Set what :func:`get_generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif hasattr(generator, "setstate"):
        version, numbers, *others = json.loads(state)
        generator.setstate((version, tuple(numbers), *others))
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state))
    else:
        generator.bit_generator.state = json.loads(state)
