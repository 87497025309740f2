"""Writes a trained model into the model directory, whole or not at all."""

import json
import math
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any, Mapping, Optional

from lightning_sm.errors import ExportError, OutputError

__all__ = ["ModelSummary", "check_writable", "load_file", "write_model"]


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
    """

    class_path: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Optional[str] = None
    score: Optional[float] = None
    monitor: Optional[str] = None
    epoch: int = 0
    global_step: int = 0


def check_writable(directory: str, what: str) -> None:
    """Make a directory and a file in it, so that a job fails in its first second and not after its last epoch.

    Raises:
        OutputError: The directory cannot be written, or is remote.
    """
    if "://" in directory:
        raise OutputError(
            f"The {what} {directory} is not on this host.", hint="Name a local directory; SageMaker uploads it to S3."
        )
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(
            f"The {what} {directory} cannot be written ({error}).",
            hint="Check the directory's mount and owner, and what else is configured to be there.",
        ) from error


def load_file(path: str, *, weights_only: bool) -> Any:
    """Load a file of torch's onto the CPU; torch before 1.13 cannot restrict what a file may hold."""
    import torch

    restricted = {"weights_only": weights_only} if "weights_only" in signature(torch.load).parameters else {}
    return torch.load(path, map_location="cpu", **restricted)


def write_model(
    directory: str, state_dict: Mapping[str, Any], summary: ModelSummary, config: Optional[str] = None
) -> str:
    """Write ``model.pt``, ``model.json`` and, where there is one, ``config.yaml``.

    All are written under another name, ``model.pt`` is loaded once with ``weights_only=True``, and only then do the
    new files take the place of older ones.

    Args:
        directory: The model directory.
        state_dict: The model's parameters and buffers, on any device.
        summary: The content of ``model.json``.
        config: The resolved configuration as YAML.

    Returns:
        The path of ``model.pt``.

    Raises:
        ExportError: Something could not be written, or the state dict holds more than tensors and plain values.
    """
    import torch

    check_writable(directory, "model directory")
    staging = tempfile.mkdtemp(prefix=".lightning-sm-", dir=directory)
    try:
        path = os.path.join(staging, "model.pt")
        torch.save({name: _on_cpu(value) for name, value in state_dict.items()}, path)
        load_file(path, weights_only=True)
        about = json.dumps(_finite(asdict(summary)), indent=2, sort_keys=True, allow_nan=False)
        _write(os.path.join(staging, "model.json"), about + "\n")
        if config is not None:
            _write(os.path.join(staging, "config.yaml"), config)
        for name in sorted(os.listdir(staging)):
            _flush(os.path.join(staging, name))
            os.replace(os.path.join(staging, name), os.path.join(directory, name))
    except Exception as error:  # torch, pickle and the file system each have exceptions of their own
        raise ExportError(
            f"The model could not be written to {directory} ({type(error).__name__}: {' '.join(str(error).split())}).",
            hint="Its state_dict() must hold tensors and plain values only, and the disk must have room for it.",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return os.path.join(directory, "model.pt")


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value


def _finite(value: Any) -> Any:
    """Leave out what JSON has no number for, such as the loss of a training that diverged."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _flush(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
