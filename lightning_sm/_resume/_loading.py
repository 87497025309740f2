"""Loads a checkpoint once, before a job relies on it."""

import os
from inspect import signature
from typing import Optional

__all__ = ["why_not_weights_only"]


def why_not_weights_only(path: str) -> Optional[str]:
    """Load a file as far as torch can without its bytes, and say why not ``weights_only`` if it cannot be.

    From torch 2.1 on the file is mapped and not read. Its bytes are compared elsewhere.

    Returns:
        ``None`` if the file loads with ``weights_only=True``, which runs no code of the file's; else the reason.

    Raises:
        Exception: It cannot be loaded in any way.
    """
    import torch

    known = signature(torch.load).parameters
    mapped = {"mmap": True} if "mmap" in known and os.path.isfile(path) else {}
    why = "this torch cannot restrict what a file may hold"
    if "weights_only" in known:
        try:
            torch.load(path, map_location="cpu", weights_only=True, **mapped)
            return None
        except Exception as error:  # each version has exceptions of its own
            # Before these words and after the sentence torch advises to trust the file.
            why = " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
        torch.load(path, map_location="cpu", weights_only=False, **mapped)
    else:
        torch.load(path, map_location="cpu", **mapped)
    return why
