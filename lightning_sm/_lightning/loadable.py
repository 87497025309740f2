"""Which checkpoints each of Lightning's strategies can load, so that a job says so before Lightning fails."""

from typing import Any, Optional, Tuple

from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.strategies import strategy_kind
from lightning_sm._lightning.trainer import Trainer

__all__ = ["load_problem", "restore_error"]

# Lightning 2.6's consolidation knows the names of FSDP only.
_IN_ONE_FILE = {
    "fsdp": (
        "or write it as one file with `python -m lightning.pytorch.utilities.consolidate_checkpoint FOLDER` and pass "
        "that as ckpt_path"
    ),
    "fsdp2": "or continue with it and save_distributed_checkpoint=false, whose files DDP and FSDP load",
}
_TO_FP32 = (
    "or write its weights to one file with the zero_to_fp32.py in the folder, and load them in the model before fit"
)


def load_problem(trainer: Trainer, saved_by: str, saved_world: Optional[int]) -> Optional[Tuple[str, str]]:
    """Why the trainer's strategy cannot load an intact checkpoint.

    In Lightning 2.6: a single file is loaded by all strategies but DeepSpeed, a folder by the strategy that wrote it.
    DCP distributes tensors anew to any world size. DeepSpeed's optimizers read what their own rank saved.

    Args:
        trainer: The trainer.
        saved_by: ``""`` for a single file, otherwise ``fsdp``, ``fsdp2`` or ``deepspeed_stage_`` with the stage.
        saved_world: The number of processes that saved it, if it is known.

    Returns:
        What is wrong and what to do; ``None`` if it can be loaded as far as is known.
    """
    strategy = strategy_of(trainer)
    own = strategy_kind(strategy)
    name = type(strategy).__name__
    if own == "deepspeed":
        return _deepspeed_problem(strategy, name, saved_by, saved_world, trainer.world_size)
    if saved_by in ("", "dcp", own):
        return None
    what = f"it is a folder of shards of {_LABELS.get(saved_by, 'DeepSpeed')}, which {name} cannot load"
    if saved_by.startswith("deepspeed"):
        stage = saved_by.rpartition("_")[2]
        return what, f"Resume with strategy=deepspeed_stage_{stage}, {_TO_FP32}."
    return what, f"Resume with the strategy that saved it ({_LABELS[saved_by]}), {_IN_ONE_FILE[saved_by]}."


_LABELS = {"fsdp": "FSDPStrategy", "fsdp2": "ModelParallelStrategy"}


def _deepspeed_problem(
    strategy: Any, name: str, saved_by: str, saved_world: Optional[int], world_size: int
) -> Optional[Tuple[str, str]]:
    if saved_by == "":
        if getattr(strategy, "load_full_weights", False) and getattr(strategy, "zero_stage_3", False):
            return None
        return (
            f"it is a single file, and {name} loads its own folders only",
            "Resume with the strategy that saved it, or load its weights in the model before fit.",
        )
    if not saved_by.startswith("deepspeed"):
        what = f"it is a folder of shards of {_LABELS.get(saved_by, 'DCP')}, which {name} cannot load"
        return what, "Resume with the strategy that saved it, or load its weights in the model before fit."
    config = getattr(strategy, "config", None) or {}
    stage, saved_stage = config.get("zero_optimization", {}).get("stage", 0), int(saved_by.rpartition("_")[2])
    if _partitioning(stage) != _partitioning(saved_stage):
        what = f"it was saved with ZeRO stage {saved_stage}, and this job has stage {stage}, whose files differ"
        return what, f"Resume with stage {saved_stage}, {_TO_FP32}."
    is_universal = bool(config.get("checkpoint", {}).get("load_universal"))
    if saved_world not in (None, world_size) and not is_universal and stage > 0:
        what = (
            f"it was saved by {saved_world} processes, this job has {world_size}, and DeepSpeed does not distribute "
            "optimizer states anew"
        )
        return what, f"Resume with {saved_world} processes, {_TO_FP32}."
    return None


def _partitioning(stage: int) -> int:
    """Stages 1 and 2 partition the optimizer states alike."""
    return {2: 1}.get(stage, stage)


def restore_error(error: BaseException) -> Optional[Exception]:
    """The error for which a checkpoint could not be restored; ``None`` if the program ends for another reason.

    DCP collects the errors of all ranks in a ``CheckpointException``, which is no ``Exception``.
    """
    if isinstance(error, Exception):
        return error
    failures = getattr(error, "failures", None)
    if not any(cls.__name__ == "CheckpointException" for cls in type(error).__mro__) or not failures:
        return None
    first, *_ = next(iter(failures.values()))
    return first if isinstance(first, Exception) else RuntimeError(str(first))
