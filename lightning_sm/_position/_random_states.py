"""The states of this process's random number generators."""

import random
import sys
from typing import Any, Dict, List, Mapping

__all__ = ["random_states", "set_random_states", "states_from_plain", "states_to_plain", "torch_states"]

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
