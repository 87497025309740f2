"""Checks before training whether a model can be exported as planned, and reads the hyperparameters that it saved."""

import inspect
import json
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm._export.plan import ExportFormat, ExportPlan
from lightning_sm.errors import ExportError

__all__ = ["check_model", "json_round_trip", "json_subset", "saved_hparams"]


def check_model(
    plan: ExportPlan,
    module: Any,
    hparams: Optional[Mapping[str, Any]],
    config: Optional[str],
    *,
    sharded: bool,
    saved_by_strategy: bool,
) -> None:
    """Check whether a model can be exported as planned, as far as that is known before training.

    Args:
        plan: What is exported.
        module: The model.
        hparams: The constructor arguments that the model saved.
        config: The configuration as YAML, if there is one.
        sharded: Whether the strategy shards the model over the ranks.
        saved_by_strategy: Whether the strategy has a checkpoint format of its own.

    Raises:
        ExportError: It cannot be exported so.
    """
    name = plan.format
    target = _submodule(plan, module)
    if plan.format.is_graph and not _has_forward(target):
        raise ExportError(
            f"sagemaker.export is {name}, which runs forward(), and {type(target).__name__} has none.",
            hint="Implement forward(), set sagemaker.export_submodule to a part that has one, or choose state_dict.",
        )
    if plan.format is ExportFormat.CHECKPOINT and saved_by_strategy:
        raise ExportError(
            "sagemaker.export is checkpoint, and the strategy saves checkpoints in a format of its own.",
            hint="Set sagemaker.export to state_dict or safetensors; the checkpoint directory keeps the checkpoints.",
        )
    if plan.format.is_graph and sharded:
        _check_rebuildable(module, hparams, config, f"The strategy shards the model over the ranks, so {name}")
    if not plan.format.is_graph and plan.serving:
        _check_rebuildable(module, hparams, config, "The inference container")


def saved_hparams(module: Any) -> Optional[Dict[str, Any]]:
    """The hyperparameters that a module saved, as arguments of its constructor; ``None`` if it saved none."""
    hparams = getattr(module, "hparams", None)
    if not hparams:
        return None
    name = str(getattr(module, "_hparams_name", None))
    # `save_hyperparameters(hparams)` stores the contents of one argument.
    if name in inspect.signature(type(module).__init__).parameters and name not in hparams:
        kind = inspect.signature(type(module).__init__).parameters[name].kind
        if kind is not inspect.Parameter.VAR_KEYWORD:
            return {name: dict(hparams)}
    return dict(hparams)


def json_round_trip(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The values as JSON returns them; ``None`` if one of them cannot be written as JSON.

    >>> json_round_trip({"sizes": (1, 2)}), json_round_trip({"lr": float("nan")})
    ({'sizes': [1, 2]}, None)
    """
    try:
        values: Optional[Dict[str, Any]] = None if hparams is None else json.loads(json.dumps(hparams, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return values


def json_subset(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The values that can be written as JSON; ``None`` if nothing was saved.

    >>> json_subset({"sizes": (1, 2), "lr": float("nan")})
    {'sizes': [1, 2]}
    """
    if hparams is None:
        return None
    converted = {str(name): json_round_trip({str(name): value}) for name, value in hparams.items()}
    return {name: value[name] for name, value in converted.items() if value is not None}


def _submodule(plan: ExportPlan, module: Any) -> Any:
    if plan.submodule is None:
        return module
    try:
        return module.get_submodule(plan.submodule)
    except AttributeError as error:
        names = [name for name, _ in module.named_modules() if name]
        raise ExportError(
            f"sagemaker.export_submodule is {plan.submodule}, and {type(module).__name__} has no such submodule.",
            hint=f"Set it to one of: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}.",
        ) from error


def _has_forward(module: Any) -> bool:
    """Whether the class or the object implements ``forward``, beyond the stubs of torch and Lightning."""
    owner = next((cls for cls in type(module).__mro__ if "forward" in vars(cls)), None)
    is_stub = owner is None or owner.__name__ in ("Module", "LightningModule")
    return "forward" in vars(module) or not is_stub


def _check_rebuildable(module: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str], why: str) -> None:
    """Check that all required constructor arguments are known; ``why`` says what needs to call the constructor."""
    # It imports torch.
    from lightning_sm._export.inference import read_arguments

    if hparams is None and read_arguments(config) is not None:
        return
    missing = [name for name in _required(type(module)) if name not in (hparams or {})]
    if missing:
        raise ExportError(
            f"{why} instantiates {type(module).__name__} again, which takes {', '.join(missing)}, and the model did "
            "not save that as a value that JSON can hold.",
            hint="Call self.save_hyperparameters() in its __init__.",
        )


def _required(cls: Any) -> List[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named and each.default is inspect.Parameter.empty]
