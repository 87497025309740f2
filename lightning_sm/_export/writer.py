"""Writes a model into the model directory: staged, verified, and then moved into place."""

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from lightning_sm._atomic_file import check_writable, flush
from lightning_sm._export.formats import WRITERS
from lightning_sm._export.load_back import load_back
from lightning_sm._export.plan import ExportPlan
from lightning_sm._export.serving import Serving
from lightning_sm._export.source import Source, plain_functions
from lightning_sm._export.summary import ModelSummary
from lightning_sm.errors import ExportError

__all__ = ["files_below", "move_into_place", "others_models", "write_model"]

_SUMMARY = "model.json"
# The files of weights that libraries write for a model that is to be loaded again; a checkpoint is none.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".pt2", ".onnx")


@plain_functions()
def write_model(
    directory: str,
    source: Source,
    summary: ModelSummary,
    config: Optional[str] = None,
    plan: ExportPlan = ExportPlan(),  # noqa: B008 - it is frozen
    serving: Optional[Serving] = None,
    resolved_config: Optional[str] = None,
) -> str:
    """Write the model, ``model.json`` and, if given, ``config.yaml`` and the folder ``code``.

    All files are written to a staging directory, the model is loaded and compared with its source, and only then do the
    new files replace those of an earlier export.

    Args:
        directory: The model directory.
        source: What is exported.
        summary: The content of ``model.json``, without what the export itself adds.
        config: The configuration as YAML, for ``config.yaml``.
        plan: The format and the submodule.
        serving: The code for the inference container.
        resolved_config: The resolved configuration, for ``config.resolved.yaml``, if ``config`` is not that.

    Returns:
        The path of the model file.

    Raises:
        OutputError: The directory is not writable.
        ExportError: A file could not be written, or differs from its source after loading.
    """
    check_writable(directory, "model directory")
    staging = tempfile.mkdtemp(prefix=".lightning-sm-", dir=directory)
    try:
        details = WRITERS[plan.format](source, os.path.join(staging, plan.format.file))
        if config is not None:
            Path(staging, "config.yaml").write_text(config, encoding="utf-8")
        if resolved_config is not None:
            Path(staging, "config.resolved.yaml").write_text(resolved_config, encoding="utf-8")
        if serving is not None:
            serving.write(staging)
        summary = replace(
            summary,
            format=plan.format.value,
            file=plan.format.file,
            files=tuple(files_below(staging)),
            submodule=plan.submodule,
            example=source.example.describe() if source.example is not None else None,
            details=details,
        )
        # The code for serving reads it.
        Path(staging, _SUMMARY).write_text(summary.as_json(), encoding="utf-8")
        comparison = load_back(staging, plan, source)
        Path(staging, _SUMMARY).write_text(replace(summary, comparison=comparison).as_json(), encoding="utf-8")
        move_into_place(staging, directory)
    except ExportError:
        raise
    except Exception as error:  # torch, pickle and the file system each have exceptions of their own
        raise ExportError(
            f"The model could not be written to {directory} as {plan.format} "
            f"({type(error).__name__}: {' '.join(str(error).split())}).",
            hint=_hint(plan, error),
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return os.path.join(directory, plan.format.file)


def files_below(folder: str) -> List[str]:
    """The relative paths of all files below a folder; ``model.json``, which lists the others, comes last."""
    found = [
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    ]
    return sorted(found, key=lambda name: (name == _SUMMARY, name))


def others_models(directory: str) -> Dict[str, Tuple[int, int]]:
    """The relative paths of the weights of whole models that the program has written, with what tells of a change.

    Libraries write ``config.json`` beside the weights of a model that they can load again (``save_pretrained`` of
    Hugging Face). A file of weights alone may be a part of the model, such as an encoder.

    Args:
        directory: The model directory.

    Returns:
        The time of the last change, and the size, by the path.
    """
    own = _listed_files(os.path.join(directory, _SUMMARY))
    names = files_below(directory)
    whole = {os.path.dirname(name) for name in names if os.path.basename(name) == "config.json"}
    # What an export that was killed has left is in a folder whose name begins with a dot.
    weights = (name for name in names if name.endswith(_WEIGHTS) and name[0] != "." and name not in own)
    paths = {name: Path(directory, name) for name in weights if os.path.dirname(name) in whole}
    # A link may lead nowhere.
    return {name: (path.stat().st_mtime_ns, path.stat().st_size) for name, path in paths.items() if path.exists()}


def move_into_place(staging: str, directory: str) -> None:
    """Move the staged files into the directory, and remove the other files of an earlier export.

    Those are the files that an existing ``model.json`` lists. All staged files are flushed before the first is moved.
    """
    new = files_below(staging)
    for name in new:
        flush(os.path.join(staging, name))
    old = _listed_files(os.path.join(directory, _SUMMARY))
    for name in new:
        os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
        os.replace(os.path.join(staging, name), os.path.join(directory, name))
    for name in set(old) - set(new):
        if os.path.isfile(os.path.join(directory, name)):
            os.remove(os.path.join(directory, name))


def _listed_files(path: str) -> List[str]:
    """The relative paths that a ``model.json`` lists; none if it was not written by an export."""
    try:
        with open(path, encoding="utf-8") as file:
            files = [name for name in json.load(file)["files"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in files if not os.path.isabs(name) and ".." not in name.split("/")]


def _hint(plan: ExportPlan, error: Exception) -> str:
    if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
        return "The program has written something else by that name: let it take another, or set sagemaker.model_dir."
    if isinstance(error, OSError):
        return "The disk of the model directory must have room for the model twice."
    if plan.format.is_graph:
        return (
            "The checkpoints are kept. Export a submodule with sagemaker.export_submodule, set another input with "
            "sagemaker.export_example_input, or choose a format that does not run the model: state_dict or safetensors."
        )
    return "pickle must be able to write what its state_dict() holds, and the disk must have room for it."
