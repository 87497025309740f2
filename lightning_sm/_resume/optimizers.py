"""The optimizers of a save, where a program replaces or extends them while it trains."""

from typing import Any, Iterable, List, Optional, Sequence, Tuple

from lightning_sm._lightning.checkpoints import set_up_optimizers_again
from lightning_sm._lightning.trainer import Trainer

__all__ = ["describe_optimizers", "make_optimizers"]


def describe_optimizers(trainer: Trainer) -> List[Tuple[str, List[List[str]]]]:
    """Return each optimizer's class, and the names of its groups' parameters; empty for others than the model's."""
    names = {id(parameter): name for name, parameter in trainer.lightning_module.named_parameters()}
    groups = [
        [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
        for optimizer in trainer.optimizers
    ]
    return list(zip(_classes(trainer), groups))


def make_optimizers(trainer: Trainer, saved: Iterable[Sequence[Any]]) -> Optional[str]:
    """Make the optimizers that a save was made with, before Lightning restores their states.

    Args:
        trainer: The trainer, whose strategy has set up the optimizers that the program begins with.
        saved: What :func:`describe_optimizers` returned.

    Returns:
        How they differ from those of the save.
    """
    classes = [name for name, _ in saved]
    if classes != _classes(trainer):
        set_up_optimizers_again(trainer)
    parameters = dict(trainer.lightning_module.named_parameters())
    for optimizer, (_, groups) in zip(trainer.optimizers, saved):
        for names in groups[len(optimizer.param_groups) :]:
            if parameters.keys() >= set(names):
                optimizer.add_param_group({"params": [parameters[name] for name in names]})
    now = _classes(trainer)
    if now == classes:
        return None
    return f"it is of {', '.join(classes)}, and configure_optimizers returns {', '.join(now)}"


def _classes(trainer: Trainer) -> List[str]:
    return [type(each).__qualname__ for each in trainer.optimizers]
