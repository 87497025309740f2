"""Lightning strategies for SageMaker. Their classes are built on first use."""

import functools
from typing import TYPE_CHECKING, Any, List

from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import resolve_class

if TYPE_CHECKING:
    from lightning_sm._distributed.sharded import DeepSpeedMixin as SMDDPDeepSpeedStrategy
    from lightning_sm._distributed.sharded import FSDPMixin as SMDDPFSDPStrategy
    from lightning_sm._distributed.sharded import ModelParallelMixin as SMDDPModelParallelStrategy
    from lightning_sm._distributed.smddp import SMDDPMixin as SMDDPStrategy
    from lightning_sm._distributed.smp import SMPMixin as SMPStrategy
    from lightning_sm._distributed.smp_fsdp import SMPFSDPMixin as SMPFSDPStrategy
    from lightning_sm._distributed.xla import TorchrunXLAMixin as TorchrunXLAStrategy

    SMDDPPlugin = SMDDPStrategy

__all__ = [
    "SMDDPDeepSpeedStrategy",
    "SMDDPFSDPStrategy",
    "SMDDPModelParallelStrategy",
    "SMDDPPlugin",
    "SMDDPStrategy",
    "SMPFSDPStrategy",
    "SMPStrategy",
    "TorchrunXLAStrategy",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Lightning 1.5 has plugins instead of strategies; both names are the same class in every version.
    name = "SMDDPStrategy" if name == "SMDDPPlugin" else name
    return resolve_class(name, functools.partial(strategy_class, name=name))


def __dir__() -> List[str]:
    return sorted(__all__)
