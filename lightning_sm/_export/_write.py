"""Writes a trained model into the model directory, whole or not at all."""

import importlib.util
import os
import shutil
import tempfile
from dataclasses import replace
from typing import Any, Dict, Mapping, Optional

from lightning_sm._export._compare import compare_outputs, compare_tensors
from lightning_sm._export._directory import SUMMARY, check_writable, files_below, take_places
from lightning_sm._export._plan import ExportPlan
from lightning_sm._export._serving import Serving
from lightning_sm._export._source import Source
from lightning_sm._export._summary import ModelSummary
from lightning_sm.errors import ExportError

__all__ = ["write_model"]


def write_model(
    directory: str,
    source: Source,
    summary: ModelSummary,
    config: Optional[str] = None,
    plan: ExportPlan = ExportPlan(),  # noqa: B008 - it is frozen
    serving: Optional[Serving] = None,
    model_class: Optional[type] = None,
    resolved_config: Optional[str] = None,
) -> str:
    """Write the model, ``model.json`` and, where there is one, ``config.yaml``.

    All are written under another name, the model is loaded once and compared with its source, and only then do the new
    files take the place of older ones.

    Args:
        directory: The model directory.
        source: What is exported.
        summary: The content of ``model.json``, as far as it is known before.
        config: The configuration as YAML, for ``config.yaml``.
        plan: The format.
        serving: The code for an inference container, where it is wanted.
        model_class: The model's class, with which that code is tried.
        resolved_config: The resolved configuration, for ``config.resolved.yaml``, where ``config`` is another.

    Returns:
        The path of the model's file.

    Raises:
        ExportError: Something could not be written, or came back different.
    """
    check_writable(directory, "model directory")
    staging = tempfile.mkdtemp(prefix=".lightning-sm-", dir=directory)
    try:
        comparison, details = plan.format.write(source, os.path.join(staging, plan.format.file))
        if config is not None:
            _write(os.path.join(staging, "config.yaml"), config)
        if resolved_config is not None:
            _write(os.path.join(staging, "config.resolved.yaml"), resolved_config)
        if serving is not None:
            serving.write(staging)
        summary = replace(
            summary,
            format=plan.format.name,
            file=plan.format.file,
            files=tuple(files_below(staging)),
            submodule=plan.submodule,
            example=source.example.about() if source.example is not None and plan.format.runs_model else None,
            comparison=comparison,
            details=details,
        )
        _write(os.path.join(staging, SUMMARY), summary.as_json())
        if serving is not None:
            _try_to_serve(staging, source, plan, model_class)
        take_places(staging, directory)
    except ExportError:
        raise
    except Exception as error:  # torch, pickle and the file system each have exceptions of their own
        raise ExportError(
            f"The model could not be written to {directory} as {plan.format.name} "
            f"({type(error).__name__}: {' '.join(str(error).split())}).",
            hint=_hint(plan, error),
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return os.path.join(directory, plan.format.file)


def _try_to_serve(staging: str, source: Source, plan: ExportPlan, model_class: Optional[type]) -> None:
    """Load what was staged as the inference container will, and compare once more."""
    import torch

    from lightning_sm._export._inference import load_model

    if plan.format.name == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        return
    with torch.random.fork_rng(devices=[]):
        served = load_model(staging, model_class)
    if source.module is not None and source.example is not None:
        compare_outputs(source.module, served, source.example, f"served {plan.format.name}")
    else:
        loaded = served.state_dict()
        compare_tensors(_in_precision_of(loaded, source.state_dict), {name: loaded[name] for name in source.state_dict})


def _in_precision_of(loaded: Dict[str, Any], saved: Mapping[str, Any]) -> Dict[str, Any]:
    """A model that is made anew has the class's own precision."""
    return {name: value.to(loaded[name].dtype) if hasattr(value, "detach") else value for name, value in saved.items()}


def _hint(plan: ExportPlan, error: Exception) -> str:
    if isinstance(error, OSError):
        return "The disk of the model directory must have room for the model twice."
    if plan.format.runs_model:
        return (
            "The checkpoints are kept. Export a part with sagemaker.export_submodule, give another input with "
            "export_example_input, or choose a format that runs no code: state_dict or safetensors."
        )
    return "Its state_dict() must hold tensors and plain values only, and the disk must have room for it."


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
