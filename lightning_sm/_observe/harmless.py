"""``harmless``: what observes a training never ends it."""

import functools
from contextlib import suppress
from typing import Any, Callable, Set, TypeVar, cast

from lightning_sm._logging import log

__all__ = ["harmless"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def harmless(what: str) -> Callable[[_Method], _Method]:
    """Let a method that fails write one warning, and do nothing from then on, as all that write the same.

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
                failed.add(what)
                with suppress(Exception):  # of a handler that cannot write
                    log.warning("No more %s: one failed (%s: %s).", what, type(error).__name__, error)
                return None

        return cast(_Method, call)

    return decorate
