"""Writes the export formats: tensors alone, or a graph that needs no project code.

Each function writes a source to a path and loads the file again. ``state_dict``, ``checkpoint`` and ``safetensors``
compare the tensors; ``torchscript``, ``exported_program`` and ``onnx`` compare the model's output. Each returns the
entries ``comparison`` and ``details`` of ``model.json``.
"""

import importlib
import importlib.util
import shutil
from inspect import signature
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from lightning_sm._export.example import Example, compare_outputs, compare_tensors
from lightning_sm._export.plan import onnx_uses_torch_export
from lightning_sm._export.source import Source, load_file
from lightning_sm.errors import ExportError

__all__ = [
    "drop_shared_tensors",
    "write_checkpoint",
    "write_safetensors",
    "write_state_dict",
    "onnx_engine",
    "write_exported_program",
    "write_onnx",
    "write_torchscript",
]


def write_state_dict(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write parameters and buffers with ``torch.save``, such that they load with ``weights_only=True``.

    Raises:
        ExportError: The file differs from the source after loading.
    """
    import torch

    on_cpu = {
        name: value.detach().cpu() if hasattr(value, "detach") else value for name, value in source.state_dict.items()
    }
    torch.save(on_cpu, path)
    return compare_tensors(source.state_dict, load_file(path, weights_only=True, mapped=True)), {}


def write_checkpoint(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write Lightning's checkpoint, from which training can be resumed.

    Raises:
        ExportError: The file differs from the source after loading.
    """
    import torch

    if source.checkpoint_path is not None:
        shutil.copyfile(source.checkpoint_path, path)
    else:
        torch.save(source.checkpoint, path)
    # This run wrote the file, so it is trusted; a checkpoint holds more than `weights_only=True` accepts.
    loaded = load_file(path, weights_only=False, mapped=True)["state_dict"]
    return compare_tensors(source.state_dict, loaded), {}


def write_safetensors(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write parameters and buffers with safetensors, which can hold nothing else.

    Raises:
        ExportError: The state dict holds something that is not a tensor, or the file differs from it after loading.
    """
    from safetensors.torch import save_file

    # It imports torch.
    from lightning_sm._export.inference import read_state_dict

    kept, shared = drop_shared_tensors(source.state_dict)
    save_file(kept, path, metadata={**shared, "format": "pt"})
    loaded = read_state_dict(path, "safetensors")
    return compare_tensors(source.state_dict, loaded), {"shared": shared} if shared else {}


def drop_shared_tensors(state_dict: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Keep one of several names of the same tensor, as ``safetensors.torch.save_model`` does.

    Returns:
        The tensors to write, contiguous and without memory that two of them share, and for each dropped name the one
        that was kept.

    Raises:
        ExportError: A value is not a tensor.
    """
    kept: Dict[str, Any] = {}
    shared: Dict[str, str] = {}
    names: Dict[Any, str] = {}
    storages: Set[Any] = set()
    for name, value in state_dict.items():
        if not hasattr(value, "data_ptr"):
            raise ExportError(
                f"The model cannot be written as safetensors, which hold tensors only: {name} of its state_dict() is "
                f"a {type(value).__name__}.",
                hint="Set sagemaker.export to state_dict.",
            )
        memory = (value.device, value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)
        if value.numel() and memory in names:
            shared[name] = names[memory]
            continue
        names[memory] = name
        on_cpu = value.detach().cpu().contiguous()
        start = _storage_start(on_cpu)
        # A whole model is not copied: only what is a part of a tensor that is written, too.
        kept[name] = on_cpu.clone() if start in storages else on_cpu
        storages.add(start)
    return kept, shared


def _storage_start(value: Any) -> int:
    """The address of the memory that a tensor may share with others."""
    storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value.storage()
    return int(storage.data_ptr())


# Parameters up to this many bytes are stored in the ONNX file itself; protobuf's limit is 2 GiB.
_MAX_EMBEDDED_BYTES = 1 << 30

# With older opsets (torch up to 1.12), onnx's own evaluator runs batch normalization in training mode.
_REFERENCE_OPSET = 14


def write_torchscript(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write a TorchScript graph: scripted, which keeps all branches, or else traced with the example.

    Raises:
        ExportError: Its output differs from the model's.
    """
    import torch

    assert source.example is not None
    script, method = _script(source.module, source.example.arguments)
    torch.jit.save(script, path)
    loaded = torch.jit.load(path, map_location="cpu")
    return compare_outputs(source.module, loaded, source.example, "torchscript"), {"method": method}


def write_exported_program(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write the graph of ``torch.export``, which torch 2.1 introduced.

    Raises:
        ExportError: Its output differs from the model's.
    """
    import torch
    import torch.export

    assert source.example is not None
    torch.export.save(_export_program(source.module, source.example), path)
    loaded = torch.export.load(path).module()
    return compare_outputs(source.module, loaded, source.example, "exported_program"), {}


def write_onnx(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Write an ONNX file with the exporter that this version of torch uses by default.

    The output is compared where onnxruntime is installed, or onnx's own evaluator supports the file.

    Raises:
        ExportError: Its output differs from the model's.
    """
    import onnx
    import torch

    assert source.example is not None
    with torch.no_grad():
        if onnx_uses_torch_export():
            _write_onnx_by_torch_export(source, source.example, path)
        else:
            _write_onnx_by_torchscript(source, source.example, path)
    onnx.checker.check_model(path)
    details = {"exporter": "torch.export" if onnx_uses_torch_export() else "torchscript"}
    engine = onnx_engine(path)
    if engine is None:
        reason = "onnxruntime is not installed, and onnx itself cannot run the file"
        return {"compared": None, "reason": reason}, details
    return compare_outputs(source.module, engine[0], source.example, "onnx"), {**details, "engine": engine[1]}


def onnx_engine(path: str) -> Optional[Tuple[Callable[..., Any], str]]:
    """A function that runs the ONNX file, and the name of the installed engine; ``None`` if there is none."""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return _onnx_caller(session, [given.name for given in session.get_inputs()]), "onnxruntime"
    if importlib.util.find_spec("onnx.reference") is not None:
        reference = importlib.import_module("onnx.reference").ReferenceEvaluator(path)
        if reference.opsets[""] < _REFERENCE_OPSET:
            return None
        return _onnx_caller(reference, reference.input_names), "onnx.reference"
    return None


def _script(module: Any, arguments: Tuple[Any, ...]) -> Tuple[Any, str]:
    import torch

    # A LightningModule has properties that only its own `to_torchscript` hides from the compiler.
    own = getattr(module, "to_torchscript", None)
    try:
        return (own(method="script") if own else torch.jit.script(module)), "script"
    except Exception:  # Python that the compiler does not support raises several classes
        pass
    with torch.no_grad():
        if own:
            return own(method="trace", example_inputs=arguments), "trace"
        return torch.jit.trace(module, arguments), "trace"


def _export_program(module: Any, example: Example) -> Any:
    """Export with a dynamic batch dimension where the model allows it, else with that of the example."""
    import torch

    shapes = _dynamic_batch(example)
    with torch.no_grad():
        if shapes is not None and "dynamic_shapes" in signature(torch.export.export).parameters:
            try:
                # A dimension of size 1 would be specialized.
                doubled = example.doubled() or example
                return torch.export.export(module, doubled.arguments, dynamic_shapes=shapes)
            except Exception:  # a model with a fixed batch size raises one of several classes
                pass
        return torch.export.export(module, example.arguments)


def _write_onnx_by_torch_export(source: Source, example: Example, path: str) -> None:
    import torch
    import torch.export

    size = sum(value.numel() * value.element_size() for value in source.module.parameters())
    shapes = _dynamic_batch(example)
    options = {"input_names": _input_names(example), "external_data": size > _MAX_EMBEDDED_BYTES, "verbose": False}
    if shapes is not None:
        try:
            doubled = example.doubled() or example
            torch.onnx.export(source.module, doubled.arguments, path, dynamic_shapes=shapes, **options)
            return
        except Exception:  # a model with a fixed batch size raises one of several classes
            pass
    torch.onnx.export(source.module, example.arguments, path, **options)


def _write_onnx_by_torchscript(source: Source, example: Example, path: str) -> None:
    import torch

    names = _input_names(example)
    axes = {} if example.doubled() is None else {name: {0: "batch"} for name in names}
    torch.onnx.export(source.module, example.arguments, path, input_names=names, dynamic_axes=axes)


def _dynamic_batch(example: Example) -> Optional[Tuple[Any, ...]]:
    """``dynamic_shapes`` with a dynamic first dimension; ``None`` if the arguments do not share one."""
    import torch

    if example.doubled() is None or not hasattr(torch.export, "Dim"):
        return None
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in example.arguments)


def _input_names(example: Example) -> List[str]:
    count = len(example.arguments)
    return ["input"] if count == 1 else [f"input_{index}" for index in range(count)]


def _onnx_caller(session: Any, names: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        import torch

        outputs = session.run(None, {name: argument.numpy() for name, argument in zip(names, arguments)})
        return [torch.as_tensor(value) for value in outputs]

    return call
