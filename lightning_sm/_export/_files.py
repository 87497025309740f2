"""Files of torch's, written and read."""

from inspect import signature
from typing import Any

__all__ = ["load_file", "on_cpu"]


def load_file(path: str, *, weights_only: bool) -> Any:
    """Load a file of torch's onto the CPU; torch before 1.13 cannot restrict what a file may hold."""
    import torch

    restricted = {"weights_only": weights_only} if "weights_only" in signature(torch.load).parameters else {}
    return torch.load(path, map_location="cpu", **restricted)


def on_cpu(value: Any) -> Any:
    """The value on the CPU and without its graph where it is a tensor, else as it is."""
    return value.detach().cpu() if hasattr(value, "detach") else value
