"""Lightning's strategies: which there are, of which kind one is, and where one initializes the process group."""

import functools
import importlib
import sys
from itertools import islice
from traceback import walk_stack
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from lightning_sm._lightning.legacy import registry_of_strategies, strategy_of, strategy_path
from lightning_sm._lightning.levels import SupportLevel, support_level
from lightning_sm._lightning.namespaces import Namespace, has_base
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._lightning.wrapped_method import wrap_method

__all__ = [
    "KINDS",
    "bypasses_checkpoint_io",
    "check_single_device_environment",
    "find_strategy",
    "is_setting_up_group",
    "is_sharded",
    "register_strategy",
    "registered_strategy",
    "replace_infinite_barrier",
    "shards_of",
    "strategy_kind",
    "subclasses",
    "zero_stage",
]


def register_strategy(namespace: Namespace, name: str, cls: type, description: str, **init_params: Any) -> None:
    """Register a strategy by name, replacing an earlier registration."""
    registry, _, _ = registry_of_strategies(namespace)
    registry.register(name, cls, description=description, override=True, **init_params)


def registered_strategy(namespace: Namespace, name: str) -> Optional[Tuple[type, Dict[str, Any]]]:
    """Return the class that is registered by a name with the arguments of the name, or ``None``."""
    registry, _, key = registry_of_strategies(namespace)
    if name not in registry:
        return None
    return registry[name][key], dict(registry[name]["init_params"])


def find_strategy(namespace: Namespace, name: str) -> Optional[type]:
    """Find a strategy's class by its registered name, or by its own among Lightning's and their loaded subclasses."""
    registered = registered_strategy(namespace, name)
    if registered is not None:
        return registered[0]
    _, base, _ = registry_of_strategies(namespace)
    return next((cls for cls in subclasses(base) if cls.__name__ == name), None)


def subclasses(base: type) -> Iterator[type]:
    """The loaded subclasses of a class."""
    children: List[type] = base.__subclasses__()
    for cls in children:
        yield cls
        yield from subclasses(cls)


#: Lightning's classes that shard or wrap the module's weights, by the names of all versions, the newest last.
KINDS = {
    "fsdp": ("DDPFullyShardedNativeStrategy", "FSDPStrategy"),
    "fsdp2": ("ModelParallelStrategy",),
    "deepspeed": ("DeepSpeedPlugin", "DeepSpeedStrategy"),
    "smp": ("SMPStrategy",),  # ours
}
_FAIRSCALE = ("DDPFullyShardedPlugin", "DDPFullyShardedStrategy")


def strategy_kind(strategy: Any) -> str:
    """``fsdp``, ``fsdp2``, ``deepspeed`` or ``smp`` for a strategy or a subclass of it; empty for any other."""
    return next((kind for kind, names in KINDS.items() if has_base(type(strategy), *names)), "")


def is_sharded(trainer: Trainer) -> bool:
    """Whether the trainer's strategy shards or wraps the weights of its module."""
    strategy = strategy_of(trainer)
    return bool(strategy_kind(strategy)) or has_base(type(strategy), *_FAIRSCALE)


def bypasses_checkpoint_io(strategy: Any) -> bool:
    """Whether Lightning's class of a strategy writes checkpoints without its ``CheckpointIO``.

    FSDP (``state_dict_type``) and FSDP2 (``save_distributed_checkpoint``) do so for sharded checkpoints only, and so
    does ours over AWS's model parallel library.
    """
    if strategy_kind(strategy) == "smp":
        return bool(strategy._save_distributed_checkpoint)
    packages = ("lightning", "pytorch_lightning")
    classes = [cls for cls in type(strategy).__mro__ if cls.__module__.split(".")[0] in packages]
    saver = next(cls for cls in classes if "save_checkpoint" in vars(cls))
    is_full = getattr(strategy, "_state_dict_type", None) == "full"
    in_one_file = is_full or getattr(strategy, "_save_distributed_checkpoint", None) is False
    return saver.__name__ not in ("Strategy", "TrainingTypePlugin", "XLAStrategy") and not in_one_file


def shards_of(strategy: Any) -> str:
    """Which shards a strategy saves: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_N``; empty where it saves one file."""
    kind = strategy_kind(strategy)
    if not kind or not bypasses_checkpoint_io(strategy):
        return ""
    return f"deepspeed_stage_{zero_stage(strategy)}" if kind == "deepspeed" else kind


def zero_stage(strategy: Any) -> int:
    """What DeepSpeed partitions: nothing (0), optimizer states (1), gradients too (2), parameters too (3)."""
    stage: int = (getattr(strategy, "config", None) or {}).get("zero_optimization", {}).get("stage", 0)
    return stage


# The functions of strategies around ``init_process_group``, and how many frames above an environment's they may be.
_SETUP_FUNCTIONS = frozenset(
    {"_init_dist_connection", "init_dist_connection", "setup_environment", "setup_distributed"}
)
_FRAMES = 8


def is_setting_up_group() -> bool:
    """Whether the caller, or a function a few frames above it, is a strategy's that initializes the process group.

    Lightning's launcher of local processes, loggers and users read an environment's address as well, and must not wait.
    """
    frames = islice(walk_stack(sys._getframe(1)), _FRAMES)
    return any(frame.f_code.co_name in _SETUP_FUNCTIONS for frame, _ in frames)


def replace_infinite_barrier(namespace: Namespace) -> None:
    """Use the default group's barrier instead of a second process group if the backend is ``smddp``.

    Lightning creates a gloo group around ``prepare_data``, for a barrier without a timeout. The documentation of SMDDP
    excludes further groups.
    """
    if support_level(namespace) is SupportLevel.CORE:
        return
    module = importlib.import_module(f"{namespace.fabric}.utilities.distributed")
    if hasattr(module, "_InfiniteBarrier"):  # it came with 2.3
        wrap_method((module.__name__, "_InfiniteBarrier"), "__enter__", _enter_barrier)


def _enter_barrier(original: Callable[[Any], Any], barrier: Any) -> Any:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "smddp":
        barrier.barrier = dist.barrier
        return barrier
    return original(barrier)


@functools.lru_cache(maxsize=None)
def check_single_device_environment(namespace: Namespace, check: Callable[[Any], None]) -> None:
    """Check the cluster environment when the single-device strategy is set up for ``fit``.

    That strategy does not ask the environment, whatever the launcher set, unlike every other strategy:
    ``lightning/pytorch/strategies/single_device.py``.

    Args:
        namespace: Lightning's namespace.
        check: Called with the environment that the ``Trainer`` chose, at the start of each ``fit``.
    """

    def setup_environment(original: Callable[[Any], None], strategy: Any) -> None:
        trainer = strategy.lightning_module.trainer
        if trainer.state.fn == "fit":
            check(trainer._accelerator_connector.cluster_environment)
        original(strategy)

    module, _, name = strategy_path(namespace, "SingleDevice").partition(":")
    wrap_method((f"{namespace.name}.{module}", name), "setup_environment", setup_environment)
