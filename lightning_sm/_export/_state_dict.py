"""The format ``state_dict``: parameters and buffers in a file of torch's, which loads with ``weights_only=True``."""

from typing import Any, Dict, Tuple

from lightning_sm._export._compare import compare_tensors
from lightning_sm._export._files import load_file, on_cpu
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source

__all__ = ["STATE_DICT"]


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    import torch

    torch.save({name: on_cpu(value) for name, value in source.state_dict.items()}, path)
    return compare_tensors(source.state_dict, load_file(path, weights_only=True)), {}


STATE_DICT = Format("state_dict", "model.pt", _write)
