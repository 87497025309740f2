"""Gradients that a program has summed up and not used yet, where it optimizes manually and steps more rarely."""

import zlib
from typing import Any, Callable, Dict, List, Mapping, Optional

from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log

__all__ = ["checksum_of", "note_steps", "set_gradients", "unused_gradients"]

# Of a gradient: its version when an optimizer has used it.
_USED = "_lightning_sm_used"


def note_steps(trainer: Trainer) -> List[Callable[[], None]]:
    """Note with each step of an optimizer which gradients it has used; return what ends that.

    Those of an optimizer that tells of no steps (torch before 2.0, classes not torch's) are taken for unused.
    """
    if trainer.lightning_module.automatic_optimization:
        return []
    hooked = [each for each in trainer.optimizers if hasattr(each, "register_step_post_hook")]
    return [each.register_step_post_hook(_note).remove for each in hooked]


def _note(optimizer: Any, *_: Any) -> None:
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        if parameter.grad is not None:
            setattr(parameter.grad, _USED, parameter.grad._version)


def unused_gradients(trainer: Trainer) -> Dict[str, Any]:
    """The gradients of the model's parameters, by names, to which something was added since an optimizer used them."""
    model = trainer.lightning_module
    if model.automatic_optimization or is_sharded(trainer):
        return {}
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {name: grad.detach().cpu() for name, grad in found.items() if getattr(grad, _USED, None) != grad._version}


def checksum_of(gradients: Mapping[str, Any]) -> int:
    """A number by which ranks see whether they have the same ones, which all strategies see to but in ``no_sync``."""
    import torch

    checksum = 0
    for gradient in gradients.values():
        checksum = zlib.crc32(gradient.contiguous().reshape(-1).view(torch.uint8).numpy().data, checksum)
    return checksum


def set_gradients(trainer: Trainer, gradients: Mapping[str, Any], checksum: Optional[int]) -> None:
    """Set what :func:`unused_gradients` returned on global rank 0.

    Args:
        trainer: The trainer, before the first batch.
        gradients: The gradients.
        checksum: That of this rank's own ones; ``None`` for a rank that had none.
    """
    for name, parameter in trainer.lightning_module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device, copy=True)
    if gradients and checksum not in (None, checksum_of(gradients)):
        log.warning("Not restored: gradients that each rank had summed up by itself.")
