"""Strategies of Lightning Fabric for SageMaker. Their classes are built on first use."""

from typing import TYPE_CHECKING, Any, List

from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import Namespace, resolve_class

if TYPE_CHECKING:
    from lightning_sm._distributed.fabric import FabricFSDPMixin as SMDDPFSDPStrategy
    from lightning_sm._distributed.fabric import FabricSMDDPMixin as SMDDPStrategy

__all__ = ["SMDDPFSDPStrategy", "SMDDPStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_class(name, lambda namespace: strategy_class(Namespace(namespace.fabric), name))


def __dir__() -> List[str]:
    return sorted(__all__)
