"""``Source``: the weights to export and, for graph formats, a copy of the module that has them."""

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Dict, Iterator, Mapping, Optional, Set

from lightning_sm._export.example import Example
from lightning_sm._export.plan import ExportFormat, ExportPlan
from lightning_sm._export.sharded import read_folder
from lightning_sm._logging import log
from lightning_sm._resume.transfers import has_folder, local_checkpoint
from lightning_sm.errors import ExportError

__all__ = [
    "Source",
    "copy_module",
    "load_file",
    "load_weights",
    "make_source",
    "plain_functions",
    "prepare_module",
    "submodule_state_dict",
]

# Attributes of Lightning's modules that belong to the run and not to the model.
_RUN_ATTRIBUTES = ("trainer", "_trainer", "_fabric", "_compiler_ctx")
# Methods that Lightning replaces in a compiled module.
_COMPILED_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


@dataclass(frozen=True)
class Source:
    """What is exported.

    Args:
        state_dict: Parameters and buffers of the model, or of the exported submodule, on any device.
        checkpoint: The whole checkpoint that the weights are from, for that format.
        module: The model or submodule with these weights, on the CPU and in eval mode, for graph formats.
        example: An input of it.
        is_best: Whether the weights are those of the best checkpoint.
    """

    state_dict: Mapping[str, Any] = field(repr=False)
    checkpoint: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    module: Any = field(default=None, repr=False)
    example: Optional[Example] = None
    is_best: bool = False


def make_source(
    plan: ExportPlan,
    module: Any,
    last: Mapping[str, Any],
    best: Optional[str],
    *,
    example: Optional[Example] = None,
    rebuild: bool = False,
    hparams: Optional[Mapping[str, Any]] = None,
    config: Optional[str] = None,
    weights_only: bool = False,
) -> Source:
    """Select the weights and, for graph formats, load them into a copy of the module.

    Args:
        plan: What is exported.
        module: The trained model, which is not changed.
        last: The checkpoint at the end of training; of it, at least the ``state_dict``.
        best: The file, folder or URL of the best checkpoint, if its weights are exported. The weights in ``last`` are
            then dropped, so that the host never holds both. Of a file that cannot be read so, which a ``CheckpointIO``
            of the project may write, a log line says so, and the last weights are taken.
        example: An input of the model or submodule.
        rebuild: Whether the copy is instantiated from the class, because the module holds only shards of its tensors.
        hparams: Constructor arguments for that.
        config: The configuration as YAML, which may hold the constructor arguments, too.
        weights_only: Whether the best checkpoint is loaded with ``weights_only=True``.

    Raises:
        ExportError: A folder cannot be read, or the module cannot be copied.
    """
    try:
        read = None if best is None else _read_best(best, last, weights_only)
        found, is_best = last if read is None else read, read is not None
        weights = found["state_dict"]
        checkpoint = found if plan.format is ExportFormat.CHECKPOINT else None
        selected = submodule_state_dict(weights, plan.submodule)
        if not plan.format.is_graph:
            return Source(selected, checkpoint, is_best=is_best)
        if example is None:
            raise ExportError(
                "The model cannot be run for export: training provided no input for it.",
                hint="Set sagemaker.export_example_input to the shape of an input, such as [1, 3, 32, 32].",
            )
        copied = _rebuild(module, hparams, config) if rebuild else copy_module(module)
        prepared = prepare_module(copied, weights, plan.submodule)
        return Source(selected, checkpoint, prepared, example.cast(prepared), is_best)
    except ExportError:
        raise
    except Exception as error:  # whatever a model's own code raises when it is copied
        raise ExportError(
            f"The model could not be prepared for export as {plan.format} "
            f"({type(error).__name__}: {' '.join(str(error).split())}).",
            hint="The checkpoints are kept. Set sagemaker.export to state_dict, which needs no copy of the model.",
        ) from error


def copy_module(module: Any) -> Any:
    """Copy a module to the CPU, without gradients and without the trainer.

    A tensor that is registered under several names stays one tensor. Nothing is copied on the module's own device.
    """
    import torch

    memo: Dict[int, Any] = {}
    seen: Set[int] = set()
    for child in module.modules():
        for name in _RUN_ATTRIBUTES:
            if vars(child).get(name) is not None:
                memo[id(vars(child)[name])] = None
        # A loss kept as an attribute has a graph, which cannot be copied.
        for value in _tensors(vars(child), seen):
            memo[id(value)] = value.detach().cpu().clone()
    for value in chain(module.parameters(), module.buffers()):
        if type(value) is torch.nn.Parameter:
            memo[id(value)] = torch.nn.Parameter(value.detach().cpu().clone(), value.requires_grad)
        elif type(value) is torch.Tensor:
            memo[id(value)] = value.detach().cpu().clone()
    copied = copy.deepcopy(module, memo)
    if vars(module).get("_compiler_ctx") is not None:
        for name in _COMPILED_METHODS:
            vars(copied).pop(name, None)
    return copied


def prepare_module(module: Any, state_dict: Mapping[str, Any], submodule: Optional[str]) -> Any:
    """Load weights into a copy and return it, or its submodule, on the CPU, in eval mode and without gradients."""
    load_weights(module, state_dict)
    target = module if submodule is None else module.get_submodule(submodule)
    return _uncompiled(target).to("cpu").eval().requires_grad_(False)


@contextmanager
def plain_functions() -> Iterator[None]:
    """Undo for a while what DeepSpeed's stage 3 replaces in torch itself, and which cannot be traced.

    ``torch.nn.functional.linear``: ``deepspeed/runtime/zero/partition_parameters.py``, ``memory_efficient_linear``.
    """
    import torch

    functional: Any = torch.nn.functional
    replaced = functional.linear
    if getattr(replaced, "__module__", "").startswith("deepspeed."):
        functional.linear = torch._C._nn.linear
    try:
        yield
    finally:
        functional.linear = replaced


def submodule_state_dict(state_dict: Mapping[str, Any], submodule: Optional[str]) -> Dict[str, Any]:
    """The entries of a submodule, without its prefix; all of them where ``submodule`` is ``None``.

    >>> submodule_state_dict({"encoder.weight": 1, "head.weight": 2}, "head")
    {'weight': 2}
    """
    prefix = "" if submodule is None else f"{submodule}."
    return {name[len(prefix) :]: value for name, value in state_dict.items() if name.startswith(prefix)}


def load_weights(module: Any, state_dict: Mapping[str, Any]) -> None:
    """Load weights into a module as strictly as Lightning loads its checkpoints."""
    module.load_state_dict(state_dict, strict=getattr(module, "strict_loading", True))


def load_file(path: str, *, weights_only: bool) -> Any:
    """Load a file or URL, written by ``torch.save``, onto the CPU.

    Args:
        path: The file or URL.
        weights_only: Whether it may hold tensors and plain values only; without effect before torch 1.13.
    """
    from lightning_sm._export.inference import read_file

    with local_checkpoint(path) as file:
        return read_file(file, weights_only=weights_only)


def _read_best(best: str, last: Mapping[str, Any], weights_only: bool) -> Optional[Mapping[str, Any]]:
    """The best checkpoint; ``None`` if it is a file that cannot be read, or one without weights."""
    if has_folder(best):
        with local_checkpoint(best) as folder:
            return read_folder(folder, last["state_dict"])
    # This run wrote the checkpoint, so it is trusted unless the user restricts loading.
    try:
        found: Mapping[str, Any] = load_file(best, weights_only=weights_only)
        problem = None if "state_dict" in found else "it holds no state_dict"
    except Exception as error:  # each version has exceptions of its own
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if problem is None:
        last.get("state_dict", {}).clear()
        return found
    how = " with weights_only=True, which sagemaker.resume_weights_only requires" if weights_only else ""
    log.warning("Best checkpoint %s cannot be read%s (%s); exporting the last weights instead", best, how, problem)
    return None


def _rebuild(module: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str]) -> Any:
    from lightning_sm._export.inference import build_model

    return build_model(type(module), hparams, config)


def _uncompiled(module: Any) -> Any:
    """Replace each module that ``torch.compile`` wrapped by the original, since exporters cannot trace the wrapper."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, "_orig_mod"):
                setattr(parent, name, child._orig_mod)
    return getattr(module, "_orig_mod", module)


def _tensors(values: Any, seen: Set[int]) -> Iterator[Any]:
    """Every tensor in nested containers that is not a parameter."""
    import torch

    if id(values) in seen:
        return
    seen.add(id(values))
    if type(values) is torch.Tensor:
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from _tensors(inner, seen)
