"""``Finished``: that a job trained to its end, so that a restart of it trains no further."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional

from lightning_sm._atomic_file import put_in_place
from lightning_sm._checkpoint.candidates import Candidate
from lightning_sm._lightning import Namespace

__all__ = [
    "Finished",
    "plain",
    "read_finished",
    "remove_finished",
    "tensor_sums",
    "training_limits",
    "weight_sums",
    "write_finished",
]

_NAME = "finished.json"
# What decides when an ``EarlyStopping`` stops.
_STOPPERS = ("monitor", "mode", "min_delta", "patience", "stopping_threshold", "divergence_threshold")


@dataclass(frozen=True)
class Finished:
    """The end of a training.

    Args:
        checkpoint: The checkpoint of that end, as a path below the checkpoint directory.
        epoch: The epoch that the checkpoint says.
        global_step: The optimizer steps that it says.
        limits: What ended the training, such as ``max_epochs``; with others there may be more to train.
        job_name: The job that trained; ``None`` where it has no name.
        is_over: Whether all hooks of the training's end have been called. Before, the model may get other weights yet.
        weights: The checkpoint with the weights that those hooks left; ``None`` where they changed none.
    """

    checkpoint: str
    epoch: int
    global_step: int
    limits: Mapping[str, Any] = field(default_factory=dict)
    job_name: Optional[str] = None
    is_over: bool = False
    weights: Optional[str] = None

    def is_end_of(self, candidate: Candidate, limits: Mapping[str, Any]) -> bool:
        """Whether a job with these limits that has this checkpoint has nothing left to train."""
        same = candidate.name in (self.checkpoint, self.weights) and self.global_step == candidate.global_step
        if self.job_name is not None and candidate.job is not None and candidate.job.name is not None:
            same = same and self.job_name == candidate.job.name
        return same and self.limits == plain(limits)

    def is_all_of(self, candidate: Candidate) -> bool:
        """Whether the checkpoint's weights are those of the trained model."""
        return self.is_over and self.weights in (None, candidate.name)


def write_finished(directory: str, finished: Finished) -> None:
    """Write ``finished.json`` beside the checkpoints, whole or not at all."""
    path = os.path.join(directory, _NAME)
    staging = os.path.join(directory, f".{_NAME}.new")
    with open(staging, "w", encoding="utf-8") as file:
        json.dump(asdict(finished), file, indent=2, default=str)
    put_in_place(staging, path)


def read_finished(directory: str) -> Optional[Finished]:
    """Return what ``finished.json`` says; ``None`` where there is none that can be read."""
    try:
        with open(os.path.join(directory, _NAME), encoding="utf-8") as file:
            return Finished(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def remove_finished(directory: str) -> None:
    """Remove ``finished.json``, because the training goes on."""
    with suppress(OSError):  # one that stays does no harm: it names another step
        os.remove(os.path.join(directory, _NAME))


def plain(limits: Mapping[str, Any]) -> Any:
    """The limits as they come back from JSON."""
    return json.loads(json.dumps(limits, default=str))


def training_limits(namespace: Namespace, trainer: Any) -> Dict[str, Any]:
    """Return what ends a trainer's fit: its limits, and callbacks of Lightning's that stop it."""
    limits = {name: getattr(trainer, name) for name in ("min_epochs", "max_epochs", "min_steps", "max_steps")}
    callbacks = namespace.module("callbacks")
    for kind, names in ((callbacks.Timer, ("_duration",)), (callbacks.EarlyStopping, _STOPPERS)):
        for callback in trainer.callbacks:
            if isinstance(callback, kind):
                values = {name.lstrip("_"): getattr(callback, name, None) for name in names}
                limits.setdefault(kind.__name__, []).append(values)
    return limits


def weight_sums(module: Any) -> List[float]:
    """The sum of each parameter and buffer, by which one can tell that weights were changed."""
    return [float(total) for total in tensor_sums((*module.parameters(), *module.buffers()))]


def tensor_sums(tensors: Iterable[Any]) -> List[Any]:
    """The sum of each tensor, where the tensor is: nothing waits for a GPU here."""
    import torch

    sums: List[Any] = []
    with torch.no_grad():
        for tensor in tensors:
            # A part of a tensor that is spread over ranks is compared where it is.
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.layout == torch.strided and local.device.type != "meta" and not local.is_complex():
                precise = torch.float32 if local.device.type == "mps" else torch.float64
                sums.append(local.detach().sum(dtype=precise))
    return sums
