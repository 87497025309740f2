"""Lightning callbacks for SageMaker, one file each."""

from typing import TYPE_CHECKING, Any

from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._lightning._classes import resolve_class

if TYPE_CHECKING:
    from lightning_sm.callbacks._model_export import ModelExportMixin as ModelExport

__all__ = ["ModelExport", "model_export_class"]


def model_export_class(namespace: Namespace) -> type:
    """Return ``ModelExport`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace, "ModelExport", "lightning_sm.callbacks._model_export:ModelExportMixin", "callbacks:Callback"
    )


def __getattr__(name: str) -> Any:
    if name == "ModelExport":
        return resolve_class(name, model_export_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
