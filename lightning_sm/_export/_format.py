"""``Format``: a way to write a model into a file, and what it needs."""

import importlib.util
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from lightning_sm._export._source import Source
from lightning_sm.errors import ExportError

__all__ = ["Format"]


@dataclass(frozen=True)
class Format:
    """A format.

    Args:
        name: What ``sagemaker.export`` calls it.
        file: The name of the file in the model directory.
        write: Writes the source to a path, loads the file again, and compares. Returns what ``model.json`` says about
            the comparison, and the details that only this format has.
        runs_model: Whether the model is run to be written, for which it takes an example input.
        needs_class: Whether whoever loads the file must have the model's class.
        packages: What must be installed beside torch; asked when the format is chosen.
        lacks: Says what this version of torch lacks for it; ``None`` where it lacks nothing.
    """

    name: str
    file: str
    write: Callable[[Source, str], Tuple[Dict[str, Any], Dict[str, Any]]]
    runs_model: bool = False
    needs_class: bool = True
    packages: Callable[[], Tuple[str, ...]] = tuple
    lacks: Callable[[], Optional[str]] = lambda: None

    def check(self) -> None:
        """Find out whether it can be written here, before there is anything to write.

        Raises:
            ExportError: torch is too old, or a package is missing.
        """
        lack = self.lacks()
        if lack is not None:
            raise ExportError(
                f"sagemaker.export is {self.name}, and {lack}.",
                hint="Choose another format, such as state_dict, or an image with a newer torch.",
            )
        missing = [name for name in self.packages() if importlib.util.find_spec(name) is None]
        if missing:
            raise ExportError(
                f"sagemaker.export is {self.name}, and {' and '.join(missing)} cannot be imported.",
                hint=f"Add {' and '.join(missing)} to the requirements.txt beside your script.",
            )
