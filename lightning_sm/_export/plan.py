"""``ExportPlan``: what of a model is exported, in which format and with which weights, and whether that can work.

Checks before training whether a model can be exported as planned, and reads the hyperparameters that it saved.
"""

import importlib.util
import inspect
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from lightning_sm.errors import ExportError

__all__ = [
    "ExportFormat",
    "ExportPlan",
    "ExportWeights",
    "onnx_uses_torch_export",
    "check_model",
    "check_tensors_only",
    "json_round_trip",
    "json_subset",
    "saved_hparams",
    "target_of",
]


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
        """The packages that writing and comparing it needs beside torch."""
        if self is ExportFormat.ONNX:
            return ("onnx", "onnxruntime", *(["onnxscript"] if onnx_uses_torch_export() else []))
        return ("safetensors",) if self is ExportFormat.SAFETENSORS else ()

    def check_available(self) -> None:
        """Check that this environment can write the format.

        Raises:
            ExportError: A package is missing, or torch is older than 2.1 and has no ``torch.export``.
        """
        needed = ("torch.export",) if self is ExportFormat.EXPORTED_PROGRAM else self.packages()
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            raise ExportError(
                f"sagemaker.export is {self}, and {' and '.join(missing)} cannot be imported.",
                hint="Choose an image with torch 2.1 or newer."
                if self is ExportFormat.EXPORTED_PROGRAM
                else f"Add {' and '.join(missing)} to the requirements.txt beside your script.",
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

    parameter = inspect.signature(torch.onnx.export).parameters.get("dynamo")
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
        if submodule and name == ExportFormat.CHECKPOINT.value:
            raise ExportError(
                f"sagemaker.export is checkpoint and sagemaker.export_submodule is {submodule}, but a checkpoint is of "
                "the whole model.",
                hint="Set sagemaker.export to state_dict, or leave export_submodule out.",
            )
        shape = tuple(example_input) if isinstance(example_input, Sequence) else ()
        if example_input is not None and not (shape and all(type(size) is int and size > 0 for size in shape)):
            raise ExportError(
                f"sagemaker.export_example_input is {example_input!r}.",
                hint="Set it to the shape of an input, the batch dimension first, as in [1, 3, 32, 32].",
            )
        plan = cls(ExportFormat(name), ExportWeights(weights), submodule or None, shape or None, bool(serving))
        plan.format.check_available()
        return plan


def check_model(
    plan: ExportPlan,
    module: Any,
    hparams: Optional[Mapping[str, Any]],
    config: Optional[str],
    *,
    is_sharded: bool,
    saves_shards: bool,
    weights_only: bool = False,
) -> None:
    """Check whether a model can be exported as planned, as far as that is known before training.

    Args:
        plan: What is exported.
        module: The model.
        hparams: The constructor arguments that the model saved.
        config: The configuration as YAML, if there is one.
        is_sharded: Whether the strategy shards the model over the ranks.
        saves_shards: Whether the best checkpoint will be a folder of shards.
        weights_only: Whether the best checkpoint is read without running code that it names.

    Raises:
        ExportError: It cannot be exported so.
    """
    name = plan.format
    target = target_of(plan, module)
    if plan.format.is_graph and not _has_forward(target):
        raise ExportError(
            f"sagemaker.export is {name}, which runs forward(), and {type(target).__name__} has none.",
            hint="Implement forward(), set sagemaker.export_submodule to a part that has one, or choose state_dict.",
        )
    if plan.weights is ExportWeights.BEST and saves_shards and weights_only:
        raise ExportError(
            "sagemaker.resume_weights_only is set, and the best checkpoint, whose weights are to be exported, will be "
            "sharded, which can only be read by running code that it names.",
            hint="Set sagemaker.export_weights to last, or sagemaker.resume_weights_only to false.",
        )
    # A model that is sharded would be gathered.
    if plan.format is ExportFormat.SAFETENSORS and not is_sharded:
        check_tensors_only(target.state_dict())
    if plan.format.is_graph and is_sharded:
        _check_rebuildable(module, hparams, config, f"The strategy shards the model over the ranks, so {name}")
    if not plan.format.is_graph and plan.serving:
        _check_rebuildable(module, hparams, config, "The inference container")


def target_of(plan: ExportPlan, module: Any) -> Any:
    """The model, or its submodule that is exported.

    Raises:
        ExportError: There is no such submodule.
    """
    if plan.submodule is None:
        return module
    try:
        return module.get_submodule(plan.submodule)
    except AttributeError as error:
        names = [name for name, _ in module.named_modules() if name]
        raise ExportError(
            f"sagemaker.export_submodule is {plan.submodule}, and {type(module).__name__} has no such submodule.",
            hint=f"Set it to one of: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}.",
        ) from error


def saved_hparams(module: Any) -> Optional[Dict[str, Any]]:
    """The hyperparameters that a module saved, as arguments of its constructor; ``None`` if it saved none."""
    hparams = getattr(module, "hparams", None)
    if not hparams:
        return None
    name = str(getattr(module, "_hparams_name", None))
    parameter = inspect.signature(type(module).__init__).parameters.get(name)
    # `save_hyperparameters(hparams)` stores the contents of one argument.
    is_argument = parameter is not None and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    return {name: dict(hparams)} if is_argument and name not in hparams else dict(hparams)


def json_round_trip(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The values as JSON returns them; ``None`` if one of them cannot be written as JSON.

    >>> json_round_trip({"sizes": (1, 2)}), json_round_trip({"lr": float("nan")})
    ({'sizes': [1, 2]}, None)
    """
    try:
        values: Optional[Dict[str, Any]] = None if hparams is None else json.loads(json.dumps(hparams, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return values


def json_subset(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The values that can be written as JSON; ``None`` if nothing was saved.

    >>> json_subset({"sizes": (1, 2), "lr": float("nan")})
    {'sizes': [1, 2]}
    """
    if hparams is None:
        return None
    converted = {str(name): json_round_trip({str(name): value}) for name, value in hparams.items()}
    return {name: value[name] for name, value in converted.items() if value is not None}


def check_tensors_only(state_dict: Mapping[str, Any]) -> None:
    """Check that a state dict can be written as safetensors.

    Raises:
        ExportError: A value is not a tensor, such as what ``get_extra_state()`` of a module returns.
    """
    for name, value in state_dict.items():
        if not hasattr(value, "data_ptr"):
            raise ExportError(
                f"The model cannot be written as safetensors, which hold tensors only: {name} of its state_dict() is "
                f"a {type(value).__name__}.",
                hint="Set sagemaker.export to state_dict.",
            )


def _has_forward(module: Any) -> bool:
    """Whether the class or the object implements ``forward``, beyond the stubs of torch and Lightning."""
    owner = next((cls for cls in type(module).__mro__ if "forward" in vars(cls)), None)
    is_stub = owner is None or owner.__name__ in ("Module", "LightningModule")
    return "forward" in vars(module) or not is_stub


def _check_rebuildable(module: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str], why: str) -> None:
    """Check that all required constructor arguments are known; ``why`` says what needs to call the constructor."""
    # It imports torch.
    from lightning_sm._export.inference import read_arguments

    if hparams is None and read_arguments(config) is not None:
        return
    missing = [name for name in _required(type(module)) if name not in (hparams or {})]
    if missing:
        raise ExportError(
            f"{why} instantiates {type(module).__name__} again, which takes {', '.join(missing)}, and the model did "
            "not save that as a value that JSON can hold.",
            hint="Call self.save_hyperparameters() in its __init__.",
        )


def _required(cls: Any) -> List[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named and each.default is inspect.Parameter.empty]
