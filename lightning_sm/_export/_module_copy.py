"""A copy of a module on the CPU, to be run and traced while training's own stays as it is."""

import copy
from itertools import chain
from typing import Any, Dict, Iterator, Mapping, Set

__all__ = ["copy_module", "loaded_for_export", "part_of_state_dict"]

# What belongs to the run and not to the model: attributes of Lightning's modules.
_OF_THE_RUN = ("trainer", "_trainer", "_fabric", "_compiler_ctx")
# What Lightning replaces in a compiled module.
_COMPILED = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def copy_module(module: Any) -> Any:
    """Copy a module to the CPU, without gradients and without the trainer.

    Tensors that share their memory as one object go on doing so; no tensor is copied on its own device.
    """
    import torch

    memo: Dict[int, Any] = {}
    seen: Set[int] = set()
    for part in module.modules():
        for name in _OF_THE_RUN:
            if vars(part).get(name) is not None:
                memo[id(vars(part)[name])] = None
        # A loss that somebody kept has a graph, which cannot be copied.
        for value in _tensors(vars(part), seen):
            memo[id(value)] = value.detach().cpu().clone()
    for value in chain(module.parameters(), module.buffers()):
        if type(value) is torch.nn.Parameter:
            memo[id(value)] = torch.nn.Parameter(value.detach().cpu().clone(), value.requires_grad)
        elif type(value) is torch.Tensor:
            memo[id(value)] = value.detach().cpu().clone()
    copied = copy.deepcopy(module, memo)
    if vars(module).get("_compiler_ctx") is not None:
        for name in _COMPILED:
            vars(copied).pop(name, None)
    return copied


def loaded_for_export(module: Any, state_dict: Mapping[str, Any], submodule: Any) -> Any:
    """Load weights into a copy, and return it, or a part of it, as it is exported: on the CPU and in eval mode."""
    module.load_state_dict(state_dict, strict=getattr(module, "strict_loading", True))
    part = module if submodule is None else module.get_submodule(submodule)
    part = _uncompiled(part).to("cpu").eval()
    return part.requires_grad_(False)


def part_of_state_dict(state_dict: Mapping[str, Any], submodule: Any) -> Dict[str, Any]:
    """What of a state dict belongs to a part of the model, under the part's own names."""
    prefix = "" if submodule is None else f"{submodule}."
    return {name[len(prefix) :]: value for name, value in state_dict.items() if name.startswith(prefix)}


def _uncompiled(module: Any) -> Any:
    """Put back what ``torch.compile`` has wrapped, which no exporter can look into."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, "_orig_mod"):
                setattr(parent, name, child._orig_mod)
    return getattr(module, "_orig_mod", module)


def _tensors(values: Any, seen: Set[int]) -> Iterator[Any]:
    """Every tensor in nested values that is no parameter."""
    import torch

    if id(values) in seen:
        return
    seen.add(id(values))
    if type(values) is torch.Tensor:
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from _tensors(inner, seen)
