"""What a trainer and its model have to say for ``model.json``."""

from typing import Any, Dict, Mapping, Optional

from lightning_sm._export import BestCheckpoint, ExportPlan, ModelSummary, distribution_versions, values_for_json
from lightning_sm._lightning import Namespace
from lightning_sm._lightning._shims import epochs_trained
from lightning_sm._version import __version__

__all__ = ["summary_of"]


def summary_of(
    namespace: Namespace,
    trainer: Any,
    module: Any,
    plan: ExportPlan,
    best: Optional[BestCheckpoint],
    hparams: Optional[Mapping[str, Any]],
) -> ModelSummary:
    """Say what is known of an export before anything is written.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        module: The model that was trained.
        plan: What is exported.
        best: The best checkpoint, where its weights are taken.
        hparams: What the model saved.
    """
    import torch

    cls = type(module)
    return ModelSummary(
        class_path=f"{cls.__module__}.{cls.__qualname__}",
        metrics=_metrics(trainer.callback_metrics),
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
        hparams=hparams if plan.serving else values_for_json(hparams),
    )


def _metrics(metrics: Mapping[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if not hasattr(value, "numel") or value.numel() == 1}
