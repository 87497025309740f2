"""What of Lightning's sharded strategies differs from the others: which save by themselves, and hooks around that."""

from typing import Any, Callable, FrozenSet

from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "around_removals",
    "around_sharded_loads",
    "around_sharded_saves",
    "bypasses_checkpoint_io",
    "is_sharded",
    "saves_by_itself",
    "sharded_format",
]

# Lightning's strategies that shard or wrap the module's weights.
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
_DEEPSPEED = frozenset({"DeepSpeedPlugin", "DeepSpeedStrategy"})
_PACKAGES = ("lightning", "pytorch_lightning")


def _class_names(strategy: Any) -> FrozenSet[str]:
    return frozenset(cls.__name__ for cls in type(strategy).__mro__)


def is_sharded(trainer: Trainer) -> bool:
    """Whether the trainer's strategy shards or wraps the weights of its module."""
    return bool(_SHARDED & _class_names(strategy_of(trainer)))


def saves_by_itself(trainer: Trainer) -> bool:
    """Whether the strategy writes checkpoints itself, with more than Lightning's own code puts into them."""
    return bool(_DEEPSPEED & _class_names(strategy_of(trainer)))


def bypasses_checkpoint_io(strategy: Any) -> bool:
    """Whether Lightning's class of a strategy writes checkpoints without its ``CheckpointIO``.

    FSDP (``state_dict_type``) and FSDP2 (``save_distributed_checkpoint``) do so for sharded checkpoints only.
    """
    classes = [cls for cls in type(strategy).__mro__ if cls.__module__.split(".")[0] in _PACKAGES]
    saver = next(cls for cls in classes if "save_checkpoint" in vars(cls))
    is_full = getattr(strategy, "_state_dict_type", None) == "full"
    in_one_file = is_full or getattr(strategy, "_save_distributed_checkpoint", None) is False
    return saver.__name__ not in ("Strategy", "TrainingTypePlugin") and not in_one_file


def sharded_format(strategy: Any) -> str:
    """The format of a sharded checkpoint of a strategy: ``dcp`` or ``deepspeed``."""
    return "deepspeed" if _DEEPSPEED & _class_names(strategy) else "dcp"


def around_sharded_saves(strategy: Any, save: Callable[[Callable[..., Any], Any, Any], None]) -> Callable[[], None]:
    """Call ``save`` instead of the strategy's ``save_checkpoint``.

    Args:
        strategy: The strategy.
        save: Takes the function that writes, ``write(checkpoint, path)``; the checkpoint; and its path.

    Returns:
        A function that undoes it.
    """

    def replacement(original: Any, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        # Since 1.6 the strategy accepts storage options; those that shard refuse them.
        options = {} if storage_options is None else {"storage_options": storage_options}
        save(lambda content, path: original(content, path, **options), checkpoint, filepath)

    return ReplacedMethod(strategy, "save_checkpoint", replacement).undo


def around_sharded_loads(strategy: Any, load: Callable[[Callable[[Any], Any], Any], Any]) -> Callable[[], None]:
    """Call ``load`` instead of the strategy's ``load_checkpoint``.

    Args:
        strategy: The strategy.
        load: Takes the function that reads, ``read(path)``, and the path; returns what that function returned.

    Returns:
        A function that undoes it.
    """

    def replacement(original: Any, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        return load(lambda path: original(path, *args, **kwargs), checkpoint_path)

    return ReplacedMethod(strategy, "load_checkpoint", replacement).undo


def around_removals(strategy: Any, remove: Callable[[str], None]) -> Callable[[], None]:
    """Call ``remove`` on every rank instead of the strategy's ``remove_checkpoint``, which acts on global rank 0 only.

    Args:
        strategy: The strategy.
        remove: Takes the path.

    Returns:
        A function that undoes it.
    """
    return ReplacedMethod(strategy, "remove_checkpoint", lambda original, path: remove(str(path))).undo
