"""Which checkpoints each of Lightning's strategies can load, so that a job says so before Lightning fails."""

from typing import Optional, Tuple

from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.namespaces import has_base
from lightning_sm._lightning.strategies import KINDS, strategy_kind, zero_stage
from lightning_sm._lightning.trainer import Trainer

__all__ = ["load_problem", "restore_error"]

_HINT = "Resume with {}, or load its weights in the model before fit."


def load_problem(trainer: Trainer, saved_by: str, saved_world: Optional[int]) -> Optional[Tuple[str, str]]:
    """Why the trainer's strategy cannot load an intact checkpoint.

    In Lightning 2.6: a single file is loaded by all strategies but DeepSpeed, a folder by the strategy that wrote it.
    DCP distributes tensors anew to any world size. DeepSpeed's optimizers read what their own rank saved.

    Args:
        trainer: The trainer.
        saved_by: ``""`` for a single file, otherwise ``fsdp``, ``fsdp2``, ``smp`` or ``deepspeed_stage_N``.
        saved_world: The number of processes that saved it, if it is known.

    Returns:
        What is wrong and what to do; ``None`` if it can be loaded as far as is known.
    """
    strategy = strategy_of(trainer)
    own, (kind, _, saved_stage) = strategy_kind(strategy), saved_by.partition("_stage_")
    if saved_by == "" and own == "deepspeed":
        is_loadable = strategy.load_full_weights and strategy.zero_stage_3
    else:
        is_loadable = kind in ("", own)
    if not is_loadable:
        what = f"a folder of shards of {KINDS[kind][-1]}" if saved_by else "a single file"
        problem = f"it is {what}, which {type(strategy).__name__} cannot load"
        return problem, _HINT.format("the strategy that saved it")
    if not saved_stage:
        return None
    stage = str(zero_stage(strategy))
    # Stages 1 and 2 partition the optimizer states alike.
    if stage != saved_stage and {stage, saved_stage} != {"1", "2"}:
        problem = f"it was saved with ZeRO stage {saved_stage}, and this job has stage {stage}, whose files differ"
        return problem, _HINT.format(f"stage {saved_stage}")
    if saved_world not in (None, trainer.world_size) and stage != "0":
        problem = f"it was saved by {saved_world} processes, this job has {trainer.world_size}, and DeepSpeed does not "
        return f"{problem}distribute optimizer states anew", _HINT.format(f"{saved_world} processes")
    return None


def restore_error(error: BaseException) -> Optional[Exception]:
    """The error for which a checkpoint could not be restored; ``None`` if the program ends for another reason.

    DCP collects the errors of all ranks in a ``CheckpointException``, which is no ``Exception``.
    """
    if isinstance(error, Exception):
        return error
    failures = getattr(error, "failures", None)
    if not has_base(type(error), "CheckpointException") or not failures:
        return None
    first, *_ = next(iter(failures.values()))
    return first if isinstance(first, Exception) else RuntimeError(str(first))
