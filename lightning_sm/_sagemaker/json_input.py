"""Reads and validates JSON files and environment variables. What is malformed raises a ``JobConfigError``."""

import json
import re
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm.errors import JobConfigError

__all__ = ["read_json_file", "read_json_variable", "expect_mapping", "expect_names", "read_count"]

_SHOWN = 120
_COUNT = re.compile("[0-9]{1,9}")


def _decode(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobConfigError(
            f"{where} is not JSON ({error}). It starts with {text[:_SHOWN]!r}.",
            hint="SageMaker writes it before the script starts; look for something that edits it, "
            "or for a value with a '#', which remote login cuts off.",
        ) from error


def read_json_file(path: str) -> Optional[Any]:
    """Read a JSON file, or return ``None`` if it does not exist.

    Raises:
        JobConfigError: The file cannot be read, or is not JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise JobConfigError(
            f"{path} cannot be read ({error}).", hint="Check that it is a UTF-8 file that this user may read."
        ) from error
    return _decode(text, path)


def read_json_variable(environ: Mapping[str, str], name: str, default: Any = None) -> Any:
    """Read a JSON environment variable, or return ``default`` if it is unset, empty or ``null``.

    Raises:
        JobConfigError: The variable is not JSON.
    """
    text = environ.get(name, "")
    value = _decode(text, f"The environment variable {name}") if text.strip() else None
    return default if value is None else value


def expect_mapping(value: Any, where: str) -> Dict[str, Any]:
    """Return ``value`` if it is a JSON object; raise ``JobConfigError`` otherwise."""
    if not isinstance(value, dict):
        raise JobConfigError(f"{where} should be a JSON object, but is {value!r:.{_SHOWN}}.")
    return value


def expect_names(value: Any, where: str) -> List[str]:
    """Return ``value`` if it is a JSON list of non-empty strings; raise ``JobConfigError`` otherwise."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise JobConfigError(f"{where} should be a JSON list of names, but is {value!r:.{_SHOWN}}.")
    return value


def read_count(environ: Mapping[str, str], name: str, *, least: int = 0) -> Optional[int]:
    """Read an integer of at least ``least``, or return ``None`` if the variable is unset or empty.

    Raises:
        JobConfigError: The variable is not such an integer.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not _COUNT.fullmatch(text) or int(text) < least:
        raise JobConfigError(
            f"The environment variable {name} is {text[:_SHOWN]!r}, which is not an integer of at least {least}.",
            hint=f"{name} is set by the launcher or by SageMaker; unset it if the script or a shell sets it.",
        )
    return int(text)
