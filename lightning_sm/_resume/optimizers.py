"""The optimizers of a save, where a program replaces or extends them while it trains."""

from typing import Any, Iterable, List, Optional, Sequence, Tuple

from lightning_sm._lightning.checkpoints import restore_loops
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.trainer import Trainer

__all__ = ["describe_optimizers", "make_optimizers"]


def describe_optimizers(trainer: Trainer) -> List[Tuple[str, List[List[str]]]]:
    """Return each optimizer's class, and the names of its groups' parameters; empty for others than the model's."""
    names = {id(parameter): name for name, parameter in trainer.lightning_module.named_parameters()}
    return [
        (type(each).__qualname__, [[names.get(id(one), "") for one in group["params"]] for group in each.param_groups])
        for each in trainer.optimizers
    ]


def make_optimizers(trainer: Trainer, saved: Iterable[Sequence[Any]]) -> Optional[str]:
    """Make the optimizers that a save was made with, before Lightning restores their states.

    Args:
        trainer: The trainer, whose strategy has set up the optimizers that the program begins with.
        saved: What :func:`describe_optimizers` returned.

    Returns:
        How they differ from those of the save.
    """
    classes = _classes(saved)
    if classes != _classes(describe_optimizers(trainer)) and hasattr(strategy_of(trainer), "setup_optimizers"):
        restore_loops(trainer)
        strategy_of(trainer).setup_optimizers(trainer)
    parameters = dict(trainer.lightning_module.named_parameters())
    for optimizer, (_, groups) in zip(trainer.optimizers, saved):
        for names in groups[len(optimizer.param_groups) :]:
            if parameters.keys() >= set(names):
                optimizer.add_param_group({"params": [parameters[name] for name in names]})
    now = _classes(describe_optimizers(trainer))
    if now == classes:
        return None
    return f"it is of {', '.join(classes)}, and configure_optimizers returns {', '.join(now)}"


def _classes(optimizers: Iterable[Sequence[Any]]) -> List[str]:
    return [name for name, _ in optimizers]
