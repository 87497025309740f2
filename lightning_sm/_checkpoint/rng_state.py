"""Random number generators, and numbers that change, which objects of a project hold: samplers, data sets, loaders.

The states of this process's random number generators.
"""

import functools
import json
import random
import sys
from types import FunctionType, ModuleType
from typing import Any, Dict, Iterator, List, Mapping, Tuple

__all__ = [
    "counted",
    "generators_in",
    "numbers_in",
    "read_generator",
    "set_counted",
    "set_generators",
    "random_states",
    "set_random_states",
    "states_from_plain",
    "states_to_plain",
    "torch_states",
]

# A data set may lead to anything, such as to the whole data module.
_DEPTH, _ITEMS, _OBJECTS = 4, 16, 2000


def generators_in(value: Any, *, but: Mapping[str, Any] = {}) -> Dict[str, Any]:
    """Find the generators of torch, numpy and Python that an object holds, by the path that leads to each.

    Args:
        value: The object.
        but: Generators that belong to something else.
    """
    seen = {id(generator) for generator in but.values()}
    return {path: found for path, found in _walk(value, "", _DEPTH, seen) if _is_generator(found)}


def _walk(value: Any, path: str, depth: int, seen: set) -> Iterator[Tuple[str, Any]]:  # type: ignore[type-arg]
    if id(value) in seen or len(seen) > _OBJECTS:
        return
    seen.add(id(value))
    yield path, value
    if depth == 0 or _is_generator(value):
        return
    for name, inner in _parts(value):
        yield from _walk(inner, f"{path}.{name}" if path else str(name), depth - 1, seen)


def _parts(value: Any) -> Iterator[Tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from list(value.items())[:_ITEMS]
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value[:_ITEMS])
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, FunctionType)):
        # A loader's own iterator, and what torch keeps under such names, is none of the project's.
        yield from [(name, inner) for name, inner in vars(value).items() if not name.startswith("__")]


def _is_generator(value: Any) -> bool:
    import torch

    if isinstance(value, (torch.Generator, random.Random)):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def read_generator(generator: Any) -> Any:
    """The state of a generator as a tensor or text, which a restricted load of a checkpoint accepts."""
    import torch

    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return json.dumps(generator.getstate())
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return json.dumps(state, default=lambda value: value.tolist())


def set_generators(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set those generators of which a state is known."""
    for path in generators.keys() & states.keys():
        _set_generator(generators[path], states[path])


def _set_generator(generator: Any, state: Any) -> None:
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


def numbers_in(value: Any) -> Dict[str, Any]:
    """The numbers among the attributes of a sampler or loader, and of the sampler that it holds."""
    found: Dict[str, Any] = {}
    path = ""
    while hasattr(value, "__dict__"):
        found.update({f"{path}{name}": held for name, held in vars(value).items() if type(held) in (int, float)})
        path, value = f"{path}sampler.", vars(value).get("sampler")
    return found


def counted(value: Any, at_first: Mapping[str, Any]) -> Dict[str, Any]:
    """The numbers of :func:`numbers_in` that are others than they were at first."""
    return {path: number for path, number in numbers_in(value).items() if at_first.get(path) != number}


def set_counted(value: Any, numbers: Mapping[str, Any], at_first: Mapping[str, Any]) -> None:
    """Set what :func:`counted` told, and all others as they were at first."""
    for path, number in {**at_first, **numbers}.items():
        *owners, name = path.split(".")
        owner = functools.reduce(lambda held, each: getattr(held, each, None), owners, value)
        # It may be the class's still.
        now = getattr(owner, name, None)
        if type(now) is type(number) and now != number:
            object.__setattr__(owner, name, number)


States = Dict[str, Any]


def random_states(cuda: bool = False) -> States:
    """Read the states of Python, numpy (where somebody uses it) and torch, which draws nothing from them.

    It takes about 0.1 ms, nearly all of it for numpy and Python.

    Args:
        cuda: Whether the current CUDA device's is read too.
    """
    states = torch_states(cuda)
    states["python"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def torch_states(cuda: bool = False) -> States:
    """Read the states of torch alone, which takes a few microseconds."""
    import torch

    return {"torch": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if cuda else {})}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set those generators that ``states`` has something about."""
    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def states_to_plain(states: Mapping[str, Any]) -> States:
    """Turn states into what a checkpoint may hold that is loaded with ``weights_only``: tensors, numbers, strings."""
    import torch

    version, words, gauss = states["python"]
    plain: States = {"torch": states["torch"], "python": [version, torch.tensor(words), gauss]}
    if "numpy" in states:
        kind, keys, *rest = states["numpy"]
        plain["numpy"] = [kind, torch.tensor([int(key) for key in keys]), *(_number(value) for value in rest)]
    if "cuda" in states:
        plain["cuda"] = states["cuda"]
    return plain


def states_from_plain(plain: Mapping[str, Any]) -> States:
    """Turn what :func:`states_to_plain` made back into states."""
    version, words, gauss = plain["python"]
    states: States = {"torch": plain["torch"].cpu(), "python": (version, tuple(_integers(words)), gauss)}
    if "numpy" in plain:
        kind, keys, *rest = plain["numpy"]
        states["numpy"] = (kind, _integers(keys), *rest)
    if "cuda" in plain:
        states["cuda"] = plain["cuda"].cpu()
    return states


def _number(value: Any) -> Any:
    # numpy 2 gives its own scalars, which a restricted load refuses.
    return value.item() if hasattr(value, "item") else value


def _integers(tensor: Any) -> List[int]:
    return [int(value) for value in tensor.tolist()]
