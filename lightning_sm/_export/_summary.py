"""``ModelSummary``: what ``model.json`` says."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping, Optional, Tuple

__all__ = ["ModelSummary"]


@dataclass(frozen=True)
class ModelSummary:
    """What ``model.json`` says about an exported model.

    Args:
        class_path: The model's class.
        metrics: The trainer's last metrics.
        versions: Versions of the packages that trained it.
        checkpoint: The checkpoint that the weights came from; ``None`` for the weights as training left them.
        score: The best value of the monitored metric, where one is monitored.
        monitor: The name of that metric.
        epoch: Epochs that were trained.
        global_step: Optimizer steps that were taken.
        hparams: The hyperparameters that the model saved, as far as JSON can hold them. Where the archive must be able
            to make the model anew, all of them or ``None``.
        format: The name of the format.
        file: The file that holds the model.
        files: All files that were written, except ``model.json``.
        submodule: The part that was exported; ``None`` for the whole model.
        example: Where the example input came from, its shapes and dtypes, where the format needed one.
        comparison: What was compared after the file had been loaded again, and how far apart it was.
        details: What only this format has to say.
    """

    class_path: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Optional[str] = None
    score: Optional[float] = None
    monitor: Optional[str] = None
    epoch: int = 0
    global_step: int = 0
    hparams: Optional[Mapping[str, Any]] = None
    format: str = "state_dict"
    file: str = "model.pt"
    files: Tuple[str, ...] = ()
    submodule: Optional[str] = None
    example: Optional[Mapping[str, Any]] = None
    comparison: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """The text of ``model.json``."""
        return json.dumps(_finite(asdict(self)), indent=2, sort_keys=True, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Leave out what JSON has no number for, such as the loss of a training that diverged."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
