"""Writes each export format: tensors alone, or a graph that needs no project code."""

from inspect import signature
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from lightning_sm._export.example import Example
from lightning_sm._export.plan import ExportFormat, check_tensors_only, onnx_uses_torch_export
from lightning_sm._export.source import Source

__all__ = ["WRITERS", "drop_shared_tensors"]

# Parameters up to this many bytes are stored in the ONNX file itself; protobuf's limit is 2 GiB.
_MAX_EMBEDDED_BYTES = 1 << 30


def _write_state_dict(source: Source, path: str) -> Dict[str, Any]:
    import torch

    values = source.state_dict.items()
    moved = {name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in values}
    torch.save(moved, path)
    return {}


def _write_checkpoint(source: Source, path: str) -> Dict[str, Any]:
    import torch

    torch.save(source.checkpoint, path)
    return {}


def _write_safetensors(source: Source, path: str) -> Dict[str, Any]:
    from safetensors.torch import save_file

    check_tensors_only(source.state_dict)
    kept, shared = drop_shared_tensors(source.state_dict)
    save_file(kept, path, metadata={**shared, "format": "pt"})
    return {"shared": shared} if shared else {}


def drop_shared_tensors(state_dict: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Keep one of several names of the same tensor, as ``safetensors.torch.save_model`` does.

    Returns:
        The tensors to write, contiguous, and for each dropped name the one that was kept.
    """
    kept: Dict[str, Any] = {}
    shared: Dict[str, str] = {}
    names: Dict[Any, str] = {}
    for name, value in state_dict.items():
        memory = (value.device, value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)
        first = names.setdefault(memory, name) if value.numel() else name
        if first == name:
            kept[name] = value.detach().cpu().contiguous()
        else:
            shared[name] = first
    return kept, shared


def _write_torchscript(source: Source, path: str) -> Dict[str, Any]:
    """Write a TorchScript graph: scripted, which keeps all branches, or else traced with the example."""
    import torch

    # A LightningModule has properties that only its own `to_torchscript` hides from the compiler.
    module, own = source.module, getattr(source.module, "to_torchscript", None)
    method = "script"
    try:
        script = own(method="script") if own else torch.jit.script(module)
    except Exception:  # Python that the compiler does not support raises several classes
        method, arguments = "trace", _example(source).arguments
        with torch.no_grad():
            script = own(method="trace", example_inputs=arguments) if own else torch.jit.trace(module, arguments)
    torch.jit.save(script, path)
    return {"method": method}


def _write_exported_program(source: Source, path: str) -> Dict[str, Any]:
    import torch
    import torch.export

    def program(arguments: Tuple[Any, ...], shapes: Optional[Tuple[Any, ...]]) -> Any:
        options: Dict[str, Any] = {} if shapes is None else {"dynamic_shapes": shapes}
        return torch.export.export(source.module, arguments, **options)

    with torch.no_grad():
        # In torch 2.1 a program has a fixed batch size.
        is_dynamic = "dynamic_shapes" in signature(torch.export.export).parameters
        torch.export.save(_with_dynamic_batch(program, _example(source), is_dynamic), path)
    return {}


def _write_onnx(source: Source, path: str) -> Dict[str, Any]:
    """Write an ONNX file with the exporter that this version of torch uses by default."""
    import onnx
    import torch

    example = _example(source)
    names = ["input"] if len(example.arguments) == 1 else [f"input_{index}" for index in range(len(example.arguments))]
    by_torch_export = onnx_uses_torch_export()
    size = sum(value.numel() * value.element_size() for value in source.module.parameters())

    # Its parameters differ between versions.
    export: Any = torch.onnx.export

    def write(arguments: Tuple[Any, ...], shapes: Optional[Tuple[Any, ...]]) -> None:
        options = {"external_data": size > _MAX_EMBEDDED_BYTES, "verbose": False, "dynamic_shapes": shapes}
        export(source.module, arguments, path, input_names=names, **options)

    with torch.no_grad():
        if by_torch_export:
            _with_dynamic_batch(write, example, is_dynamic=True)
        else:
            axes = {} if example.doubled() is None else {name: {0: "batch"} for name in names}
            export(source.module, example.arguments, path, input_names=names, dynamic_axes=axes)
    onnx.checker.check_model(path)
    return {"exporter": "torch.export" if by_torch_export else "torchscript"}


def _with_dynamic_batch(
    export: Callable[[Tuple[Any, ...], Optional[Tuple[Any, ...]]], Any], example: Example, is_dynamic: bool
) -> Any:
    """Export with a dynamic batch dimension where the model allows it, else with that of the example."""
    import torch.export

    # A dimension of size 1 would be specialized.
    doubled = example.doubled()
    if is_dynamic and doubled is not None:
        batch = torch.export.Dim("batch")
        try:
            return export(doubled.arguments, tuple({0: batch} for _ in doubled.arguments))
        except Exception:  # a model with a fixed batch size raises one of several classes
            pass
    return export(example.arguments, None)


def _example(source: Source) -> Example:
    assert source.example is not None
    return source.example


#: Each takes a source and a path, and returns the entry ``details`` of ``model.json``.
WRITERS: Mapping[ExportFormat, Callable[[Source, str], Dict[str, Any]]] = {
    ExportFormat.STATE_DICT: _write_state_dict,
    ExportFormat.CHECKPOINT: _write_checkpoint,
    ExportFormat.SAFETENSORS: _write_safetensors,
    ExportFormat.TORCHSCRIPT: _write_torchscript,
    ExportFormat.ONNX: _write_onnx,
    ExportFormat.EXPORTED_PROGRAM: _write_exported_program,
}
