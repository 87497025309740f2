"""Lightning's accelerators: registering one of ours, and what Lightning knows of its own ones only."""

from typing import Any

from lightning_sm._lightning.levels import SupportLevel, support_level
from lightning_sm._lightning.namespaces import Namespace, has_base, namespaced_class

__all__ = ["register_accelerator", "retarget_mixed_precision"]


def register_accelerator(
    namespace: Namespace, name: str, class_name: str, mixin_path: str, description: str, base: str = "Accelerator"
) -> None:
    """Build an accelerator from a mixin and register it by name, from the level *epoch* on.

    Args:
        namespace: Lightning's namespace.
        name: For ``Trainer(accelerator=...)``.
        class_name: The public name of the class.
        mixin_path: The mixin, as ``module:name``.
        description: For Lightning's registry.
        base: The name of Lightning's class that the mixin completes.
    """
    if support_level(namespace) is SupportLevel.CORE:
        return
    cls = namespaced_class(namespace, class_name, mixin_path, f"accelerators:{base}")
    registry: Any = namespace.module("accelerators").AcceleratorRegistry
    registry.register(name, cls, description=description, override=True)


def retarget_mixed_precision(precision_plugin: Any, device_type: str) -> None:
    """Let mixed precision cast and scale on a type of device, where Lightning has taken ``cuda`` for it.

    Lightning does so for every accelerator but its own for CPU and MPS: ``_check_and_init_precision`` in
    ``trainer/connectors/accelerator_connector.py``.
    """
    import torch

    if not has_base(type(precision_plugin), "MixedPrecision") or precision_plugin.device != "cuda":
        return
    precision_plugin.device = device_type
    if precision_plugin.scaler is not None:
        # One for CUDA is switched off where there is no CUDA: gradients in half precision would vanish.
        precision_plugin.scaler = torch.amp.GradScaler(device_type)
