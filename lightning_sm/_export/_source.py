"""``Source``: what is exported, whatever the format."""

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from lightning_sm._export._example import Example

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """What is exported.

    Args:
        state_dict: Parameters and buffers of the model, or of the part that is exported, on any device.
        checkpoint: The whole checkpoint that the weights are from, where it is not in a file.
        checkpoint_path: The file of that checkpoint, where it is in one.
        module: The model or part itself, on the CPU, in eval mode and with these weights, for formats that run it.
        example: An input of it.
    """

    state_dict: Mapping[str, Any]
    checkpoint: Optional[Mapping[str, Any]] = None
    checkpoint_path: Optional[str] = None
    module: Any = None
    example: Optional[Example] = None

    def __repr__(self) -> str:
        origin = self.checkpoint_path or "training"
        return f"Source({len(self.state_dict)} entries from {origin}, example={self.example!r})"
