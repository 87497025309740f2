"""The format ``exported_program``: the graph of ``torch.export``, for torch 2.1 and later."""

import importlib.util
from inspect import signature
from typing import Any, Dict, Optional, Tuple

from lightning_sm._export._compare import compare_outputs
from lightning_sm._export._example import Example
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source

__all__ = ["EXPORTED_PROGRAM", "any_batch_size"]


def any_batch_size(example: Example) -> Optional[Tuple[Any, ...]]:
    """For ``dynamic_shapes``: that the first dimension may have any size; ``None`` where the arguments share none."""
    import torch

    if example.doubled() is None or not hasattr(torch.export, "Dim"):
        return None
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in example.arguments)


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    import torch
    import torch.export

    assert source.example is not None
    torch.export.save(_export(source.module, source.example), path)
    loaded = torch.export.load(path).module()
    return compare_outputs(source.module, loaded, source.example, "exported_program"), {}


def _export(module: Any, example: Example) -> Any:
    """Export for any size of the batch where the model allows it, else for the example's."""
    import torch

    shapes = any_batch_size(example)
    with torch.no_grad():
        if shapes is not None and "dynamic_shapes" in signature(torch.export.export).parameters:
            try:
                # A dimension of size 1 counts as fixed.
                twice = example.doubled() or example
                return torch.export.export(module, twice.arguments, dynamic_shapes=shapes)
            except Exception:  # torch has several classes for a model that fixes the size
                pass
        return torch.export.export(module, example.arguments)


def _lacks() -> Optional[str]:
    import torch

    if importlib.util.find_spec("torch.export") is None:
        return f"torch {torch.__version__} has no torch.export, which came with 2.1"
    return None


EXPORTED_PROGRAM = Format("exported_program", "model.pt2", _write, runs_model=True, needs_class=False, lacks=_lacks)
