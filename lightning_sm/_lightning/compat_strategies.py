"""Shims for strategies, cluster environments and process groups."""

import importlib
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from lightning_sm._lightning.compat import needs
from lightning_sm._lightning.namespaces import Namespace

__all__ = [
    "SHARDED_BASES",
    "ShardedBase",
    "add_legacy_environment_methods",
    "backend_of_caller",
    "backend_variable",
    "check_single_device_environment",
    "ddp_base_path",
    "find_strategy",
    "fsdp_base_path",
    "is_setting_up_group",
    "register_strategy",
    "registered_strategy",
    "replace_infinite_barrier",
    "sharded_base_path",
    "single_device_class",
    "strategy_of",
]


def add_legacy_environment_methods(namespace: Namespace, environment: Any) -> None:
    """Add ``master_address()`` and ``master_port()`` to the environment, which 1.6 replaced by properties.

    They are added only where they are called, because Lightning 1.6 warns about classes that have them.
    """
    if needs("add_legacy_environment_methods", namespace):
        environment.master_address = lambda self: self.main_address
        environment.master_port = lambda self: self.main_port


# How many frames above the caller the functions are that Lightning's strategies initialize the process group with.
_FRAMES = 8
_INIT_FUNCTIONS = frozenset({"_init_dist_connection", "init_dist_connection"})


# The functions of strategies around it; Lightning 1.5 calls the second one ``setup_distributed``.
_SETUP_FUNCTIONS = frozenset({*_INIT_FUNCTIONS, "setup_environment", "setup_distributed"})


def is_setting_up_group() -> bool:
    """Whether the caller, or a function a few frames above it, is a strategy's that initializes the process group.

    Lightning's launcher of local processes, loggers and users read an environment's address as well, and must not wait.
    """
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in _SETUP_FUNCTIONS:
            return True
        frame = frame.f_back
    return False


def backend_of_caller() -> Optional[Tuple[str, str]]:
    """The backend that Lightning is about to initialize, where its environment's address is asked for on the way.

    With it the name of the strategy's class. No strategy tells its environment. The backend is an argument of the
    function that asks: ``lightning/fabric/utilities/distributed.py``, ``_init_dist_connection``; DeepSpeed's strategy
    has a method of its own.
    """
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name in _INIT_FUNCTIONS:
            backend = frame.f_locals.get("torch_distributed_backend")
            return None if backend is None else (str(backend), _class_of_caller(frame.f_back))
        if frame.f_code.co_name == "_init_deepspeed_distributed":
            strategy = frame.f_locals.get("self")
            ask = getattr(strategy, "_get_process_group_backend", None)
            return str(ask() if ask else "nccl"), type(strategy).__name__
        frame = frame.f_back
    return None


def _class_of_caller(frame: Any) -> str:
    owner = None if frame is None else frame.f_locals.get("self")
    return "the strategy of the Trainer" if owner is None else type(owner).__name__


def backend_variable(namespace: Namespace) -> Optional[str]:
    """The backend in ``PL_TORCH_DISTRIBUTED_BACKEND``, which users set, in the versions that read it."""
    if not needs("backend_variable", namespace):
        return None
    return os.environ.get("PL_TORCH_DISTRIBUTED_BACKEND") or None


def ddp_base_path(namespace: Namespace) -> str:
    """The module and name of Lightning's DDP class, which is a training type plugin before 1.6."""
    return "plugins:DDPPlugin" if needs("ddp_base_path", namespace) else "strategies:DDPStrategy"


def fsdp_base_path(namespace: Namespace) -> str:
    """The module and name of Lightning's class for torch's FSDP, which has another name before 2.0."""
    if needs("fsdp_base_path", namespace):
        return "strategies:DDPFullyShardedNativeStrategy"
    return "strategies:FSDPStrategy"


class ShardedBase(NamedTuple):
    """Lightning's class of a sharded strategy, and where it exists.

    Args:
        name: Its name in current releases.
        lightning: The first Lightning that has it, as major and minor.
        torch: The first torch that it works with.
    """

    name: str
    lightning: Tuple[int, int]
    torch: Tuple[int, int]


#: The classes that ours are subclasses of, by the name of the technique.
SHARDED_BASES = {
    "FSDP": ShardedBase("FSDPStrategy", (1, 8), (1, 12)),
    "FSDP2": ShardedBase("ModelParallelStrategy", (2, 3), (2, 4)),
    "DeepSpeed": ShardedBase("DeepSpeedStrategy", (1, 6), (1, 8)),
}


def sharded_base_path(namespace: Namespace, technique: str) -> Optional[str]:
    """The module and name of Lightning's class for a technique of :data:`SHARDED_BASES`; ``None`` if it has none."""
    base = SHARDED_BASES[technique]
    if namespace.version < base.lightning:
        return None
    return fsdp_base_path(namespace) if technique == "FSDP" else f"strategies:{base.name}"


def register_strategy(namespace: Namespace, name: str, cls: type, description: str, **init_params: Any) -> None:
    """Register a strategy by name, replacing an earlier registration."""
    _registry(namespace).register(name, cls, description=description, override=True, **init_params)


def registered_strategy(namespace: Namespace, name: str) -> Optional[Tuple[type, Dict[str, Any]]]:
    """Return the class that is registered by a name with the arguments of the name, or ``None``."""
    registry = _registry(namespace)
    if name not in registry:
        return None
    entry = registry[name]
    return entry["plugin" if needs("register_strategy", namespace) else "strategy"], dict(entry["init_params"])


def find_strategy(namespace: Namespace, name: str) -> Optional[type]:
    """Find a strategy's class by its registered name, or by its own among Lightning's and their loaded subclasses."""
    registered = registered_strategy(namespace, name)
    if registered is not None:
        return registered[0]
    legacy = needs("register_strategy", namespace)
    module = namespace.module("plugins" if legacy else "strategies")
    base: type = module.TrainingTypePlugin if legacy else module.Strategy
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, base):
        return found
    loaded: List[type] = [base]
    classes: List[type] = []
    while loaded:
        children: List[type] = type.__subclasses__(loaded.pop())
        loaded += children
        classes += [cls for cls in children if cls.__name__ == name]
    return classes[0] if classes else None


def _registry(namespace: Namespace) -> Any:
    if needs("register_strategy", namespace):
        return namespace.module("plugins").TrainingTypePluginsRegistry
    return namespace.module("strategies").StrategyRegistry


def replace_infinite_barrier(namespace: Namespace) -> None:
    """Use the default group's barrier instead of a second process group if the backend is ``smddp``.

    Lightning creates a gloo group around ``prepare_data``, for a barrier without a timeout. The documentation of SMDDP
    excludes further groups.
    """
    if not needs("replace_infinite_barrier", namespace):
        return
    barrier = getattr(importlib.import_module(f"{namespace.fabric}.utilities.distributed"), "_InfiniteBarrier", None)
    if barrier is None or hasattr(barrier, "_lightning_sm_enter"):
        return
    barrier._lightning_sm_enter = barrier.__enter__

    def enter(self: Any) -> Any:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_backend() == "smddp":
            self.barrier = dist.barrier
            return self
        return self._lightning_sm_enter()

    barrier.__enter__ = enter


def single_device_class(namespace: Namespace) -> type:
    """Return the strategy class for a single device, which is a plugin in 1.5."""
    if needs("single_device_class", namespace):
        return namespace.module("plugins").SingleDevicePlugin  # type: ignore[no-any-return]
    return namespace.module("strategies").SingleDeviceStrategy  # type: ignore[no-any-return]


def strategy_of(trainer: Any) -> Any:
    """The trainer's strategy, which is a training type plugin in 1.5."""
    return trainer.strategy if hasattr(trainer, "strategy") else trainer.training_type_plugin


def check_single_device_environment(namespace: Namespace, check: Callable[[Any], None]) -> None:
    """Check the cluster environment when the single-device strategy is set up for ``fit``.

    That strategy does not ask the environment, whatever the launcher set, unlike every other strategy:
    ``lightning/pytorch/strategies/single_device.py``.

    Args:
        namespace: Lightning's namespace.
        check: Called with the environment that the ``Trainer`` chose, at the start of each ``fit``.
    """
    strategy_class: Any = single_device_class(namespace)
    if hasattr(strategy_class, "_lightning_sm_inherited"):
        return
    strategy_class._lightning_sm_inherited = strategy_class.setup_environment

    def setup_environment(self: Any) -> None:
        trainer = self.lightning_module.trainer
        if trainer.state.fn == "fit":
            check(trainer._accelerator_connector.cluster_environment)
        self._lightning_sm_inherited()

    strategy_class.setup_environment = setup_environment
