"""``ExportPlan``: what of a model is exported, in which format and with which weights."""

import importlib.util
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from typing import Optional, Sequence, Tuple, Union

from lightning_sm.errors import ExportError

__all__ = ["ExportFormat", "ExportPlan", "ExportWeights", "onnx_uses_torch_export"]


class ExportFormat(str, Enum):
    """The file format of an exported model; the values are those of ``sagemaker.export``."""

    STATE_DICT = "state_dict"
    CHECKPOINT = "checkpoint"
    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    EXPORTED_PROGRAM = "exported_program"
    SAFETENSORS = "safetensors"

    def __str__(self) -> str:
        return self.value

    @property
    def file(self) -> str:
        """The name of the file in the model directory.

        TorchScript shares ``model.pt`` with the state dict: SageMaker's PyTorch inference container looks for it first.
        """
        return _FILES[self]

    @property
    def is_graph(self) -> bool:
        """Whether it holds a graph: the model is run to write it, and loading it needs no model class."""
        return self in (ExportFormat.TORCHSCRIPT, ExportFormat.ONNX, ExportFormat.EXPORTED_PROGRAM)

    def packages(self) -> Tuple[str, ...]:
        """The packages that writing it needs beside torch."""
        if self is ExportFormat.ONNX:
            return ("onnx", "onnxscript") if onnx_uses_torch_export() else ("onnx",)
        return ("safetensors",) if self is ExportFormat.SAFETENSORS else ()

    def check_available(self) -> None:
        """Check that this environment can write the format.

        Raises:
            ExportError: torch is too old, or a package is missing.
        """
        if self is ExportFormat.EXPORTED_PROGRAM and importlib.util.find_spec("torch.export") is None:
            import torch

            raise ExportError(
                f"sagemaker.export is {self}, and torch {torch.__version__} has no torch.export, which came with 2.1.",
                hint="Choose another format, such as state_dict, or an image with a newer torch.",
            )
        missing = [name for name in self.packages() if importlib.util.find_spec(name) is None]
        if missing:
            raise ExportError(
                f"sagemaker.export is {self}, and {' and '.join(missing)} cannot be imported.",
                hint=f"Add {' and '.join(missing)} to the requirements.txt beside your script.",
            )


_FILES = {
    ExportFormat.STATE_DICT: "model.pt",
    ExportFormat.CHECKPOINT: "model.ckpt",
    ExportFormat.TORCHSCRIPT: "model.pt",
    ExportFormat.ONNX: "model.onnx",
    ExportFormat.EXPORTED_PROGRAM: "model.pt2",
    ExportFormat.SAFETENSORS: "model.safetensors",
}


class ExportWeights(str, Enum):
    """Which weights are exported; the values are those of ``sagemaker.export_weights``."""

    BEST = "best"
    LAST = "last"


def onnx_uses_torch_export() -> bool:
    """Whether ``torch.onnx.export`` uses ``torch.export`` by default, which it does since torch 2.9."""
    import torch.onnx

    parameter = signature(torch.onnx.export).parameters.get("dynamo")
    return parameter is not None and parameter.default is True


@dataclass(frozen=True)
class ExportPlan:
    """What is exported. Parse the options of the group ``sagemaker`` with :meth:`parse`.

    Args:
        format: The file format.
        weights: Which weights.
        submodule: The dotted path of a submodule; ``None`` for the whole model.
        example_shape: The shape of an input of ``forward``, the batch dimension first.
        serving: Whether the code for SageMaker's inference container is written, too.
    """

    format: ExportFormat = ExportFormat.STATE_DICT
    weights: ExportWeights = ExportWeights.BEST
    submodule: Optional[str] = None
    example_shape: Optional[Tuple[int, ...]] = None
    serving: bool = False

    @classmethod
    def parse(
        cls,
        export: Union[bool, str] = True,
        weights: str = "best",
        submodule: Optional[str] = None,
        example_input: Optional[Sequence[int]] = None,
        serving: bool = False,
    ) -> Optional["ExportPlan"]:
        """Parse the options of the group ``sagemaker``; ``None`` if the export is turned off.

        Raises:
            ExportError: An option is invalid, or the format cannot be written in this environment.
        """
        if export is False or str(export).lower() == "false":
            return None
        name = "state_dict" if export is True or str(export).lower() == "true" else str(export)
        formats = [each.value for each in ExportFormat]
        if name not in formats:
            raise ExportError(f"sagemaker.export is {export!r}.", hint=f"Set it to {', '.join(formats)} or false.")
        if weights not in [each.value for each in ExportWeights]:
            raise ExportError(f"sagemaker.export_weights is {weights!r}.", hint="Set it to best or last.")
        if submodule is not None and not all(submodule.split(".")):
            raise ExportError(
                f"sagemaker.export_submodule is {submodule!r}.",
                hint="Set it to the dotted path of a submodule, as in backbone.encoder.",
            )
        if submodule is not None and name == ExportFormat.CHECKPOINT.value:
            raise ExportError(
                f"sagemaker.export is checkpoint and sagemaker.export_submodule is {submodule}, but a checkpoint is of "
                "the whole model.",
                hint="Set sagemaker.export to state_dict, or leave export_submodule out.",
            )
        shape = None if example_input is None else tuple(example_input)
        if shape is not None and not (shape and all(type(size) is int and size > 0 for size in shape)):
            raise ExportError(
                f"sagemaker.export_example_input is {list(shape)!r}.",
                hint="Set it to the shape of an input, the batch dimension first, as in [1, 3, 32, 32].",
            )
        plan = cls(ExportFormat(name), ExportWeights(weights), submodule, shape, bool(serving))
        plan.format.check_available()
        return plan
