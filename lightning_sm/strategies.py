"""Lightning strategies for SageMaker, one file each, and their registration by name."""

from typing import TYPE_CHECKING, Any

from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._lightning.classes import resolve_class
from lightning_sm._lightning.compat_strategies import (
    ddp_base_path,
    heed_written_num_nodes,
    keep_cluster_environment,
    register_strategy,
)

__all__ = ["SMDDPPlugin", "SMDDPStrategy", "register_strategies", "smddp_strategy_class"]

if TYPE_CHECKING:
    from lightning_sm._distributed.smddp import SMDDPMixin as SMDDPStrategy

    SMDDPPlugin = SMDDPStrategy


def smddp_strategy_class(namespace: Namespace) -> type:
    """Return ``SMDDPStrategy`` for one of Lightning's namespaces."""
    cls = namespaced_class(
        namespace, "SMDDPStrategy", "lightning_sm._distributed.smddp:SMDDPMixin", ddp_base_path(namespace)
    )
    heed_written_num_nodes(namespace, cls)
    keep_cluster_environment(namespace, cls)
    return cls


def register_strategies(namespace: Namespace) -> None:
    """Register the names ``smddp`` and ``smddp_find_unused_parameters_{true,false}``, as Lightning does for ``ddp``."""
    cls = smddp_strategy_class(namespace)
    about = "DDP over AWS's SMDDP collectives where they exist, else over NCCL or gloo"
    register_strategy(namespace, "smddp", cls, about)
    for value in (True, False):
        name = f"smddp_find_unused_parameters_{str(value).lower()}"
        register_strategy(namespace, name, cls, about, find_unused_parameters=value)


def __getattr__(name: str) -> Any:
    # Lightning 1.5 has plugins where later ones have strategies; both names mean the same class everywhere.
    if name in ("SMDDPStrategy", "SMDDPPlugin"):
        return resolve_class("SMDDPStrategy", smddp_strategy_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
