"""Gradients that a program has summed up and not used yet, where it decides itself when to step or to empty them."""

from typing import Any, Callable, Dict, List, Mapping, Optional

from lightning_sm._lightning.collectives import digest_of
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.program import is_others

__all__ = ["note_steps", "set_gradients", "unused_gradients"]

# Of a gradient: its version when an optimizer has used it.
_USED = "_lightning_sm_used"
# Of an optimizer: the program has gone on adding to gradients that it had used.
_KEEPS = "_lightning_sm_keeps"


def note_steps(trainer: Trainer) -> List[Callable[[], None]]:
    """Note with each step of an optimizer which gradients it has used; return what ends that.

    Those of an optimizer that tells of no steps (torch before 2.0, classes not torch's) are taken for unused.
    """
    if not _sums_up(trainer):
        return []
    hooked = [each for each in trainer.optimizers if hasattr(each, "register_step_post_hook")]
    return [each.register_step_post_hook(_note).remove for each in hooked]


def _sums_up(trainer: Trainer) -> bool:
    """Whether gradients may outlast a step: Lightning itself uses each, and sharded ones are left to their strategy."""
    module = trainer.lightning_module
    hooks = (getattr(type(module), name) for name in ("optimizer_step", "optimizer_zero_grad"))
    decides = not (module.automatic_optimization and all(is_others(hook.__module__) for hook in hooks))
    return decides and not is_sharded(trainer)


def _note(optimizer: Any, *_: Any) -> None:
    grads = (each.grad for group in optimizer.param_groups for each in group["params"])
    for grad in (each for each in grads if each is not None):
        if getattr(grad, _USED, grad._version) != grad._version:
            setattr(optimizer, _KEEPS, True)
        setattr(grad, _USED, grad._version)


def unused_gradients(trainer: Trainer) -> Dict[str, Any]:
    """The gradients of the model's parameters, by names, to which something was added since an optimizer used them.

    All of them, where a program is known to go on with used ones: it empties them less often than it steps.
    """
    if not _sums_up(trainer):
        return {}
    parameters = trainer.lightning_module.named_parameters()
    found = {name: each.grad for name, each in parameters if each.grad is not None}
    keeps = any(hasattr(each, _KEEPS) for each in trainer.optimizers)
    return {
        name: grad.detach().cpu()
        for name, grad in found.items()
        if keeps or getattr(grad, _USED, None) != grad._version
    }


def set_gradients(trainer: Trainer, gradients: Mapping[str, Any], digest: Optional[int]) -> None:
    """Set what :func:`unused_gradients` returned on global rank 0.

    Args:
        trainer: The trainer, before the first batch.
        gradients: The gradients.
        digest: Of this rank's own ones; ``None`` for a rank that had none. All strategies see to it that ranks have the
            same, but in ``no_sync``.
    """
    for name, parameter in trainer.lightning_module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device, copy=True)
    if gradients and digest not in (None, digest_of(gradients)):
        log.warning("Not restored: gradients that each rank had summed up by itself.")
