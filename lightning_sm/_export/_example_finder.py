"""``ExampleFinder``: the example input of a model that trains, at the earliest moment at which there is one."""

from typing import Any, Optional, Tuple

from lightning_sm._export._example import (
    Example,
    check_call,
    example_of_array,
    example_of_batch,
    example_of_call,
    example_of_shape,
)
from lightning_sm._export._plan import ExportPlan
from lightning_sm.errors import ExportError

__all__ = ["ExampleFinder"]


class ExampleFinder:
    """Finds an example: the shape that was set, else ``example_input_array``, else what training itself shows.

    That is the first batch for a whole model, and for a part of one the first input that the part gets, so that no
    loader is asked for more than training takes and no order of the data changes.

    Args:
        plan: What is exported.
    """

    def __init__(self, plan: ExportPlan) -> None:
        self._plan = plan
        self._hook: Any = None
        self.example: Optional[Example] = None

    def start(self, module: Any) -> None:
        """Look at the options and the module.

        Raises:
            ExportError: ``example_input_array`` holds something else than tensors, or ``forward`` cannot be called with
                the example that there is or will be.
        """
        self.stop()
        array = getattr(module, "example_input_array", None)
        part = module if self._plan.submodule is None else module.get_submodule(self._plan.submodule)
        if self._plan.example_shape is not None:
            check_call(part, 1, "sagemaker.export_example_input, which is one tensor")
            self.example = example_of_shape(self._plan.example_shape)
        elif self._plan.submodule is not None:
            self._hook = part.register_forward_pre_hook(self._see_call)
        elif array is not None:
            example = example_of_array(array)
            check_call(part, len(example.arguments), "its example_input_array")
            self.example = example
        else:
            check_call(part, 1, "the first part of a batch, which is one tensor")

    def see_batch(self, batch: Any) -> None:
        """Look at a batch before it is used.

        Raises:
            ExportError: It begins with something else than a tensor.
        """
        if self.example is None and self._plan.submodule is None:
            self.example = example_of_batch(batch)

    def after_batch(self) -> None:
        """Find out, after a batch of training, whether the part to export has been used.

        Raises:
            ExportError: It has not.
        """
        if self.example is None and self._hook is not None:
            raise ExportError(
                f"sagemaker.export_submodule is {self._plan.submodule}, and the first batch was trained without a call "
                "of it, so there is no input to export it with.",
                hint="Set sagemaker.export_example_input to the shape of its input, such as [1, 512].",
            )

    def stop(self) -> None:
        """Take the hook off the module."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _see_call(self, part: Any, arguments: Tuple[Any, ...]) -> None:
        self.stop()
        example = example_of_call(arguments)
        check_call(part, len(example.arguments), "the positional arguments of its first call")
        self.example = example
