"""``ModelSummary``: the content of ``model.json``, and which checkpoint the exported weights are from."""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from lightning_sm._export.plan import ExportPlan, ExportWeights, json_subset
from lightning_sm._export.serving import distribution_versions
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import epochs_trained
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._version import __version__

__all__ = ["BestCheckpoint", "ModelSummary", "find_best", "summarize", "why_last_weights"]


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint.

    Args:
        path: Its file.
        score: The value of the monitored metric.
        monitor: The name of the metric.
    """

    path: str
    score: float
    monitor: str


@dataclass(frozen=True)
class ModelSummary:
    """The content of ``model.json``.

    Args:
        class_path: The qualified name of the model's class.
        metrics: ``trainer.callback_metrics``, the scalars of them.
        versions: Versions of the packages that trained the model.
        checkpoint: The checkpoint that the weights are from; ``None`` for the weights at the end of training.
        score: The best value of the monitored metric, if one is monitored.
        monitor: The name of that metric.
        epoch: The number of epochs that were trained.
        global_step: The number of optimizer steps.
        hparams: The saved hyperparameters that JSON can hold. With the code for serving, all of them or ``None``.
        format: The name of the format.
        file: The file that holds the model.
        files: All files that were written, except ``model.json``.
        submodule: The exported submodule; ``None`` for the whole model.
        example: The origin, shapes and dtypes of the example input, if the format needed one.
        comparison: What was compared after the file had been loaded again, and the difference.
        details: Entries of this format only.
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


def summarize(
    namespace: Namespace,
    trainer: Trainer,
    module: Any,
    plan: ExportPlan,
    best: Optional[BestCheckpoint],
    hparams: Optional[Mapping[str, Any]],
) -> ModelSummary:
    """Summarize a trained model, without what the export itself adds.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        module: The trained model.
        plan: What is exported.
        best: The best checkpoint, if its weights are exported.
        hparams: The hyperparameters that the model saved.
    """
    import torch

    cls = type(module)
    return ModelSummary(
        class_path=f"{cls.__module__}.{cls.__qualname__}",
        metrics=_scalars(trainer.callback_metrics),
        versions={
            "lightning_sm": __version__,
            namespace.name: str(namespace.module().__version__),
            "torch": str(torch.__version__),
            **distribution_versions(plan.format.packages()),
        },
        checkpoint=None if best is None else best.path,
        score=None if best is None else best.score,
        monitor=None if best is None else best.monitor,
        epoch=epochs_trained(namespace, trainer),
        global_step=int(trainer.global_step),
        hparams=hparams if plan.serving else json_subset(hparams),
    )


def find_best(trainer: Trainer) -> Optional[BestCheckpoint]:
    """The best checkpoint of the first callback that monitors a metric and has one; ``None`` if it is not readable."""
    for callback in trainer.checkpoint_callbacks:
        path, score = getattr(callback, "best_model_path", ""), getattr(callback, "best_model_score", None)
        # A callback that monitors the step keeps the newest checkpoint, and the last weights are newer still.
        if not path or score is None or getattr(callback, "monitor", None) in (None, "step"):
            continue
        if os.path.isfile(path):
            return BestCheckpoint(str(path), float(score), str(callback.monitor))
        # Only the strategy can read a sharded checkpoint, which is a directory.
        problem = "is a directory" if os.path.isdir(path) else "does not exist any more"
        log.warning("Best checkpoint %s %s; exporting the last weights instead", path, problem)
    return None


def why_last_weights(trainer: Trainer, weights: ExportWeights) -> str:
    """Why the last weights are exported and not those of a best checkpoint, for the log.

    Args:
        trainer: The trainer.
        weights: Which weights were asked for.
    """
    if weights is ExportWeights.LAST:
        return "sagemaker.export_weights is last"
    for monitor in (getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks):
        if monitor not in (None, "step"):
            return f"no readable checkpoint with the best {monitor}"
    return "no ModelCheckpoint monitors a metric"


def _scalars(metrics: Mapping[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if not hasattr(value, "numel") or value.numel() == 1}


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by ``None``, as in the metrics of a diverged training."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
