"""Reads files of requirements: continued lines, without comments and hashes, and the files that they include."""

import os
import re
from pathlib import Path
from typing import Iterator, Tuple

__all__ = ["requirement_lines"]


def requirement_lines(root: Path, *names: str) -> Iterator[Tuple[str, str]]:
    """Yield each line of a file, the last name, with its place, and those of the files it includes.

    Args:
        root: The folder that names are relative to.
        names: The file, after the names of the files that include it.
    """
    text = (root / names[-1]).read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        wanted = re.sub(r"(^|\s)#.*|\s--hash.*", "", line).strip()
        if not wanted:
            continue
        yield f"{names[-1]}:{number}", wanted
        included = re.match(r"(?:-r|--requirement)[ =]*(\S+)", wanted)
        inner = included and os.path.normpath(os.path.join(os.path.dirname(names[-1]), included[1]))
        if inner and inner not in names and (root / inner).is_file():
            yield from requirement_lines(root, *names, inner)
