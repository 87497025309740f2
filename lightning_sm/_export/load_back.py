"""The one check of an export: what was written is loaded again, by the code for serving, and compared.

Saved tensors must be equal. Of a format that holds a graph the outputs for the example are compared.
"""

import os
from typing import Any, Callable, Dict, List, Mapping, Tuple

from lightning_sm._export.example import Example
from lightning_sm._export.plan import ExportPlan
from lightning_sm._export.source import Source
from lightning_sm._logging import log
from lightning_sm._resume.values import equal_tensors
from lightning_sm.errors import ExportError

__all__ = ["compare_outputs", "compare_tensors", "load_back"]

# The largest allowed difference between two outputs, relative to their largest value: another engine adds up the same
# numbers in another order.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 2e-2
# Of other objects than tensors these can be compared.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def load_back(folder: str, plan: ExportPlan, source: Source) -> Dict[str, Any]:
    """Load what was written to a folder, and compare it with its source.

    Args:
        folder: The folder, with ``model.json``.
        plan: What was exported.
        source: From what it was written.

    Returns:
        The entry ``comparison`` of ``model.json``.

    Raises:
        ExportError: They differ.
    """
    from lightning_sm._export.inference import model_fn, read_state_dict

    if plan.format.is_graph:
        assert source.example is not None
        return compare_outputs(source.module, model_fn(folder), source.example, str(plan.format))
    if not plan.serving:
        saved = read_state_dict(os.path.join(folder, plan.format.file), plan.format.value)
        return compare_tensors(source.state_dict, saved)
    loaded = model_fn(folder).state_dict()
    # A model that is instantiated again has its class's precision, and may have more than was saved.
    expected = {name: _in_dtype_of(loaded.get(name), value) for name, value in source.state_dict.items()}
    return compare_tensors(expected, {name: loaded[name] for name in expected if name in loaded})


def _in_dtype_of(loaded: Any, value: Any) -> Any:
    return value.to(loaded.dtype) if hasattr(value, "detach") and hasattr(loaded, "dtype") else value


def compare_tensors(expected: Mapping[str, Any], loaded: Mapping[str, Any]) -> Dict[str, Any]:
    """Compare the tensors of a state dict that was loaded again with the original ones, bit by bit.

    A value that torch cannot compare, such as a nested tensor, is left out, and a line of the log says so.

    Returns:
        The entry ``comparison`` of ``model.json``.

    Raises:
        ExportError: They differ.
    """
    differing, skipped = sorted(set(expected) ^ set(loaded)), []
    for name, value in {} if differing else expected.items():
        try:
            if not _equal(value, loaded[name]):
                differing.append(name)
        except Exception as error:  # each type of tensor has its own
            skipped.append(name)
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            log.warning("%s is exported, and cannot be compared after loading (%s)", name, why)
    if differing:
        raise ExportError(
            f"The exported file does not hold what was saved: {', '.join(differing[:3])} differ after loading.",
            hint="Check the disk of the model directory; if it is healthy, report this as a bug.",
        )
    return {"compared": "tensors", "tensors": len(expected) - len(skipped)}


def compare_outputs(
    module: Callable[..., Any], loaded: Callable[..., Any], example: Example, what: str
) -> Dict[str, Any]:
    """Run the model and the exported one on the example and compare their outputs.

    Args:
        module: The model.
        loaded: The exported model, loaded again.
        example: The input.
        what: The name of the format, for the error.

    Returns:
        The entry ``comparison`` of ``model.json``.

    Raises:
        ExportError: The outputs differ by more than the tolerance.
    """
    expected, repeated = _run(module, example, seed=0), _run(module, example, seed=1)
    is_half = any(tensor.is_floating_point() and tensor.element_size() <= 2 for tensor in expected)
    tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
    if not _close(expected, repeated, tolerance)[0]:
        return {"compared": None, "reason": "the output of the model is not deterministic"}
    is_close, difference = _close(expected, _run(loaded, example, seed=0), tolerance)
    if not is_close:
        raise ExportError(
            f"The output of the model exported as {what} differs from that of the model: on {example!r} the relative "
            f"difference is {difference:.3g}, and the tolerance {tolerance:.3g}.",
            hint="forward() may branch on the values of tensors, which this format cannot record; export a submodule "
            "with sagemaker.export_submodule, or another format.",
        )
    comparison: Dict[str, Any] = {"compared": "output", "difference": difference, "tolerance": tolerance}
    return {**comparison, "any_batch_size": _accepts_any_batch_size(module, loaded, example, tolerance)}


def _run(module: Callable[..., Any], example: Example, seed: int) -> List[Any]:
    """All tensors in the output for the example, on the CPU; the global seed is restored."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        # Some models change their input in place.
        return _flatten(module(*(argument.clone() for argument in example.arguments)))


def _accepts_any_batch_size(
    module: Callable[..., Any], loaded: Callable[..., Any], example: Example, tolerance: float
) -> bool:
    doubled = example.doubled()
    if doubled is None:
        return False
    try:
        return _close(_run(module, doubled, seed=0), _run(loaded, doubled, seed=0), tolerance)[0]
    except Exception:  # each runtime has its own exceptions for an unexpected shape
        return False


def _flatten(value: Any) -> List[Any]:
    if hasattr(value, "detach"):
        return [value.detach().cpu()]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in _flatten(inner)]
    return []


def _close(expected: List[Any], found: List[Any], tolerance: float) -> Tuple[bool, float]:
    """Whether the tensors are within the tolerance, and their largest difference relative to the largest value."""
    import torch

    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return False, float("inf")
    largest = 0.0
    for first, second in zip(expected, found):
        first, second = first.double(), second.double()
        finite = torch.isfinite(first)
        if not torch.allclose(first[~finite], second[~finite], equal_nan=True):
            return False, float("inf")
        if finite.any():
            scale = float(first[finite].abs().max()) + 1e-6
            difference = float((first[finite] - second[finite]).abs().max()) / scale
            largest = max(largest, difference if difference == difference else float("inf"))
    return largest <= tolerance, largest


def _equal(first: Any, second: Any) -> bool:
    import torch

    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return set(first) == set(second) and all(_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        # Not a number is not equal to itself.
        return type(first) is type(second) and (not isinstance(first, _PLAIN) or repr(first) == repr(second))
    return equal_tensors(first.detach().cpu(), second.detach().cpu())
