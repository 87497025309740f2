"""Lightning callbacks for SageMaker training jobs.

:class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add those that a job needs. Each can be
used in any ``Trainer``; it is a subclass of ``Callback`` of the Lightning namespace that the program uses.
"""

from typing import TYPE_CHECKING, Any, List

from lightning_sm._lightning import Namespace, namespaced_class, resolve_class

if TYPE_CHECKING:
    from lightning_sm.callbacks.auto_resume import AutoResumeMixin as AutoResume
    from lightning_sm.callbacks.finetuning_state import FinetuningStateMixin as FinetuningState
    from lightning_sm.callbacks.graceful_stop import GracefulStopMixin as GracefulStop
    from lightning_sm.callbacks.model_export import ModelExportMixin as ModelExport
    from lightning_sm.callbacks.tensorboard_upload import TensorBoardUploadMixin as TensorBoardUpload
    from lightning_sm.callbacks.training_monitor import TrainingMonitorMixin as TrainingMonitor
    from lightning_sm.callbacks.world_check import WorldCheckMixin as WorldCheck

__all__ = [
    "AutoResume",
    "FinetuningState",
    "GracefulStop",
    "ModelExport",
    "TensorBoardUpload",
    "TrainingMonitor",
    "WorldCheck",
]

_MIXINS = {
    "AutoResume": "lightning_sm.callbacks.auto_resume:AutoResumeMixin",
    "FinetuningState": "lightning_sm.callbacks.finetuning_state:FinetuningStateMixin",
    "GracefulStop": "lightning_sm.callbacks.graceful_stop:GracefulStopMixin",
    "ModelExport": "lightning_sm.callbacks.model_export:ModelExportMixin",
    "TensorBoardUpload": "lightning_sm.callbacks.tensorboard_upload:TensorBoardUploadMixin",
    "TrainingMonitor": "lightning_sm.callbacks.training_monitor:TrainingMonitorMixin",
    "WorldCheck": "lightning_sm.callbacks.world_check:WorldCheckMixin",
}


def callback_class(namespace: Namespace, name: str) -> type:
    """Return the callback ``name`` for one of Lightning's namespaces. Internal: users import the callback by name.

    Args:
        namespace: The namespace.
        name: The name of the callback.
    """
    return namespaced_class(namespace, name, _MIXINS[name], "callbacks:Callback")


def __getattr__(name: str) -> Any:
    if name in _MIXINS:
        return resolve_class(name, lambda namespace: callback_class(namespace, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
