"""``ModelExport``: writes the best model into SageMaker's model directory when training ends."""

import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from lightning_sm._export import ModelSummary, check_writable, load_file, write_model
from lightning_sm._failure import failure_reported
from lightning_sm._job import TrainingJob
from lightning_sm._lightning import Namespace
from lightning_sm._lightning._shims import epochs_trained, strategy_of
from lightning_sm._log import log
from lightning_sm._version import __version__

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

__all__ = ["ModelExportMixin"]


class ModelExportMixin(_Base):
    """Write the trained model into the model directory after ``fit``, from global rank 0.

    ``model.pt`` is the state dict, ``model.json`` tells what it is and which checkpoint it came from, and
    ``config.yaml`` is the resolved configuration of a CLI run. The weights are those of the best checkpoint where a
    ``ModelCheckpoint`` monitors a metric, else those that training ended with. Outside a SageMaker training container
    the callback does nothing unless it is given a ``model_dir``.

    Args:
        model_dir: The directory, instead of ``SM_MODEL_DIR``, which the toolkit and SDK v3 set.
        config: The resolved configuration as YAML.

    Raises:
        OutputError: The directory cannot be written. It is tried before training starts.
        ExportError: The model could not be written.
    """

    namespace: Namespace

    def __init__(self, model_dir: Optional[str] = None, config: Optional[str] = None) -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.model_dir = model_dir or self._job.model_dir
        self.config = config
        self._last: Mapping[str, Any] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Try the model directory."""
        if self.model_dir is not None and stage == "fit" and trainer.is_global_zero:
            with failure_reported(self._job):
                check_writable(self.model_dir, "model directory")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Gather the weights, in which every rank of a sharded strategy takes part."""
        if self.model_dir is not None:
            self._last = strategy_of(trainer).lightning_module_state_dict()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the model from global rank 0, now that every checkpoint has been saved."""
        if self.model_dir is None or not trainer.is_global_zero:
            return
        with failure_reported(self._job):
            best = _best_checkpoint(trainer)
            state_dict = self._last if best is None else _load_state_dict(best[0])
            path = write_model(self.model_dir, state_dict, self._summary(trainer, pl_module, best), self.config)
        self._last = {}
        which = "the last model" if best is None else f"the best model ({best[2]} {best[1]:.4g})"
        log.info("Exported %s to %s", which, path)

    def export_now(self, trainer: Any, pl_module: Any) -> None:
        """Write the model as the fit has it now, for a fit that is left before its end. Every rank must call it."""
        self.on_train_end(trainer, pl_module)
        self.on_fit_end(trainer, pl_module)

    def _summary(self, trainer: Any, pl_module: Any, best: Optional[Tuple[str, float, str]]) -> ModelSummary:
        import torch

        cls = type(pl_module)
        return ModelSummary(
            class_path=f"{cls.__module__}.{cls.__qualname__}",
            metrics=_metrics(trainer.callback_metrics),
            versions={
                "lightning_sm": __version__,
                self.namespace.name: str(self.namespace.module().__version__),
                "torch": str(torch.__version__),
            },
            checkpoint=None if best is None else best[0],
            score=None if best is None else best[1],
            monitor=None if best is None else best[2],
            epoch=epochs_trained(self.namespace, trainer),
            global_step=int(trainer.global_step),
        )


def _best_checkpoint(trainer: Any) -> Optional[Tuple[str, float, str]]:
    """Path, score and metric of the best checkpoint by the first callback that monitors a metric."""
    for callback in trainer.checkpoint_callbacks:
        path, score = getattr(callback, "best_model_path", ""), getattr(callback, "best_model_score", None)
        # A sharded checkpoint is a folder, which only its strategy can read; the gathered weights stand in for it.
        if os.path.isfile(path) and score is not None and getattr(callback, "monitor", None) is not None:
            return str(path), float(score), str(callback.monitor)
    return None


def _load_state_dict(path: str) -> Mapping[str, Any]:
    # This run wrote the checkpoint. It holds more than weights, which newer torch loads only from whom one trusts.
    checkpoint: Dict[str, Any] = load_file(path, weights_only=False)
    state_dict: Mapping[str, Any] = checkpoint["state_dict"]
    return state_dict


def _metrics(metrics: Mapping[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if not hasattr(value, "numel") or value.numel() == 1}
