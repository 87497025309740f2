"""The only place that knows Lightning's namespaces and versions.

Importing it imports neither Lightning nor torch.
"""

from lightning_sm._lightning.namespaces import (
    NAMESPACES,
    LazyClass,
    Namespace,
    choose_namespace,
    installed_namespaces,
    namespace_of,
    namespaced_class,
    resolve_class,
    set_rank_zero_rank,
)

__all__ = [
    "LazyClass",
    "NAMESPACES",
    "Namespace",
    "choose_namespace",
    "installed_namespaces",
    "namespace_of",
    "namespaced_class",
    "resolve_class",
    "set_rank_zero_rank",
]
