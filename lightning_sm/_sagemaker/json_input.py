"""Reading what other programs wrote: JSON files and JSON variables, each fault told as a ``JobConfigError``."""

import json
import os
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm.errors import JobConfigError

__all__ = ["read_json_file", "read_json_variable", "expect_mapping", "expect_names", "expect_path", "read_count"]

_SHOWN = 120


def _decode(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobConfigError(
            f"{where} is not JSON ({error}); it begins with {text[:_SHOWN]!r}.",
            hint="SageMaker writes it before the script starts; look for something that edits it, "
            "or for a value with a '#', which remote login cuts off.",
        ) from error


def read_json_file(path: str) -> Optional[Any]:
    """Read a JSON file, or return ``None`` where there is none.

    Raises:
        JobConfigError: The file is there and cannot be read, or is not JSON.
    """
    try:
        # Opening a FIFO would wait for a writer without end.
        if not os.path.isfile(path) and os.path.exists(path):
            raise OSError("it is no regular file")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise JobConfigError(
            f"{path} cannot be read ({error}).", hint="Check that it is a UTF-8 file that this user may read."
        ) from error
    return _decode(text, path)


def read_json_variable(environ: Mapping[str, str], name: str) -> Optional[Any]:
    """Read a JSON environment variable, or return ``None`` where it is unset or empty.

    Raises:
        JobConfigError: The variable is not JSON.
    """
    text = environ.get(name, "")
    return _decode(text, f"The environment variable {name}") if text.strip() else None


def expect_mapping(value: Any, where: str) -> Dict[str, Any]:
    """Return ``value`` if it is a JSON object, and raise ``JobConfigError`` otherwise."""
    if not isinstance(value, dict):
        raise JobConfigError(f"{where} should be a JSON object, and is {_shown(value)}.")
    return value


def expect_names(value: Any, where: str) -> List[str]:
    """Return ``value`` if it is a JSON list of different, non-empty strings, and raise ``JobConfigError`` otherwise."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise JobConfigError(f"{where} should be a JSON list of names, and is {_shown(value)}.")
    if len(set(value)) != len(value):
        raise JobConfigError(f"{where} names something twice: {_shown(value)}.")
    return value


def expect_path(value: Any, where: str) -> str:
    """Return ``value`` if it can be (a part of) a path, and raise ``JobConfigError`` otherwise."""
    try:
        usable = isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell
        usable = False
    if not usable:
        raise JobConfigError(f"{where} should be (a part of) a path, and is {_shown(value)}.")
    return str(value)


def read_count(environ: Mapping[str, str], name: str, *, least: int = 0) -> Optional[int]:
    """Read a whole number of at least ``least``, or return ``None`` where the variable is unset or empty.

    Raises:
        JobConfigError: The variable is not such a number.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) < least:
        raise JobConfigError(
            f"The environment variable {name} is {text[:_SHOWN]!r}, which is no whole number of at least {least}.",
            hint=f"{name} is set by the launcher or by SageMaker; unset it if the script or a shell set it.",
        )
    return int(text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
