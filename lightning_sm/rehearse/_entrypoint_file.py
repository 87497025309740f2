"""A container entry point in a file, as ``lightning-sm entrypoint`` prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Optional, Tuple

from ._errors import RehearsalError

__all__ = ["entrypoint_from"]

# As a CreateTrainingJob request names its parts, and as an estimator of SDK v2 does.
_NAMES = (("ContainerEntrypoint", "ContainerArguments"), ("container_entry_point", "container_arguments"))


def entrypoint_from(file: Optional[str]) -> Tuple[str, ...]:
    """The words that a container is started with; without a file, what the toolkit's images are started with.

    Raises:
        RehearsalError: The file cannot be read, or holds no entry point.
    """
    if file is None:
        return ("train",)
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RehearsalError(f"--entrypoint {file} cannot be read as JSON: {error}.") from error
    if isinstance(content, dict):
        for entrypoint, arguments in _NAMES:
            if _are_words(content.get(entrypoint)) and _are_words(content.get(arguments, [])):
                return (*content[entrypoint], *content.get(arguments, []))
    raise RehearsalError(
        f"--entrypoint {file} holds no entry point.", hint="lightning-sm entrypoint > entrypoint.json makes one."
    )


def _are_words(value: Any) -> bool:
    words: List[Any] = value if isinstance(value, list) else []
    return isinstance(value, list) and all(isinstance(word, str) for word in words)
