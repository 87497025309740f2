"""Our strategies and accelerators: their classes for one of Lightning's namespaces, and their names in its registries.

Their modules are imported when a class is built.
"""

from functools import lru_cache
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from lightning_sm._distributed.neuron import NEURON, XLA
from lightning_sm._lightning import FABRICS, Namespace, namespaced_class
from lightning_sm._lightning.accelerators import register_accelerator
from lightning_sm._lightning.legacy import add_names_of_strategy, strategy_path
from lightning_sm._lightning.strategies import register_strategy
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["FABRIC_STRATEGIES", "STRATEGIES", "register_accelerators", "register_strategies", "strategy_class"]

_PACKAGE = "lightning_sm._distributed"
_EPOCH = (2, 1)


class Strategy(NamedTuple):
    """A public class.

    Args:
        mixin: Where our mixin is in this package, as ``module:name``.
        base: Lightning's class that it completes.
        what: What it is, for Lightning's registry.
        alternative: What to use with an older Lightning.
        since: Major and minor version of the first Lightning that it is for.
    """

    mixin: str
    base: str
    what: str
    alternative: str = "SMDDPStrategy"
    since: Tuple[int, int] = _EPOCH


_ALL_GATHER = "over AWS's SMDDP AllGather where available, else over NCCL or gloo"
_ALL_REDUCE = "DDP over AWS's SMDDP collectives where available, else over NCCL or gloo"
_PLAIN_FABRIC = "Fabric(plugins=[lightning_sm.SageMakerEnvironment()])"

#: The classes for the ``Trainer``, by their public names. Before Lightning 2.1 ``SMDDPStrategy`` is another one.
STRATEGIES = {
    "SMDDPStrategy": Strategy("smddp:SMDDPMixin", "DDPStrategy", _ALL_REDUCE),
    "SMDDPFSDPStrategy": Strategy("sharded:FSDPMixin", "FSDPStrategy", f"FSDP {_ALL_GATHER}"),
    "SMDDPModelParallelStrategy": Strategy(
        "sharded:ModelParallelMixin", "ModelParallelStrategy", f"FSDP2 {_ALL_GATHER}", since=(2, 3)
    ),
    "SMDDPDeepSpeedStrategy": Strategy("sharded:DeepSpeedMixin", "DeepSpeedStrategy", f"DeepSpeed {_ALL_GATHER}"),
    "SMPStrategy": Strategy("smp:SMPMixin", "DDPStrategy", "AWS's model parallel library 1.x (SMP v1)"),
    "SMPFSDPStrategy": Strategy(
        "smp_fsdp:SMPFSDPMixin", "FSDPStrategy", "FSDP with AWS's model parallel library 2.x (SMP v2)"
    ),
    "TorchrunXLAStrategy": Strategy(
        "xla:TorchrunXLAMixin",
        "XLAStrategy",
        "Data parallel training by torch_xla in the processes of torchrun",
        alternative="AWS's neuronx_distributed.lightning",
    ),
}
#: The classes for ``Fabric``.
FABRIC_STRATEGIES = {
    "SMDDPStrategy": Strategy("fabric:FabricSMDDPMixin", "DDPStrategy", _ALL_REDUCE, _PLAIN_FABRIC),
    "SMDDPFSDPStrategy": Strategy("fabric:FabricFSDPMixin", "FSDPStrategy", f"FSDP {_ALL_GATHER}", _PLAIN_FABRIC),
}

# The classes by the names for ``Trainer(strategy=...)``, with the arguments that each name stands for.
_NAMES: Mapping[str, Tuple[str, Dict[str, Any]]] = {
    "smddp": ("SMDDPStrategy", {}),
    "smddp_find_unused_parameters_true": ("SMDDPStrategy", {"find_unused_parameters": True}),
    "smddp_find_unused_parameters_false": ("SMDDPStrategy", {"find_unused_parameters": False}),
    "smddp_fsdp": ("SMDDPFSDPStrategy", {}),
    "smddp_fsdp2": ("SMDDPModelParallelStrategy", {"tensor_parallel_size": 1}),
    "smddp_deepspeed": ("SMDDPDeepSpeedStrategy", {}),
    "smddp_deepspeed_stage_3": ("SMDDPDeepSpeedStrategy", {"stage": 3}),
    "smp": ("SMPStrategy", {}),
    "smp_fsdp": ("SMPFSDPStrategy", {}),
    XLA: ("TorchrunXLAStrategy", {}),
}


def strategy_class(namespace: Namespace, name: str) -> type:
    """Return a class for one of the namespaces of Lightning or Fabric; with an older Lightning one that raises.

    Args:
        namespace: Lightning's or Fabric's namespace.
        name: The public name of the class.
    """
    strategy = _strategies(namespace)[name]
    if namespace.version >= strategy.since:
        return namespaced_class(namespace, name, f"{_PACKAGE}.{strategy.mixin}", f"strategies:{strategy.base}")
    if strategy is STRATEGIES["SMDDPStrategy"]:
        cls = namespaced_class(namespace, name, f"{_PACKAGE}.smddp:DataParallelMixin", strategy_path(namespace, "DDP"))
        return add_names_of_strategy(namespace, cls)
    return _unavailable_class(namespace, name, strategy)


def _strategies(namespace: Namespace) -> Mapping[str, Strategy]:
    return FABRIC_STRATEGIES if namespace in FABRICS else STRATEGIES


@lru_cache(maxsize=None)
def _unavailable_class(namespace: Namespace, name: str, strategy: Strategy) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        needed = ".".join(map(str, strategy.since))
        raise StrategyUnavailableError(
            f"{name} needs Lightning {needed} or newer, and {namespace.name} {namespace.version_text} is installed.",
            hint=f"Install a newer Lightning, or use {strategy.alternative}.",
        )

    # Lightning's registries read the last two.
    body = {"__init__": refuse, "__module__": "lightning_sm", "strategy_name": name, "distributed_backend": name}
    return type(name, (), body)


def register_strategies(namespace: Namespace) -> None:
    """Register the strategies with Lightning or Fabric by their names, as Lightning does for its own."""
    known = _strategies(namespace)
    for name, (class_name, arguments) in _NAMES.items():
        if class_name in known:
            cls = strategy_class(namespace, class_name)
            register_strategy(namespace, name, cls, known[class_name].what, **arguments)


def register_accelerators(namespace: Namespace) -> None:
    """Register the accelerators :data:`NEURON` and :data:`XLA`, from the level *epoch* on."""
    neuron, xla = f"{_PACKAGE}.neuron:NeuronAcceleratorMixin", f"{_PACKAGE}.xla:TorchrunXLAAcceleratorMixin"
    register_accelerator(namespace, NEURON, "NeuronAccelerator", neuron, "NeuronCores by TorchNeuron")
    what = STRATEGIES["TorchrunXLAStrategy"].what
    register_accelerator(namespace, XLA, "TorchrunXLAAccelerator", xla, what, base="XLAAccelerator")
