"""What can be known of an export before training starts."""

from typing import Any, Mapping, Optional

from lightning_sm._export._hparams import check_rebuildable
from lightning_sm._export._plan import ExportPlan
from lightning_sm.errors import ExportError

__all__ = ["check_model"]


def check_model(
    plan: ExportPlan,
    module: Any,
    hparams: Optional[Mapping[str, Any]],
    config: Optional[str],
    *,
    sharded: bool,
    saved_by_strategy: bool,
) -> None:
    """Find out whether this model can be exported as planned, as far as that shows before it has been trained.

    Args:
        plan: What is exported.
        module: The model.
        hparams: Its hyperparameters as they can be kept.
        config: The configuration as YAML, where there is one.
        sharded: Whether a strategy spreads the model over the ranks.
        saved_by_strategy: Whether the strategy has a form of checkpoint of its own.

    Raises:
        ExportError: It cannot.
    """
    name = plan.format.name
    part = _part(plan, module)
    if plan.format.runs_model and not _has_forward(part):
        raise ExportError(
            f"sagemaker.export is {name}, which runs forward(), and {type(part).__name__} has none.",
            hint="Write a forward(), name a part that has one with sagemaker.export_submodule, or choose state_dict.",
        )
    if name == "checkpoint" and saved_by_strategy:
        raise ExportError(
            "sagemaker.export is checkpoint, and the strategy saves checkpoints in a form of its own.",
            hint="Set sagemaker.export to state_dict or safetensors; the checkpoint directory keeps the checkpoints.",
        )
    if plan.format.runs_model and sharded:
        check_rebuildable(module, hparams, config, f"The strategy spreads the model over the ranks, so {name}")
    if plan.format.needs_class and plan.serving:
        check_rebuildable(module, hparams, config, "The inference container")


def _part(plan: ExportPlan, module: Any) -> Any:
    if plan.submodule is None:
        return module
    try:
        return module.get_submodule(plan.submodule)
    except AttributeError as error:
        names = [name for name, _ in module.named_modules() if name]
        raise ExportError(
            f"sagemaker.export_submodule is {plan.submodule}, and {type(module).__name__} has no such part.",
            hint=f"Set it to one of: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}.",
        ) from error


def _has_forward(module: Any) -> bool:
    """Whether somebody wrote it a ``forward``, who is neither torch nor Lightning."""
    owner = next((cls for cls in type(module).__mro__ if "forward" in vars(cls)), None)
    is_bare = owner is None or owner.__name__ in ("Module", "LightningModule")
    return "forward" in vars(module) or not is_bare
