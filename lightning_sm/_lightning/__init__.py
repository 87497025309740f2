"""The Lightning door: the one place that knows Lightning's namespaces and versions.

Nothing here imports Lightning or torch before somebody asks for a class that needs them.
"""

from lightning_sm._lightning.classes import Deferred, namespaced_class
from lightning_sm._lightning.namespaces import (
    NAMESPACES,
    Namespace,
    choose_namespace,
    installed_namespaces,
    namespace_of,
    set_rank_zero_rank,
)

__all__ = [
    "Deferred",
    "NAMESPACES",
    "Namespace",
    "choose_namespace",
    "installed_namespaces",
    "namespace_of",
    "namespaced_class",
    "set_rank_zero_rank",
]
