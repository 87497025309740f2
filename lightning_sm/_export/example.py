"""``Example``: the input with which a model is traced and compared, and where it comes from."""

from dataclasses import dataclass
from inspect import signature
from typing import Any, Dict, Optional, Sequence, Tuple

from lightning_sm._export.plan import ExportPlan, target_of
from lightning_sm.errors import ExportError

__all__ = ["Example", "example_of_batch", "example_of_model"]


@dataclass(frozen=True)
class Example:
    """The positional arguments of one call of ``forward``.

    Args:
        arguments: Tensors on the CPU.
        source: Where they come from, for ``model.json`` and errors.
    """

    arguments: Tuple[Any, ...]
    source: str

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
        cast = [argument.to(dtype) if argument.is_floating_point() else argument for argument in self.arguments]
        return Example(tuple(cast), self.source)

    def doubled(self) -> Optional["Example"]:
        """The example with twice the batch size; ``None`` if the arguments do not share a first dimension."""
        import torch

        sizes = {argument.shape[0] if argument.dim() else 0 for argument in self.arguments}
        if len(sizes) != 1 or 0 in sizes:
            return None
        return Example(tuple(torch.cat([argument, argument]) for argument in self.arguments), self.source)


def example_of_model(plan: ExportPlan, module: Any) -> Optional[Example]:
    """The example of the options or of the model; ``None`` where the first batch is to be it.

    Args:
        plan: What is exported.
        module: The model.

    Raises:
        ExportError: ``forward`` does not accept it, which its signature tells, or a submodule has none.
    """
    import torch

    target = target_of(plan, module)
    array = getattr(target, "example_input_array", None)
    if plan.example_shape is not None:
        _check_call(target, 1, "sagemaker.export_example_input, which is one tensor")
        # The same numbers in each call, and without a change to the global seed.
        generator = torch.Generator().manual_seed(0)
        return Example((torch.randn(plan.example_shape, generator=generator),), "sagemaker.export_example_input")
    if array is not None:
        example = _example(array if isinstance(array, (tuple, list)) else (array,), "example_input_array")
        _check_call(target, len(example.arguments), "its example_input_array")
        return example
    if plan.submodule is not None:
        raise ExportError(
            f"sagemaker.export_submodule is {plan.submodule}, and there is no input to run it with.",
            hint="Set sagemaker.export_example_input to the shape of its input, such as [1, 512].",
        )
    _check_call(target, 1, "the first element of a batch, which is one tensor")
    return None


def example_of_batch(batch: Any) -> Example:
    """The batch itself if it is a tensor, else its first element.

    Raises:
        ExportError: Neither is a tensor.
    """
    return _example((batch[0] if isinstance(batch, (tuple, list)) and batch else batch,), "first batch")


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


def _example(values: Sequence[Any], source: str) -> Example:
    import torch

    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise ExportError(
            f"The model cannot be run for export: the {source} holds {kinds}, no tensors.",
            hint="Set sagemaker.export_example_input to the shape of an input, such as [1, 3, 32, 32].",
        )
    # A validation batch is an inference tensor, which autograd rejects, unless it is copied outside of that mode.
    with torch.inference_mode(False):
        return Example(tuple(value.detach().cpu().clone() for value in values), source)
