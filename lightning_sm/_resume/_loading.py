"""Loads a checkpoint once, before a job relies on it."""

import os
from inspect import signature
from typing import Any, Dict, Optional

__all__ = ["load_with_code", "why_not_weights_only"]


def why_not_weights_only(path: str) -> Optional[str]:
    """Load a file with ``weights_only=True``, which runs no code of the file's, and say why if that cannot be done.

    It is loaded as far as torch can without its bytes: from torch 2.1 on the file is mapped and not read. Its bytes are
    compared elsewhere.
    """
    import torch

    if "weights_only" not in signature(torch.load).parameters:
        return "this torch cannot restrict what a file may hold"
    try:
        torch.load(path, map_location="cpu", weights_only=True, **_mapped(path))
    except Exception as error:  # each version has exceptions of its own
        # Before these words and after the sentence torch advises to trust the file.
        return " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
    return None


def load_with_code(path: str) -> None:
    """Load a file in the same way with ``weights_only=False``, which runs the code that it names.

    Raises:
        Exception: It cannot be loaded in any way.
    """
    import torch

    restricted = {"weights_only": False} if "weights_only" in signature(torch.load).parameters else {}
    torch.load(path, map_location="cpu", **restricted, **_mapped(path))


def _mapped(path: str) -> Dict[str, Any]:
    import torch

    return {"mmap": True} if "mmap" in signature(torch.load).parameters and os.path.isfile(path) else {}
