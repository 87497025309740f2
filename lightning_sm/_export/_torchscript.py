"""The format ``torchscript``: a graph with its weights, which needs no class and no Lightning to run.

It is ``model.pt``, the first name that SageMaker's PyTorch inference container looks for.
"""

from typing import Any, Dict, Tuple

from lightning_sm._export._compare import compare_outputs
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source

__all__ = ["TORCHSCRIPT"]


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    import torch

    assert source.example is not None
    script, method = _script(source.module, source.example.arguments)
    torch.jit.save(script, path)
    loaded = torch.jit.load(path, map_location="cpu")
    return compare_outputs(source.module, loaded, source.example, "torchscript"), {"method": method}


def _script(module: Any, arguments: Tuple[Any, ...]) -> Tuple[Any, str]:
    """Compile the code, which keeps every branch, or else record what it does with the example."""
    import torch

    # A module of Lightning's has properties that only its own method keeps from the compiler.
    own = getattr(module, "to_torchscript", None)
    try:
        return (own(method="script") if own else torch.jit.script(module)), "script"
    except Exception:  # whatever Python the compiler does not know
        pass
    with torch.no_grad():
        if own:
            return own(method="trace", example_inputs=arguments), "trace"
        return torch.jit.trace(module, arguments), "trace"


TORCHSCRIPT = Format("torchscript", "model.pt", _write, runs_model=True, needs_class=False)
