"""Reads config files as LightningCLI does, and writes configs from which every value is read back as it was."""

import os
from typing import Any, Dict, Mapping

from lightning_sm.errors import HyperparameterError

__all__ = ["LISTS", "config_text", "load_config", "load_included", "read_value"]

# The groups for which a config may name a file instead, and which routing looks into. Other values that end like a
# config file are a path of the user's, such as annotations of many megabytes.
_GROUPS = frozenset({"data", "lr_scheduler", "model", "optimizer", "sagemaker", "trainer"})
LISTS = frozenset({"trainer.callbacks", "trainer.logger"})


def load_config(path: str) -> Dict[str, Any]:
    """Read a YAML or JSON file of settings.

    Raises:
        HyperparameterError: The file is missing, broken or no mapping.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise HyperparameterError(
            f"The config file {path} holds no settings but {type(content).__name__}.",
            hint="Write 'key: value' lines, such as 'trainer:' and below it '  max_epochs: 5'.",
        )
    return {str(key): value for key, value in content.items()}


def load_included(key: str, value: Any, folder: str) -> Any:
    """Read the file of ``model: model.yaml``, by which LightningCLI includes one; return any other value as it is.

    Raises:
        HyperparameterError: The file is broken.
    """
    if not isinstance(value, str) or not value.endswith((".yaml", ".yml", ".json")):
        return value
    path = os.path.join(folder, value)
    if (key in _GROUPS or key in LISTS) and os.path.isfile(path):
        return load_config(path) if key in _GROUPS else _load(path)
    return value


def read_value(text: str) -> Any:
    """Read one word of a command line."""
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception:  # PyYAML lets out whatever its constructors raise: '!!int ""' is an IndexError
        return text


def config_text(content: Mapping[str, Any]) -> str:
    """Write a config.

    Strings and keys that do not begin with a letter are quoted, because jsonargparse reads ``1e-3`` as a number where
    PyYAML does not; JSON would not do, because YAML knows neither its ``NaN`` nor its escapes of characters beyond the
    basic plane.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text[:1].isalpha() else '"')

    Dumper.add_representer(str, represent)
    return str(yaml.dump(dict(content), Dumper=Dumper, sort_keys=False))


def _load(path: str) -> Any:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except Exception as error:  # see read_value
        raise HyperparameterError(
            f"The config file {path} cannot be read: {' '.join(str(error).split())}.",
            hint=f"Paths are relative to {os.getcwd()} or begin with a channel's name.",
        ) from error
