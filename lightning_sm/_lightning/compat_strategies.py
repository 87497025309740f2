"""Strategies, clusters and process groups.

Lets the strategy of a single device ask the trainer's environment, which every other strategy does by itself.
"""

import importlib
import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Optional

from lightning_sm._lightning.compat import needs
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "add_legacy_environment_methods",
    "backend_variable",
    "ddp_base_path",
    "apply_num_nodes",
    "keep_cluster_environment",
    "register_strategy",
    "replace_infinite_barrier",
    "single_device_class",
    "strategy_of",
    "full_checkpoint",
    "full_state_dict",
    "is_sharded",
    "saves_by_itself",
    "check_single_device_environment",
]


def add_legacy_environment_methods(namespace: Namespace, environment: Any) -> None:
    """Give the environment the methods ``master_address()`` and ``master_port()`` that became properties in 1.6.

    Lightning 1.6 warns about classes that still have them, so they are added only where they are called.
    """
    if needs("add_legacy_environment_methods", namespace):
        environment.master_address = lambda self: self.main_address
        environment.master_port = lambda self: self.main_port


def backend_variable(namespace: Namespace) -> Optional[str]:
    """The backend that ``PL_TORCH_DISTRIBUTED_BACKEND`` names, in the versions that read it; users set it."""
    if not needs("backend_variable", namespace):
        return None
    return os.environ.get("PL_TORCH_DISTRIBUTED_BACKEND") or None


def ddp_base_path(namespace: Namespace) -> str:
    """Where Lightning's own DDP class is; until 1.6 it is a training type plugin."""
    return "plugins:DDPPlugin" if needs("ddp_base_path", namespace) else "strategies:DDPStrategy"


def apply_num_nodes(namespace: Namespace, strategy_class: Any) -> None:
    """Hand the number of nodes, which the ``Trainer`` writes past the property ``num_nodes``, to ``job_num_nodes``.

    Args:
        namespace: Lightning's namespace.
        strategy_class: A class with the method ``job_num_nodes``.
    """
    if not needs("apply_num_nodes", namespace):
        return

    def write(self: Any, num_nodes: int) -> None:
        self._written_num_nodes = self.job_num_nodes(num_nodes)

    strategy_class._num_nodes = property(lambda self: self._written_num_nodes, write)


def keep_cluster_environment(namespace: Namespace, strategy_class: Any) -> None:
    """Let a strategy that is chosen by name keep the environment that it brings along.

    The ``Trainer`` puts its own choice in the place of it; from 1.9 on only where there is none.

    Args:
        namespace: Lightning's namespace.
        strategy_class: A class whose instances may bring a ``cluster_environment``.
    """
    if not needs("keep_cluster_environment", namespace):
        return

    def write(self: Any, environment: Any) -> None:
        if getattr(self, "_kept_cluster_environment", None) is None:
            self._kept_cluster_environment = environment

    strategy_class.cluster_environment = property(lambda self: self._kept_cluster_environment, write)


def register_strategy(namespace: Namespace, name: str, cls: type, description: str, **init_params: Any) -> None:
    """Register a strategy by name, in place of an older registration."""
    if needs("register_strategy", namespace):
        registry = namespace.module("plugins").TrainingTypePluginsRegistry
    else:
        registry = namespace.module("strategies").StrategyRegistry
    registry.register(name, cls, description=description, override=True, **init_params)


def replace_infinite_barrier(namespace: Namespace) -> None:
    """Keep Lightning from making a gloo group beside a group that bears no other.

    Around ``prepare_data`` it makes one, to have a barrier without a time limit. The group's own barrier takes its
    place where the backend is ``smddp``, whose documentation rules out further groups.
    """
    if not needs("replace_infinite_barrier", namespace):
        return
    fabric = "lightning.fabric" if namespace.name.startswith("lightning.") else "lightning_fabric"
    barrier = getattr(importlib.import_module(f"{fabric}.utilities.distributed"), "_InfiniteBarrier", None)
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
    """Return the class that trains on a single device, which 1.5 calls a plugin."""
    if needs("single_device_class", namespace):
        return namespace.module("plugins").SingleDevicePlugin  # type: ignore[no-any-return]
    return namespace.module("strategies").SingleDeviceStrategy  # type: ignore[no-any-return]


def strategy_of(trainer: Any) -> Any:
    """The trainer's strategy; in 1.5 it is called a training type plugin."""
    return trainer.strategy if hasattr(trainer, "strategy") else trainer.training_type_plugin


def check_single_device_environment(namespace: Namespace, check: Callable[[Any], None]) -> None:
    """Have the trainer's environment checked before a single device trains.

    Lightning takes such a process for the only one of the world, whatever its launcher says:
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


# Lightning's strategies under which a module holds a part of its weights or wraps them.
_SHARDED = frozenset(
    {
        "DDPFullyShardedNativeStrategy",
        "DDPFullyShardedPlugin",
        "DDPFullyShardedStrategy",
        "FSDPStrategy",
        "ModelParallelStrategy",
        "DeepSpeedPlugin",
        "DeepSpeedStrategy",
    }
)


def is_sharded(trainer: Trainer) -> bool:
    """Whether the trainer's module is no ordinary one any more, because its strategy spreads it over the ranks."""
    return bool(_SHARDED.intersection(cls.__name__ for cls in type(strategy_of(trainer)).__mro__))


def saves_by_itself(trainer: Trainer) -> bool:
    """Whether a checkpoint of this strategy is more than what Lightning's own code puts into it."""
    return any(cls.__name__ in ("DeepSpeedPlugin", "DeepSpeedStrategy") for cls in type(strategy_of(trainer)).__mro__)


def full_state_dict(trainer: Trainer) -> Dict[str, Any]:
    """The whole model's state dict, on rank zero at least. Every rank must call it."""
    strategy = strategy_of(trainer)
    with _whole(strategy):
        state_dict: Dict[str, Any] = strategy.lightning_module_state_dict()
        if not getattr(strategy, "zero_stage_3", False):
            return state_dict
        # What was gathered is gone when the block is left.
        return {name: value.detach().cpu().clone() for name, value in state_dict.items() if trainer.is_global_zero}


def full_checkpoint(namespace: Namespace, trainer: Any, *, has_ended: bool) -> Dict[str, Any]:
    """What ``Trainer.save_checkpoint`` would save, as one value on rank zero. Every rank must call it.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        has_ended: Whether training has come to its end; 1.5 then counts a step too many.
    """
    connector = getattr(trainer, "_checkpoint_connector", None) or trainer.checkpoint_connector
    with _whole(strategy_of(trainer)):
        checkpoint: Dict[str, Any] = connector.dump_checkpoint(weights_only=False)
    if has_ended and needs("save_checkpoint_at_end", namespace):
        checkpoint["global_step"] -= 1
    return checkpoint


@contextmanager
def _whole(strategy: Any) -> Iterator[None]:
    """Let a strategy gather what it would have saved in parts, and DeepSpeed what its third stage partitions."""
    changed = [
        (name, getattr(strategy, name), whole)
        for name, parts, whole in (
            ("_state_dict_type", "sharded", "full"),
            ("_save_distributed_checkpoint", True, False),
        )
        if getattr(strategy, name, None) == parts
    ]
    for name, _, whole in changed:
        setattr(strategy, name, whole)
    try:
        if getattr(strategy, "zero_stage_3", False):
            import deepspeed

            with deepspeed.zero.GatheredParameters(list(strategy.lightning_module.parameters())):
                yield
        else:
            yield
    finally:
        for name, before, _ in changed:
            setattr(strategy, name, before)
