"""``harmless``: what observes a training never ends it, and keeps no error of a signal's handler from it."""

import functools
import signal
import traceback
from contextlib import suppress
from typing import Any, Callable, Set, TypeVar, cast

from lightning_sm._logging import log

__all__ = ["harmless", "is_of_signal_handler"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def harmless(what: str) -> Callable[[_Method], _Method]:
    """Let a method that fails write one warning, and do nothing from then on, as all that write the same.

    An error that a signal handler raises meanwhile is not the method's: the program is to get it, as torch's of a data
    loader's worker that was killed, or that of an alarm.

    Args:
        what: What is not written any more; noted in the attribute ``failed`` of the object.

    Example::

        >>> class Writer:
        ...     def __init__(self):
        ...         self.failed = set()
        ...     @harmless("lines")
        ...     def write(self, divisor):
        ...         print(1 / divisor)
        >>> writer = Writer()
        >>> writer.write(1), writer.write(0), writer.write(1)
        1.0
        (None, None, None)
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            failed: Set[str] = self.failed
            if what in failed:
                return None
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if is_of_signal_handler(error):
                    raise
                failed.add(what)
                with suppress(Exception):  # of a handler that cannot write
                    log.warning("No more %s: one failed (%s: %s).", what, type(error).__name__, error)
                return None

        return cast(_Method, call)

    return decorate


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised an error, which is not that of what it interrupted."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    # Functions and methods; of other objects the method that is called.
    codes = {
        getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in handlers if callable(each)
    }
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
