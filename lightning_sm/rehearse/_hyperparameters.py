"""Options after the entry point, or a JSON file, as the hyperparameters that an estimator would be given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Sequence

from ._errors import RehearsalError

__all__ = ["as_strings", "from_file", "from_options"]

_OPTION = re.compile(r"--[A-Za-z][^=\s]*|-[A-Za-z]")


def from_options(arguments: Sequence[str]) -> Dict[str, Any]:
    """``--trainer.max_epochs 2`` and ``--lr=0.1`` as ``{"trainer.max_epochs": 2, "lr": 0.1}``.

    SageMaker can send neither an option without a value, nor a positional argument, nor a name twice; so all three are
    refused here rather than made to work.
    """
    found: Dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if not _OPTION.fullmatch(name):
            raise RehearsalError(
                f"{name!r} after the entry point is not an option: hyperparameters cannot carry positional arguments.",
                hint="Write --name value. lightning_sm's own CLI adds the subcommand 'fit' itself.",
            )
        if not separator:
            if not rest or _OPTION.fullmatch(rest[0].partition("=")[0]):
                raise RehearsalError(
                    f"{name} has no value: SageMaker sends every hyperparameter with a value, never a bare switch.",
                    hint=f"Write {name} true, or give the option a value.",
                )
            value = rest.pop(0)
        key = name.lstrip("-")
        if key in found:
            raise RehearsalError(f"{name} is given twice: a hyperparameter exists once.")
        found[key] = _typed(value)
    return found


def from_file(path: Path) -> Dict[str, Any]:
    """The object in a JSON file, as it would be given to ``hyperparameters=`` of an estimator."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(f"--hyperparameters {path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise RehearsalError(
            f"--hyperparameters {path} holds a {type(content).__name__}, not an object of names and values."
        )
    return content


def as_strings(values: Dict[str, Any], sdk: str) -> Dict[str, str]:
    """Each value as the text that the request carries.

    SDK v2 writes every value as JSON, strings with their quotes. SDK v3 leaves strings as they are.
    """
    if sdk == "v3":
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {name: json.dumps(value) for name, value in values.items()}


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
