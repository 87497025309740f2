"""The format ``onnx``, by the exporter that this version of torch takes by itself."""

import importlib
import importlib.util
from inspect import signature
from typing import Any, Callable, Dict, List, Optional, Tuple

from lightning_sm._export._compare import compare_outputs
from lightning_sm._export._example import Example
from lightning_sm._export._exported_program import any_batch_size
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source

__all__ = ["ONNX"]

# The part of a model that fits into one file of protobuf's, in bytes.
_ONE_FILE = 1 << 30

# Before this one, which torch 1.13 took up, onnx's own evaluator runs batch normalization as if it trained.
_REFERENCE_OPSET = 14


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    import onnx
    import torch

    assert source.example is not None
    with torch.no_grad():
        if _by_torch_export():
            _write_by_torch_export(source, source.example, path)
        else:
            _write_by_torchscript(source, source.example, path)
    onnx.checker.check_model(path)
    details = {"exporter": "torch.export" if _by_torch_export() else "torchscript"}
    engine = _engine(path)
    if engine is None:
        reason = "onnxruntime is not installed, and onnx itself cannot run the file"
        return {"compared": None, "reason": reason}, details
    return compare_outputs(source.module, engine[0], source.example, "onnx"), {**details, "engine": engine[1]}


def _by_torch_export() -> bool:
    """Whether this torch exports by way of ``torch.export`` unless it is told otherwise, as it does from 2.9 on."""
    import torch.onnx

    parameter = signature(torch.onnx.export).parameters.get("dynamo")
    return parameter is not None and parameter.default is True


def _write_by_torch_export(source: Source, example: Example, path: str) -> None:
    import torch
    import torch.export

    large = sum(value.numel() * value.element_size() for value in source.module.parameters()) > _ONE_FILE
    shapes = any_batch_size(example)
    options = {"input_names": _names(example), "external_data": large, "verbose": False}
    if shapes is not None:
        try:
            twice = example.doubled() or example
            torch.onnx.export(source.module, twice.arguments, path, dynamic_shapes=shapes, **options)
            return
        except Exception:  # torch has several classes for a model that fixes the size
            pass
    torch.onnx.export(source.module, example.arguments, path, **options)


def _write_by_torchscript(source: Source, example: Example, path: str) -> None:
    import torch

    axes = {} if example.doubled() is None else {name: {0: "batch"} for name in _names(example)}
    torch.onnx.export(source.module, example.arguments, path, input_names=_names(example), dynamic_axes=axes)


def _names(example: Example) -> List[str]:
    count = len(example.arguments)
    return ["input"] if count == 1 else [f"input_{index}" for index in range(count)]


def _engine(path: str) -> Optional[Tuple[Callable[..., Any], str]]:
    """Something that runs the file, and its name."""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return _caller(session, [given.name for given in session.get_inputs()]), "onnxruntime"
    if importlib.util.find_spec("onnx.reference") is not None:
        reference = importlib.import_module("onnx.reference").ReferenceEvaluator(path)
        if reference.opsets[""] < _REFERENCE_OPSET:
            return None
        return _caller(reference, reference.input_names), "onnx.reference"
    return None


def _caller(session: Any, names: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        import torch

        found = session.run(None, {name: argument.numpy() for name, argument in zip(names, arguments)})
        return [torch.as_tensor(value) for value in found]

    return call


def _packages() -> Tuple[str, ...]:
    return ("onnx", "onnxscript") if _by_torch_export() else ("onnx",)


ONNX = Format("onnx", "model.onnx", _write, runs_model=True, needs_class=False, packages=_packages)
