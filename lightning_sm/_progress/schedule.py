"""What a resume with another world size or batch size does to learning-rate schedules that are stepped at each step."""

import math
from typing import Any, Iterator, Optional

from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = ["describe_schedules", "last_step"]

# Where torch's schedulers of a whole training keep its length in steps. It is a part of their state, so that a
# checkpoint's replaces what configure_optimizers has computed from trainer.estimated_stepping_batches.
_LENGTHS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max", "PolynomialLR": "total_iters"}
_HINT = (
    "Keep the global batch size (batch size times world_size times accumulate_grad_batches), or limit the training by "
    "max_steps."
)


def last_step(trainer: Any, epoch: int) -> Optional[int]:
    """Return the optimizer step with which training ends; ``None`` if it is unknown.

    Args:
        trainer: The trainer, whose data loaders exist.
        epoch: The epoch whose data begins now.
    """
    max_steps = trainer.max_steps if trainer.max_steps is not None and trainer.max_steps >= 0 else None
    batches, max_epochs = trainer.num_training_batches, trainer.max_epochs
    if max_epochs is None or max_epochs < 0 or not math.isfinite(batches):
        return max_steps
    steps = math.ceil(batches / trainer.accumulate_grad_batches) * (max_epochs - epoch)
    by_epochs = int(trainer.global_step + steps)
    return by_epochs if max_steps is None else min(by_epochs, max_steps)


def describe_schedules(trainer: Trainer, epoch: int) -> Iterator[str]:
    """Yield a line for each schedule whose length in steps is not that of the training from now on.

    Args:
        trainer: The trainer, after its state was restored from a checkpoint of another world size or batch size.
        epoch: The epoch whose data begins now.
    """
    last = last_step(trainer, epoch)
    for config in getattr(trainer, "lr_scheduler_configs", ()):
        name = type(config.scheduler).__name__
        if config.interval != "step" or last is None:
            continue
        if name == "LambdaLR":
            yield (
                f"LambdaLR is no part of the checkpoint but for its number of steps: a function that depends on the "
                f"length of the training gives other learning rates than before. HINT: {_HINT}"
            )
        length = _length_of(config.scheduler)
        if length is not None and length * config.frequency != last:
            yield _describe(name, length * config.frequency, last)


def _length_of(scheduler: Any) -> Optional[int]:
    """The length of a schedule in steps; ``None`` if it is for any number of steps."""
    milestones, parts = getattr(scheduler, "_milestones", None), getattr(scheduler, "_schedulers", None)
    if milestones and parts:  # SequentialLR, such as a warm-up before another schedule
        length = _length_of(parts[-1])
        return None if length is None else int(milestones[-1]) + length
    length = getattr(scheduler, _LENGTHS.get(type(scheduler).__name__, ""), None)
    return length if isinstance(length, int) else None


def _describe(name: str, length: int, last: int) -> str:
    ends = f"{name} was made for {length} steps, as the checkpoint says, and this training ends at step {last}"
    # torch/optim/lr_scheduler.py, OneCycleLR.get_lr
    error = f"; it raises an error after step {length + 1}" if name == "OneCycleLR" and last > length else ""
    return f"{ends}{error}. HINT: {_HINT}"
