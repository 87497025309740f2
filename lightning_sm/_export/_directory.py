"""The model directory: can it be written, and how new files take the place of older ones."""

import json
import os
import tempfile
from typing import List

from lightning_sm._atomic_file import flush
from lightning_sm.errors import OutputError

__all__ = ["SUMMARY", "check_writable", "files_below", "take_places"]

SUMMARY = "model.json"


def check_writable(directory: str, what: str) -> None:
    """Make a directory and a file in it, so that a job fails in its first second and not after its last epoch.

    Raises:
        OutputError: The directory cannot be written, or is remote.
    """
    if "://" in directory:
        raise OutputError(
            f"The {what} {directory} is not on this host.", hint="Name a local directory; SageMaker uploads it to S3."
        )
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(
            f"The {what} {directory} cannot be written ({error}).",
            hint="Check the directory's mount and owner, and what else is configured to be there.",
        ) from error


def files_below(folder: str) -> List[str]:
    """Every file below a folder, as paths from there. What describes the others comes last."""
    found = [
        os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names
    ]
    return sorted(found, key=lambda name: (name == SUMMARY, name))


def take_places(staging: str, directory: str) -> None:
    """Move what stands in ``staging`` into ``directory``, and remove what an older ``model.json`` there lists besides.

    Every file is on the disk before the first one is moved.
    """
    new = files_below(staging)
    for name in new:
        flush(os.path.join(staging, name))
    old = _listed(os.path.join(directory, SUMMARY))
    for name in new:
        os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
        os.replace(os.path.join(staging, name), os.path.join(directory, name))
    for name in set(old) - set(new):
        if os.path.isfile(os.path.join(directory, name)):
            os.remove(os.path.join(directory, name))


def _listed(path: str) -> List[str]:
    """The files that a ``model.json`` lists; none where it is not one of ours."""
    try:
        with open(path, encoding="utf-8") as file:
            files = [name for name in json.load(file)["files"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in files if not os.path.isabs(name) and ".." not in name.split("/")]
