"""Makes the :class:`Source` of an export from a module and its weights."""

from inspect import signature
from typing import Any, Mapping, Optional

from lightning_sm._export._example import Example
from lightning_sm._export._files import load_file
from lightning_sm._export._module_copy import copy_module, loaded_for_export, part_of_state_dict
from lightning_sm._export._plan import ExportPlan
from lightning_sm._export._source import Source
from lightning_sm.errors import ExportError

__all__ = ["make_source"]


def make_source(
    plan: ExportPlan,
    module: Any,
    last: Mapping[str, Any],
    best: Optional[str],
    *,
    example: Optional[Example] = None,
    rebuild: bool = False,
    hparams: Optional[Mapping[str, Any]] = None,
    config: Optional[str] = None,
    weights_only: bool = False,
) -> Source:
    """Choose the weights, and for formats that run the model make a copy that has them.

    Args:
        plan: What is exported.
        module: The model that was trained, which stays as it is.
        last: The checkpoint that training ended with, or as much of it as the format needs.
        best: The file of the best checkpoint, where its weights are wanted.
        example: An input of the model or its part.
        rebuild: Whether a copy is made from the class, because the module's own tensors are parts.
        hparams: Arguments for that.
        config: The configuration as YAML, which may hold them, too.
        weights_only: Whether no code of the best checkpoint may run when it is loaded.

    Raises:
        ExportError: The checkpoint cannot be read, or no copy can be made.
    """
    try:
        weights = last["state_dict"] if best is None else _load_best(best, weights_only)["state_dict"]
        checkpoint = last if best is None and plan.format.name == "checkpoint" else None
        part = part_of_state_dict(weights, plan.submodule)
        if not plan.format.runs_model:
            return Source(part, checkpoint, best)
        if example is None:
            raise ExportError(
                "The model cannot be run for export: training showed no input of it.",
                hint="Set sagemaker.export_example_input to the shape of an input, such as [1, 3, 32, 32].",
            )
        copied = _rebuilt(module, hparams, config) if rebuild else copy_module(module)
        ready = loaded_for_export(copied, weights, plan.submodule)
        return Source(part, checkpoint, best, ready, example.cast(ready))
    except ExportError:
        raise
    except Exception as error:  # whatever a model's own code raises when it is copied
        raise ExportError(
            f"The model could not be made ready for its export as {plan.format.name} "
            f"({type(error).__name__}: {' '.join(str(error).split())}).",
            hint="The checkpoints are kept. Set sagemaker.export to state_dict, which needs no copy of the model.",
        ) from error


def _load_best(best: str, weights_only: bool) -> Any:
    import torch

    # This run wrote the checkpoint. It holds more than weights, which newer torch loads only from whom one trusts.
    if not weights_only:
        return load_file(best, weights_only=False)
    try:
        if "weights_only" not in signature(torch.load).parameters:
            raise ValueError("this torch cannot restrict what a file may hold")
        return load_file(best, weights_only=True)
    except Exception as error:  # each version has exceptions of its own
        raise ExportError(
            f"The best checkpoint {best} cannot be loaded without running its code ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}), which sagemaker.resume_weights_only forbids.",
            hint="Set sagemaker.export_weights to last, or save plain values and tensors only.",
        ) from error


def _rebuilt(module: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str]) -> Any:
    import torch

    from lightning_sm._export._inference import build_model

    with torch.random.fork_rng(devices=[]):
        return build_model(type(module), hparams, config)
