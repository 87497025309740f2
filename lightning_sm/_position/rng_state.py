"""State of random number generators: those of the process, and those that samplers, data sets and loaders hold.

Also the counters that such objects hold, because many derive a seed from the number of epochs they have counted.
"""

import functools
import json
import random
import sys
from types import FunctionType, ModuleType
from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

__all__ = [
    "changed_counters",
    "find_counters",
    "find_generators",
    "get_generator_state",
    "get_rng_states",
    "get_torch_rng_states",
    "rng_states_from_plain",
    "rng_states_to_plain",
    "set_counters",
    "set_generator_states",
    "set_rng_states",
]

# Limits of the search: a data set may reference anything, such as the whole data module.
_MAX_DEPTH, _MAX_ITEMS, _MAX_OBJECTS = 4, 16, 2000


def find_generators(value: Any, *, exclude: Mapping[str, Any] = {}) -> Dict[str, Any]:
    """Find the generators of torch, numpy and Python that an object references, by their attribute path.

    Args:
        value: The object.
        exclude: Generators that belong to another object.
    """
    seen = {id(generator) for generator in exclude.values()}
    return {path: found for path, found in _walk(value, "", _MAX_DEPTH, seen) if _is_generator(found)}


def _walk(value: Any, path: str, depth: int, seen: Set[int]) -> Iterator[Tuple[str, Any]]:
    if id(value) in seen or len(seen) > _MAX_OBJECTS:
        return
    seen.add(id(value))
    yield path, value
    if depth == 0 or _is_generator(value):
        return
    for name, inner in _children(value):
        yield from _walk(inner, f"{path}.{name}" if path else str(name), depth - 1, seen)


def _children(value: Any) -> Iterator[Tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from list(value.items())[:_MAX_ITEMS]
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value[:_MAX_ITEMS])
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, FunctionType)):
        # Names with two underscores are torch's own, such as the iterator of a DataLoader.
        yield from [(name, inner) for name, inner in vars(value).items() if not name.startswith("__")]


def _is_generator(value: Any) -> bool:
    import torch

    if isinstance(value, (torch.Generator, random.Random)):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def get_generator_state(generator: Any) -> Any:
    """Return the state of a generator as a tensor or JSON, which ``torch.load(weights_only=True)`` accepts."""
    import torch

    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate())
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return json.dumps(state, default=lambda value: value.tolist())


def set_generator_states(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set the state of each generator whose path is in ``states``."""
    for path in generators.keys() & states.keys():
        _set_generator_state(generators[path], states[path])


def _set_generator_state(generator: Any, state: Any) -> None:
    import torch

    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, random.Random):
        version, words, gauss = json.loads(state)
        generator.setstate((version, tuple(words), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(json.loads(state))
    else:
        generator.bit_generator.state = json.loads(state)


def find_counters(value: Any) -> Dict[str, Any]:
    """Return the numbers among the attributes of a sampler or loader and of its ``sampler``, by attribute path."""
    found: Dict[str, Any] = {}
    path = ""
    while hasattr(value, "__dict__"):
        found.update({f"{path}{name}": held for name, held in vars(value).items() if type(held) in (int, float)})
        path, value = f"{path}sampler.", vars(value).get("sampler")
    return found


def changed_counters(value: Any, initial: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the counters that differ from their ``initial`` values."""
    return {path: number for path, number in find_counters(value).items() if initial.get(path) != number}


def set_counters(value: Any, counters: Mapping[str, Any], initial: Mapping[str, Any]) -> None:
    """Set the counters that :func:`changed_counters` returned, and all others to their ``initial`` values."""
    for path, number in {**initial, **counters}.items():
        *owners, name = path.split(".")
        owner = functools.reduce(lambda held, each: getattr(held, each, None), owners, value)
        # Here it may still be an attribute of the class.
        now = getattr(owner, name, None)
        if type(now) is type(number) and now != number:
            object.__setattr__(owner, name, number)


_States = Dict[str, Any]


def get_rng_states(cuda: bool = False) -> _States:
    """Return the states of the global generators of Python, torch, and numpy if it is loaded. Takes about 0.1 ms.

    Args:
        cuda: Whether to include the generator of the current CUDA device.
    """
    states = get_torch_rng_states(cuda)
    states["python"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def get_torch_rng_states(cuda: bool = False) -> _States:
    """Return the states of torch's global generators only, which takes a few microseconds."""
    import torch

    return {"torch": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if cuda else {})}


def set_rng_states(states: Mapping[str, Any]) -> None:
    """Set the global generators whose state is in ``states``."""
    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def rng_states_to_plain(states: Mapping[str, Any]) -> _States:
    """Convert states to tensors, numbers and strings, which ``torch.load(weights_only=True)`` accepts."""
    import torch

    version, words, gauss = states["python"]
    plain: _States = {"torch": states["torch"], "python": [version, torch.tensor(words), gauss]}
    if "numpy" in states:
        kind, keys, *rest = states["numpy"]
        plain["numpy"] = [kind, torch.tensor([int(key) for key in keys]), *(_number(value) for value in rest)]
    if "cuda" in states:
        plain["cuda"] = states["cuda"]
    return plain


def rng_states_from_plain(plain: Mapping[str, Any]) -> _States:
    """Convert the result of :func:`rng_states_to_plain` back to states."""
    version, words, gauss = plain["python"]
    states: _States = {"torch": plain["torch"].cpu(), "python": (version, tuple(_integers(words)), gauss)}
    if "numpy" in plain:
        kind, keys, *rest = plain["numpy"]
        states["numpy"] = (kind, _integers(keys), *rest)
    if "cuda" in plain:
        states["cuda"] = plain["cuda"].cpu()
    return states


def _number(value: Any) -> Any:
    # numpy 2 returns its own scalars, which weights_only refuses.
    return value.item() if hasattr(value, "item") else value


def _integers(tensor: Any) -> List[int]:
    return [int(value) for value in tensor.tolist()]
