"""Lightning strategies for SageMaker. Their classes are built on first use."""

import functools
from typing import TYPE_CHECKING, Any, List

from lightning_sm._distributed.sharded import SHARDED, sharded_class
from lightning_sm._distributed.smddp import smddp_strategy_class
from lightning_sm._distributed.smp import smp_strategy_class
from lightning_sm._distributed.smp_fsdp import smp_fsdp_strategy_class
from lightning_sm._distributed.xla import torchrun_xla_class
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

_SMP = {"SMPFSDPStrategy": smp_fsdp_strategy_class, "SMPStrategy": smp_strategy_class}


def __getattr__(name: str) -> Any:
    if name in SHARDED:
        return resolve_class(name, functools.partial(sharded_class, name=name))
    if name in _SMP:
        return resolve_class(name, _SMP[name])
    if name == "TorchrunXLAStrategy":
        return resolve_class(name, torchrun_xla_class)
    # Lightning 1.5 has plugins instead of strategies; both names are the same class in every version.
    if name in __all__:
        return resolve_class("SMDDPStrategy", smddp_strategy_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
