"""The only place that knows Lightning's namespaces and versions.

Importing it imports neither Lightning nor torch.
"""

from lightning_sm._lightning.levels import SupportLevel, describe_level, support_level
from lightning_sm._lightning.namespaces import (
    FABRICS,
    NAMESPACES,
    LazyClass,
    Namespace,
    choose_fabric,
    choose_namespace,
    has_base,
    installed_namespaces,
    namespace_of,
    namespaced_class,
    resolve_class,
    set_rank_zero_rank,
)

__all__ = [
    "FABRICS",
    "LazyClass",
    "NAMESPACES",
    "Namespace",
    "SupportLevel",
    "choose_fabric",
    "choose_namespace",
    "describe_level",
    "has_base",
    "installed_namespaces",
    "namespace_of",
    "namespaced_class",
    "resolve_class",
    "set_rank_zero_rank",
    "support_level",
]
