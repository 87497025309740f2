"""The format ``safetensors``: parameters and buffers in a file that can hold nothing else."""

from typing import Any, Dict, Mapping, Tuple

from lightning_sm._export._compare import compare_tensors
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source
from lightning_sm.errors import ExportError

__all__ = ["SAFETENSORS", "load_safetensors", "without_twins"]


def without_twins(state_dict: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Keep one of several names of the same tensor, as ``safetensors.torch.save_model`` does.

    Returns:
        The tensors to write, contiguous and none sharing memory with another, and for each name that was left out the
        one that stands for it.

    Raises:
        ExportError: Something is no tensor.
    """
    kept: Dict[str, Any] = {}
    twins: Dict[str, str] = {}
    seen: Dict[Any, str] = {}
    for name, value in state_dict.items():
        if not hasattr(value, "data_ptr"):
            raise ExportError(
                f"The model cannot be written as safetensors, which hold tensors only: {name} of its state_dict() is "
                f"a {type(value).__name__}.",
                hint="Set sagemaker.export to state_dict.",
            )
        place = (value.device, value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)
        if value.numel() and place in seen:
            twins[name] = seen[place]
        else:
            seen[place] = name
            kept[name] = value.detach().cpu().clone().contiguous()
    return kept, twins


def load_safetensors(path: str) -> Dict[str, Any]:
    """Load the tensors, under every name that they have."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        twins = {name: kept for name, kept in (file.metadata() or {}).items() if kept in tensors}
    return {**tensors, **{name: tensors[kept] for name, kept in twins.items()}}


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    from safetensors.torch import save_file

    kept, twins = without_twins(source.state_dict)
    save_file(kept, path, metadata={**twins, "format": "pt"})
    return compare_tensors(source.state_dict, load_safetensors(path)), {"shared": twins} if twins else {}


SAFETENSORS = Format("safetensors", "model.safetensors", _write, packages=lambda: ("safetensors",))
