"""``Example``: the input with which a model is traced and compared, and ``ExampleFinder``, which obtains it.

An exported file is loaded again, and what it returns for the example is compared with the output of the model.
"""

from dataclasses import dataclass
from inspect import signature
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.errors import ExportError

__all__ = ["Example", "ExampleFinder", "compare_outputs", "compare_tensors"]

_HINT = "Set sagemaker.export_example_input to the shape of an input, such as [1, 3, 32, 32]."


@dataclass(frozen=True)
class Example:
    """The positional arguments of one call of ``forward``.

    Args:
        arguments: Tensors on the CPU.
        source: Where they come from, for ``model.json`` and errors.
    """

    arguments: Tuple[Any, ...]
    source: str

    @classmethod
    def of_shape(cls, shape: Sequence[int]) -> "Example":
        """Random numbers of this shape: the same in each call, and without a change to the global seed."""
        import torch

        generator = torch.Generator().manual_seed(0)
        return cls((torch.randn(tuple(shape), generator=generator),), "sagemaker.export_example_input")

    @classmethod
    def of_array(cls, array: Any) -> "Example":
        """The value of a module's ``example_input_array``.

        Raises:
            ExportError: It is neither a tensor nor a sequence of tensors.
        """
        return _detached(array if isinstance(array, (tuple, list)) else (array,), "example_input_array")

    @classmethod
    def of_batch(cls, batch: Any) -> "Example":
        """The batch itself if it is a tensor, else its first element.

        Raises:
            ExportError: Neither is a tensor.
        """
        return _detached((batch[0] if isinstance(batch, (tuple, list)) and batch else batch,), "first batch")

    @classmethod
    def of_call(cls, arguments: Tuple[Any, ...]) -> "Example":
        """The positional arguments of a call of ``forward``.

        Raises:
            ExportError: There are none, or one is not a tensor.
        """
        return _detached(arguments, "first call")

    def __repr__(self) -> str:
        return f"Example({self.source}: {', '.join(str(list(argument.shape)) for argument in self.arguments)})"

    def describe(self) -> Dict[str, Any]:
        """The entry ``example`` of ``model.json``."""
        return {
            "source": self.source,
            "shapes": [list(argument.shape) for argument in self.arguments],
            "dtypes": [str(argument.dtype).rpartition(".")[2] for argument in self.arguments],
        }

    def cast(self, module: Any) -> "Example":
        """The example with its floating point tensors in the dtype of the module's parameters."""
        dtype = next((value.dtype for value in module.parameters() if value.is_floating_point()), None)
        if dtype is None:
            return self
        cast = [argument.to(dtype) if argument.is_floating_point() else argument for argument in self.arguments]
        return Example(tuple(cast), self.source)

    def doubled(self) -> Optional["Example"]:
        """The example with twice the batch size; ``None`` if the arguments do not share a first dimension."""
        import torch

        sizes = {argument.shape[0] if argument.dim() else 0 for argument in self.arguments}
        if len(sizes) != 1 or 0 in sizes:
            return None
        return Example(tuple(torch.cat([argument, argument]) for argument in self.arguments), self.source)


class ExampleFinder:
    """Obtains an example: from the configured shape, else from ``example_input_array``, else from training itself.

    Training provides the first batch for a whole model, and the first input of a submodule for that one. No data loader
    is iterated for it, so the order of the data stays the same.

    Args:
        submodule: The dotted path of the submodule that is exported; ``None`` for the whole model.
        shape: The configured shape of an input.
    """

    def __init__(self, submodule: Optional[str] = None, shape: Optional[Sequence[int]] = None) -> None:
        self._submodule = submodule
        self._shape = shape
        self._hook: Any = None
        self.example: Optional[Example] = None

    def attach(self, module: Any) -> None:
        """Take the example from the options or the module, or register a hook on the submodule that will see one.

        Raises:
            ExportError: ``example_input_array`` is not made of tensors, or ``forward`` does not accept the example.
        """
        self.detach()
        array = getattr(module, "example_input_array", None)
        target = module if self._submodule is None else module.get_submodule(self._submodule)
        if self._shape is not None:
            _check_call(target, 1, "sagemaker.export_example_input, which is one tensor")
            self.example = Example.of_shape(self._shape)
        elif self._submodule is not None:
            self._hook = target.register_forward_pre_hook(self._observe_call)
        elif array is not None:
            example = Example.of_array(array)
            _check_call(target, len(example.arguments), "its example_input_array")
            self.example = example
        else:
            _check_call(target, 1, "the first element of a batch, which is one tensor")

    def observe_batch(self, batch: Any) -> None:
        """Take the example from a batch, if none was taken before.

        Raises:
            ExportError: Neither the batch nor its first element is a tensor.
        """
        if self.example is None and self._submodule is None:
            self.example = Example.of_batch(batch)

    def check_called(self) -> None:
        """Check, after a training batch, that the exported submodule was called in it.

        Raises:
            ExportError: It was not.
        """
        if self.example is None and self._hook is not None:
            raise ExportError(
                f"sagemaker.export_submodule is {self._submodule}, which was not called in the first training batch, "
                "so there is no input to export it with.",
                hint="Set sagemaker.export_example_input to the shape of its input, such as [1, 512].",
            )

    def detach(self) -> None:
        """Remove the hook from the submodule."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _observe_call(self, target: Any, arguments: Tuple[Any, ...]) -> None:
        self.detach()
        example = Example.of_call(arguments)
        _check_call(target, len(example.arguments), "the positional arguments of its first call")
        self.example = example


def _check_call(module: Any, count: int, source: str) -> None:
    """Check by its signature, without a call, that ``forward`` accepts ``count`` positional arguments."""
    try:
        parameters = signature(module.forward)
    except (TypeError, ValueError):  # code without a signature, such as torch's own
        return
    try:
        parameters.bind(*range(count))
    except TypeError as error:
        name = type(module).__name__
        raise ExportError(
            f"The model cannot be run for export: {name}.forward{parameters} cannot be called with {source} ({error}).",
            hint=f"Set example_input_array in {name} to a tuple of tensors, one for each input, or sagemaker.export to "
            "state_dict, safetensors or checkpoint, which do not run the model.",
        ) from None


def _detached(values: Sequence[Any], source: str) -> Example:
    import torch

    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise ExportError(f"The model cannot be run for export: the {source} holds {kinds}, no tensors.", hint=_HINT)
    # A validation batch is an inference tensor, which autograd rejects, unless it is copied outside of that mode.
    with torch.inference_mode(False):
        return Example(tuple(value.detach().cpu().clone() for value in values), source)


# The largest allowed difference between two outputs, relative to their largest value: another engine adds up the same
# numbers in another order. Saved tensors must be equal.
TOLERANCE = 1e-3
HALF_TOLERANCE = 2e-2


def compare_tensors(expected: Mapping[str, Any], loaded: Mapping[str, Any]) -> Dict[str, Any]:
    """Compare a state dict that was loaded again with the original, bit by bit.

    Returns:
        The entry ``comparison`` of ``model.json``.

    Raises:
        ExportError: They differ.
    """
    differing = sorted(set(expected) ^ set(loaded)) or [
        name for name, value in expected.items() if not _equal(value, loaded[name])
    ]
    if differing:
        raise ExportError(
            f"The exported file does not hold what was saved: {', '.join(differing[:3])} differ after loading.",
            hint="Check the disk of the model directory; if it is healthy, report this as a bug.",
        )
    return {"compared": "tensors", "tensors": len(expected)}


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
    tolerance = _tolerance(expected)
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


def _tolerance(tensors: List[Any]) -> float:
    is_half = any(tensor.is_floating_point() and tensor.element_size() <= 2 for tensor in tensors)
    return HALF_TOLERANCE if is_half else TOLERANCE


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
        return type(first) is type(second) and bool(first == second)
    first, second = first.detach().cpu(), second.detach().cpu()
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if torch.equal(first, second):
        return True
    return first.is_floating_point() and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
