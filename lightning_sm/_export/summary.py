"""``ModelSummary``, the content of ``model.json``, and the best checkpoint, whose weights may be exported."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping, Optional, Tuple

from lightning_sm._export.plan import ExportPlan, ExportWeights, json_subset
from lightning_sm._export.serving import class_path, distribution_versions
from lightning_sm._export.sharded import folder_problem
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import epochs_trained, strategy_of
from lightning_sm._logging import log
from lightning_sm._observe.metrics import plain_number
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import has_file, has_folder, remote_folder_problem
from lightning_sm._version import __version__

__all__ = ["BestCheckpoint", "ModelSummary", "find_best", "has_monitor", "summarize", "why_last_weights"]

_HOSTS_HINT = (
    ". HINT: each of several hosts has its own shards only, and S3 has them all. To export the best weights, set "
    "sagemaker.checkpoint_dir to a file system that the hosts share."
)


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint.

    Args:
        path: Its file or URL; of a sharded one, that of its folder.
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
        metrics: The numbers of ``trainer.callback_metrics``.
        versions: Versions of the packages that trained the model.
        checkpoint: The checkpoint that the weights are from; ``None`` for the weights at the end of training.
        score: The best value of the monitored metric, if one is monitored.
        monitor: The name of that metric.
        epoch: The number of epochs that were trained.
        global_step: The number of optimizer steps.
        ended: Whether the program's training had ended, and was not stopped for the job to end.
        stopped_by: What stopped it.
        world_size: The number of processes that trained it.
        strategy: The name of the strategy's class.
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
    ended: bool = True
    stopped_by: Optional[str] = None
    world_size: int = 1
    strategy: Optional[str] = None
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
    trainer: Any,
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

    # A program may put there what it likes.
    numbers = {name: plain_number(value) for name, value in trainer.callback_metrics.items()}
    return ModelSummary(
        class_path=class_path(type(module)),
        metrics={name: float(number) for name, number in numbers.items() if isinstance(number, (int, float))},
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
        world_size=int(trainer.world_size),
        strategy=type(strategy_of(trainer)).__name__,
        hparams=hparams if plan.serving else json_subset(hparams),
    )


def find_best(trainer: Any) -> Optional[BestCheckpoint]:
    """The best checkpoint of the first callback that monitors a metric and has one; ``None`` if it is not readable."""
    for callback in trainer.checkpoint_callbacks:
        path, score = getattr(callback, "best_model_path", ""), getattr(callback, "best_model_score", None)
        if not path or score is None or not _monitors(callback):
            continue
        problem = _problem_of(str(path))
        if problem is None:
            return BestCheckpoint(str(path), float(score), str(callback.monitor))
        hint = _HOSTS_HINT if has_folder(path) and trainer.num_nodes > 1 and not is_remote(path) else ""
        log.warning("Best checkpoint %s %s; exporting the last weights instead%s", path, problem, hint)
    return None


def _problem_of(path: str) -> Optional[str]:
    if not has_folder(path):
        return None if has_file(path) else "does not exist any more"
    problem = remote_folder_problem(path) if is_remote(path) else folder_problem(path)
    return problem and f"cannot be read here: {problem}"


def has_monitor(trainer: Any) -> bool:
    """Whether a ``ModelCheckpoint`` monitors a metric, so that there may be a best checkpoint."""
    return any(_monitors(callback) for callback in trainer.checkpoint_callbacks)


def _monitors(callback: Any) -> bool:
    """Lightning's guide keeps the newest checkpoints by a step or epoch, and the last weights are newer still."""
    return getattr(callback, "monitor", None) not in (None, "step", "epoch", "global_step")


def why_last_weights(trainer: Any, weights: ExportWeights) -> str:
    """Why the last weights are exported and not those of a best checkpoint, for the log.

    Args:
        trainer: The trainer.
        weights: Which weights were asked for.
    """
    if weights is ExportWeights.LAST:
        return "sagemaker.export_weights is last"
    monitors = [callback.monitor for callback in trainer.checkpoint_callbacks if _monitors(callback)]
    return f"no readable checkpoint with the best {monitors[0]}" if monitors else "no ModelCheckpoint monitors a metric"


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by ``None``, as in the metrics of a diverged training."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
