"""Whole weights from strategies that keep a part on each rank."""

from contextlib import contextmanager
from typing import Any, Dict, Iterator

from lightning_sm._lightning.compat import SHIMS
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.namespaces import Namespace

__all__ = ["full_checkpoint", "full_state_dict", "is_sharded", "saves_by_itself"]

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


def is_sharded(trainer: Any) -> bool:
    """Whether the trainer's module is no ordinary one any more, because its strategy spreads it over the ranks."""
    return bool(_SHARDED.intersection(cls.__name__ for cls in type(strategy_of(trainer)).__mro__))


def saves_by_itself(trainer: Any) -> bool:
    """Whether a checkpoint of this strategy is more than what Lightning's own code puts into it."""
    return any(cls.__name__ in ("DeepSpeedPlugin", "DeepSpeedStrategy") for cls in type(strategy_of(trainer)).__mro__)


def full_state_dict(trainer: Any) -> Dict[str, Any]:
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
    if has_ended and SHIMS["save_checkpoint_at_end"].serves(namespace.version):
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
