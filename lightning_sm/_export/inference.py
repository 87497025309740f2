"""Loads the model of this archive in SageMaker's PyTorch inference container.

lightning-sm copies this file into the archive as ``code/inference.py``. The container calls ``model_fn`` and uses its
own ``input_fn``, ``predict_fn`` and ``output_fn``, which may be added here. The file needs torch and what
``requirements.txt`` beside it lists, but not lightning-sm.
"""

import importlib
import inspect
import json
import os
import zipfile
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import torch

__all__ = ["build_model", "model_fn", "read_arguments", "read_file", "read_state_dict"]


def model_fn(model_dir: str) -> Any:
    """Load the model that ``model.json`` describes, in eval mode."""
    summary = json.loads(Path(model_dir, "model.json").read_text(encoding="utf-8"))
    path = os.path.join(model_dir, summary["file"])
    if summary["format"] == "torchscript":
        return torch.jit.load(path, map_location="cpu").eval()
    if summary["format"] == "exported_program":
        return ExportedProgram(path)
    if summary["format"] == "onnx":
        return OnnxSession(path)
    model = build_model(import_object(summary["class_path"]), summary["hparams"], _read_config(model_dir))
    target = model if summary["submodule"] is None else model.get_submodule(summary["submodule"])
    target.load_state_dict(read_state_dict(path, summary["format"]), strict=getattr(model, "strict_loading", True))
    return target.eval()


def read_state_dict(path: str, format_name: str) -> Dict[str, Any]:
    """Read the state dict from a file of the format ``state_dict``, ``checkpoint`` or ``safetensors``."""
    if format_name == "safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            entries = (file.metadata() or {}).items()
            # The entry "format" is "pt", which may be the name of a tensor, too.
            shared = {name: kept for name, kept in entries if kept in tensors and name != "format"}
        return {**tensors, **{name: tensors[kept] for name, kept in shared.items()}}
    # It may hold more than tensors, as get_extra_state() returns; it is trusted like the code beside it.
    loaded: Dict[str, Any] = read_file(path, weights_only=False)
    return loaded["state_dict"] if format_name == "checkpoint" else loaded


def read_file(path: str, *, weights_only: bool) -> Any:
    """Read what ``torch.save`` has written, onto the CPU; with torch 2.1 and newer only what is used is read."""
    options = {"weights_only": weights_only, "mmap": zipfile.is_zipfile(path)}
    known = inspect.signature(torch.load).parameters
    return torch.load(path, map_location="cpu", **{name: value for name, value in options.items() if name in known})


def build_model(cls: Any, hparams: Optional[Mapping[str, Any]], config: Optional[str] = None) -> Any:
    """Instantiate a model with the hyperparameters that it saved, else with those in the config of its training."""
    if hparams is not None:
        given = dict(hparams)
        instantiator = given.pop("_instantiator", None)  # saved by LightningCLI, for nested objects
        model = cls(**_accepted(cls, given)) if instantiator is None else import_object(instantiator)(cls, given)
    else:
        arguments = read_arguments(config)
        model = cls() if arguments is None else instantiate(cls, arguments)
    if hasattr(model, "configure_model"):
        model.configure_model()
    return model


def read_arguments(config: Optional[str]) -> Optional[Dict[str, Any]]:
    """The section ``model`` of a config in YAML; ``None`` if there is none."""
    if config is None:
        return None
    import yaml

    arguments: Optional[Dict[str, Any]] = (yaml.safe_load(config) or {}).get("model")
    return arguments


def instantiate(cls: Any, arguments: Dict[str, Any]) -> Any:
    """Instantiate a class from its section of a config file, nested objects included."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    add = parser.add_subclass_arguments if "class_path" in arguments else parser.add_class_arguments
    add(cls, "model", fail_untyped=False)
    # jsonargparse 4.49 renamed the method.
    make = parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes
    return make(parser.parse_object({"model": arguments}))["model"]


def import_object(path: str) -> Any:
    """Import an object by its qualified name; it may be defined within a class."""
    module, _, name = path.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if "." not in module or not f"{module}.".startswith(f"{error.name}."):
            raise
        owner = import_object(module)
    return getattr(owner, name)


def _accepted(cls: Any, given: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments that the constructor accepts; a model may have saved more."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _read_config(model_dir: str) -> Optional[str]:
    config = Path(model_dir, "config.yaml")
    return config.read_text(encoding="utf-8") if config.is_file() else None


class ExportedProgram(torch.nn.Module):
    """A program of ``torch.export``, which has no training mode and runs on the CPU, for which it was exported."""

    def __init__(self, path: str) -> None:
        super().__init__()
        import torch.export

        # In a list, so that `eval()` and `to()` do not reach it.
        self.program = [torch.export.load(path).module()]

    def forward(self, *inputs: Any) -> Any:
        """Run the program."""
        return self.program[0](*(value.cpu() for value in inputs))


class OnnxSession(torch.nn.Module):
    """An ONNX model, run by onnxruntime; its outputs are tensors."""

    def __init__(self, path: str) -> None:
        super().__init__()
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path, providers=onnxruntime.get_available_providers())

    def forward(self, *inputs: Any) -> Any:
        """Run the model."""
        names = [given.name for given in self.session.get_inputs()]
        found = self.session.run(None, {name: value.cpu().numpy() for name, value in zip(names, inputs)})
        outputs = [torch.as_tensor(value) for value in found]
        return outputs[0] if len(outputs) == 1 else outputs
