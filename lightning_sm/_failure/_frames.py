"""Which lines of the user's own code an exception went through."""

import os
import re
import sys
import sysconfig
import traceback
from types import TracebackType
from typing import List, Optional, Sequence, Tuple

__all__ = ["QuotedTraceback", "user_frames"]

_LIBRARIES = ("site-packages", "dist-packages")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = tuple({os.path.realpath(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")})
_QUOTED_FRAME = re.compile(r'^[ \t]*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_HEADER = "Traceback (most recent call last):"

# File, line, function.
_Frame = Tuple[str, int, str]


def user_frames(trace: Optional[TracebackType], message: str = "", most: int = 4) -> Tuple[str, ...]:
    """Return the last frames of the user's code, the innermost last, each as ``train.py:12 in training_step``.

    Left out are the standard library, installed packages and this one. Where nothing else is left, as in a project that
    is installed as a package, the innermost frame of all is shown.

    Args:
        trace: The exception's traceback.
        message: The exception's message, which may quote another process's traceback (a data loader's worker).
        most: How many frames.
    """
    frames: List[_Frame] = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(trace)]
    frames += [(path, int(line), function) for path, line, function in _QUOTED_FRAME.findall(message)]
    users = [frame for frame in frames if _is_users(frame[0])]
    return tuple(f"{_short(path)}:{line} in {function}" for path, line, function in (users or frames[-1:])[-most:])


class QuotedTraceback:
    """A message that quotes the traceback of another process, as data loaders and process launchers raise it."""

    @staticmethod
    def cause(message: str) -> Optional[str]:
        """Return what that traceback ends with: the class and message of the error there. ``None`` without one."""
        _, header, quoted = message.rpartition(_HEADER)
        lines: Sequence[str] = quoted.strip("\n").splitlines()
        for index in range(len(lines) - 1, -1, -1):
            if lines[index].startswith(" "):
                ending = "\n".join(lines[index + 1 :]).strip()
                return ending or None
        return None if not header else "\n".join(lines).strip() or None


def _is_users(path: str) -> bool:
    # Such as "<frozen runpy>", and what torch and dataclasses generate.
    if path.startswith("<"):
        return path == "<string>" and sys.argv[0] == "-c"
    real = os.path.realpath(path)
    if any(f"{os.sep}{folder}{os.sep}" in real for folder in _LIBRARIES):
        return False
    return not real.startswith((_OURS + os.sep, *(folder + os.sep for folder in _STANDARD)))


def _short(path: str) -> str:
    """Relative to the working directory, which is the source directory in a container; else the last two parts."""
    if path.startswith("<"):
        return path
    relative = os.path.relpath(path)
    return relative if not relative.startswith(os.pardir) else os.path.join(*path.split(os.sep)[-2:])
