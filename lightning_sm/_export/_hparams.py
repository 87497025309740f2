"""What a model must be given to be made again."""

import inspect
import json
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm.errors import ExportError

__all__ = ["as_json_values", "check_rebuildable", "saved_hparams", "values_for_json"]


def saved_hparams(module: Any) -> Optional[Dict[str, Any]]:
    """The hyperparameters of a module as arguments of its class; ``None`` where it saved none."""
    hparams = getattr(module, "hparams", None)
    if not hparams:
        return None
    name = str(getattr(module, "_hparams_name", None))
    # `save_hyperparameters(hparams)` keeps what is in one argument.
    if name in inspect.signature(type(module).__init__).parameters and name not in hparams:
        kind = inspect.signature(type(module).__init__).parameters[name].kind
        if kind is not inspect.Parameter.VAR_KEYWORD:
            return {name: dict(hparams)}
    return dict(hparams)


def as_json_values(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The same as JSON gives it back; ``None`` where it cannot hold them all."""
    try:
        values: Optional[Dict[str, Any]] = None if hparams is None else json.loads(json.dumps(hparams, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return values


def values_for_json(hparams: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """Those that JSON can hold; ``None`` where there are none at all."""
    if hparams is None:
        return None
    held = {str(name): as_json_values({str(name): value}) for name, value in hparams.items()}
    return {name: value[name] for name, value in held.items() if value is not None}


def check_rebuildable(module: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str], why: str) -> None:
    """Find out whether the class can be called again with what is known.

    Args:
        module: The module.
        hparams: What is known of its arguments.
        config: The configuration as YAML, where there is one.
        why: What needs it, for the error.

    Raises:
        ExportError: It takes arguments that nobody saved.
    """
    # It needs torch, which is not loaded before somebody uses it.
    from lightning_sm._export._inference import read_arguments

    if hparams is None and read_arguments(config) is not None:
        return
    missing = [name for name in _required(type(module)) if name not in (hparams or {})]
    if missing:
        raise ExportError(
            f"{why} makes {type(module).__name__} anew, which takes {', '.join(missing)}, and the model did not save "
            "that as numbers and texts.",
            hint="Call self.save_hyperparameters() in its __init__.",
        )


def _required(cls: Any) -> List[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named and each.default is inspect.Parameter.empty]
