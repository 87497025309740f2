"""Lightning strategies for SageMaker. Their classes are built on first use."""

from typing import TYPE_CHECKING, Any, List

from lightning_sm._distributed.smddp import SMDDP_MIXIN, smddp_strategy_class
from lightning_sm._lightning import resolve_class

if TYPE_CHECKING:
    from lightning_sm._distributed.smddp import SMDDPMixin as SMDDPStrategy

    SMDDPPlugin = SMDDPStrategy

__all__ = ["SMDDPPlugin", "SMDDPStrategy"]


def __getattr__(name: str) -> Any:
    # Lightning 1.5 has plugins instead of strategies; both names are the same class in every version.
    if name in __all__:
        return resolve_class("SMDDPStrategy", SMDDP_MIXIN, smddp_strategy_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
