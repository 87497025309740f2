"""Compares what was written with what should have been."""

from typing import Any, Callable, Dict, List, Mapping, Tuple

from lightning_sm._export._example import Example
from lightning_sm.errors import ExportError

__all__ = ["compare_outputs", "compare_tensors"]

# The largest difference of two outputs, as a part of the largest number in them: a graph that another engine runs adds
# up in another order. Tensors that were merely saved must be equal.
TOLERANCE = 1e-3
HALF_TOLERANCE = 2e-2


def compare_tensors(expected: Mapping[str, Any], loaded: Mapping[str, Any]) -> Dict[str, Any]:
    """Compare a state dict that was loaded again with its original, bit by bit.

    Returns:
        What ``model.json`` says about it.

    Raises:
        ExportError: They differ.
    """
    differing = sorted(set(expected) ^ set(loaded)) or [
        name for name, value in expected.items() if not _equal(value, loaded[name])
    ]
    if differing:
        raise ExportError(
            f"The exported file does not hold what was saved: {', '.join(differing[:3])} came back different.",
            hint="Check the disk of the model directory; where it is sound, this is a fault worth reporting.",
        )
    return {"compared": "tensors", "tensors": len(expected)}


def compare_outputs(
    module: Callable[..., Any], loaded: Callable[..., Any], example: Example, what: str
) -> Dict[str, Any]:
    """Run both on the example and compare what they return.

    Args:
        module: The model.
        loaded: What was loaded again.
        example: The input.
        what: The name of the format, for the error.

    Returns:
        What ``model.json`` says about it.

    Raises:
        ExportError: They return something else.
    """
    expected, again = run(module, example, seed=0), run(module, example, seed=1)
    tolerance = _tolerance(expected)
    if not _close(expected, again, tolerance)[0]:
        return {"compared": None, "reason": "the model returns something else each time it is run"}
    equal, difference = _close(expected, run(loaded, example, seed=0), tolerance)
    if not equal:
        raise ExportError(
            f"The model as {what} does not return what the model returns: on {example!r} the difference is "
            f"{difference:.3g} of the largest number, and {tolerance:.3g} would be allowed.",
            hint="What forward() does may depend on values, which this format cannot follow; export a part of the "
            "model with sagemaker.export_submodule, or another format.",
        )
    about: Dict[str, Any] = {"compared": "output", "difference": difference, "tolerance": tolerance}
    return {**about, "any_batch_size": _takes_any_batch_size(module, loaded, example, tolerance)}


def run(module: Callable[..., Any], example: Example, seed: int) -> List[Any]:
    """All tensors that a call with the example returns, on the CPU. Seeds are as before afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        # Some models change their input in place.
        return _tensors(module(*(argument.clone() for argument in example.arguments)))


def _takes_any_batch_size(
    module: Callable[..., Any], loaded: Callable[..., Any], example: Example, tolerance: float
) -> bool:
    doubled = example.doubled()
    if doubled is None:
        return False
    try:
        return _close(run(module, doubled, seed=0), run(loaded, doubled, seed=0), tolerance)[0]
    except Exception:  # each runtime refuses another size in words and classes of its own
        return False


def _tensors(value: Any) -> List[Any]:
    if hasattr(value, "detach"):
        return [value.detach().cpu()]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []


def _tolerance(tensors: List[Any]) -> float:
    is_half = any(tensor.is_floating_point() and tensor.element_size() <= 2 for tensor in tensors)
    return HALF_TOLERANCE if is_half else TOLERANCE


def _close(expected: List[Any], found: List[Any], tolerance: float) -> Tuple[bool, float]:
    """Whether they are as close as they should be, and the largest difference as a part of the largest number."""
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
        return type(first) is type(second) and bool(first == second)
    first, second = first.detach().cpu(), second.detach().cpu()
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if torch.equal(first, second):
        return True
    return first.is_floating_point() and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
