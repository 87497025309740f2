"""The format ``checkpoint``: Lightning's own, from which training can go on."""

import shutil
from typing import Any, Dict, Tuple

from lightning_sm._export._compare import compare_tensors
from lightning_sm._export._files import load_file
from lightning_sm._export._format import Format
from lightning_sm._export._source import Source

__all__ = ["CHECKPOINT"]


def _write(source: Source, path: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    import torch

    if source.checkpoint_path is not None:
        shutil.copyfile(source.checkpoint_path, path)
    else:
        torch.save(source.checkpoint, path)
    # This run wrote it. It holds more than weights, which newer torch loads only from whom one trusts.
    return compare_tensors(source.state_dict, load_file(path, weights_only=False)["state_dict"]), {}


CHECKPOINT = Format("checkpoint", "model.ckpt", _write)
