"""Writes the formats that hold tensors and no graph: ``state_dict``, ``checkpoint`` and ``safetensors``.

Each function writes a source to a path, loads the file again and compares it. It returns the entries ``comparison`` and
``details`` of ``model.json``.
"""

import shutil
from typing import Any, Dict, Mapping, Tuple

from lightning_sm._export.compare import compare_tensors
from lightning_sm._export.source import Source, load_file
from lightning_sm.errors import ExportError

__all__ = ["drop_shared_tensors", "write_checkpoint", "write_safetensors", "write_state_dict"]


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
    return compare_tensors(source.state_dict, load_file(path, weights_only=True)), {}


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
    return compare_tensors(source.state_dict, load_file(path, weights_only=False)["state_dict"]), {}


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
        The tensors to write, contiguous and without shared memory, and for each dropped name the one that was kept.

    Raises:
        ExportError: A value is not a tensor.
    """
    kept: Dict[str, Any] = {}
    shared: Dict[str, str] = {}
    names: Dict[Any, str] = {}
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
        else:
            names[memory] = name
            kept[name] = value.detach().cpu().clone().contiguous()
    return kept, shared
