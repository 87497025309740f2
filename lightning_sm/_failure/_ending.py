"""How this program ends: only then is it known whether an error that somebody may have caught was its failure."""

import dis
import sys
import threading
from types import FrameType
from typing import Any, NoReturn, Optional, Tuple

from lightning_sm._sagemaker.exit_codes import STOPPED

__all__ = ["ends_well", "is_good_code", "watch_ending"]

_outermost: Optional[FrameType] = None
# What sys.exit was called with last.
_exit_code: Optional[Tuple[Any]] = None


def watch_ending() -> None:
    """From now on, note what :func:`ends_well` needs. Only the first call counts.

    The interpreter tells nobody, not even ``atexit``, with which code a program ends.
    """
    global _outermost
    if _outermost is not None:
        return
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    _outermost = frame
    before = sys.exit

    def leave(status: Any = None, /) -> NoReturn:
        global _exit_code
        _exit_code = (status,)
        before(status)

    sys.exit = leave


def ends_well() -> bool:
    """Whether the program, which is over, ends with 0: it came to its last line, or left by ``sys.exit`` with 0.

    What cannot be told, such as the code of an exit that did not come from ``sys.exit``, counts as a failure.
    """
    if _outermost is None:
        return False
    # An exception that left the program left its outermost frame where it was called, and not at a return.
    last = dis.opname[_outermost.f_code.co_code[_outermost.f_lasti]] if _outermost.f_lasti >= 0 else ""
    return last.startswith("RETURN") or (_exit_code is not None and is_good_code(_exit_code[0]))


def is_good_code(code: Any) -> bool:
    """Whether an exit code means no failure; a program that SIGTERM stopped has done as it was asked."""
    return code in (None, 0, STOPPED)
