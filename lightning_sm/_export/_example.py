"""``Example``: the input with which a model is traced, and with which an exported one is compared."""

from dataclasses import dataclass
from inspect import signature
from typing import Any, Dict, Optional, Sequence, Tuple

from lightning_sm.errors import ExportError

__all__ = ["Example", "check_call", "example_of_array", "example_of_batch", "example_of_call", "example_of_shape"]

_HINT = "Set sagemaker.export_example_input to the shape of an input, such as [1, 3, 32, 32]."


@dataclass(frozen=True)
class Example:
    """The positional arguments of one call of ``forward``.

    Args:
        arguments: Tensors on the CPU.
        source: Where they came from, in words.
    """

    arguments: Tuple[Any, ...]
    source: str

    def __repr__(self) -> str:
        return f"Example({self.source}: {', '.join(str(list(argument.shape)) for argument in self.arguments)})"

    def about(self) -> Dict[str, Any]:
        """What ``model.json`` says about it."""
        return {
            "source": self.source,
            "shapes": [list(argument.shape) for argument in self.arguments],
            "dtypes": [str(argument.dtype).rpartition(".")[2] for argument in self.arguments],
        }

    def cast(self, module: Any) -> "Example":
        """The same with floating point numbers of the module's own precision."""
        dtype = next((value.dtype for value in module.parameters() if value.is_floating_point()), None)
        if dtype is None:
            return self
        cast = [argument.to(dtype) if argument.is_floating_point() else argument for argument in self.arguments]
        return Example(tuple(cast), self.source)

    def doubled(self) -> Optional["Example"]:
        """The same with a batch of twice the size; ``None`` where the arguments do not share a first dimension."""
        import torch

        sizes = {argument.shape[0] if argument.dim() else 0 for argument in self.arguments}
        if len(sizes) != 1 or 0 in sizes:
            return None
        return Example(tuple(torch.cat([argument, argument]) for argument in self.arguments), self.source)


def check_call(module: Any, count: int, source: str) -> None:
    """Find out from its signature, without a call, whether ``forward`` takes an example.

    Args:
        module: The model or its part.
        count: How many positional arguments the example has.
        source: Where they come from, in words.

    Raises:
        ExportError: It asks for more, or for fewer.
    """
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


def example_of_shape(shape: Sequence[int]) -> Example:
    """An example of random numbers, always the same ones, which does not touch anybody's seed."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return Example((torch.randn(tuple(shape), generator=generator),), "sagemaker.export_example_input")


def example_of_array(array: Any) -> Example:
    """The example that a module's ``example_input_array`` is.

    Raises:
        ExportError: It is something else than tensors.
    """
    return _example(array if isinstance(array, (tuple, list)) else (array,), "example_input_array")


def example_of_batch(batch: Any) -> Example:
    """The example in a batch: the tensor that it is, or its first part.

    Raises:
        ExportError: There is no such tensor.
    """
    return _example((batch[0] if isinstance(batch, (tuple, list)) and batch else batch,), "first batch")


def example_of_call(arguments: Tuple[Any, ...]) -> Example:
    """The example that the arguments of a call are.

    Raises:
        ExportError: They are something else than tensors, or all have names.
    """
    return _example(arguments, "first call")


def _example(values: Sequence[Any], source: str) -> Example:
    import torch

    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise ExportError(f"The model cannot be run for export: the {source} holds {kinds}, no tensors.", hint=_HINT)
    # A batch of validation is a tensor that autograd may never see, unless it is copied outside of that mode.
    with torch.inference_mode(False):
        return Example(tuple(value.detach().cpu().clone() for value in values), source)
