"""The one error that a rehearsal raises on purpose."""

from ..errors import LightningSMError

__all__ = ["RehearsalError"]


class RehearsalError(LightningSMError, RuntimeError):
    """The rehearsal cannot be started as asked, or its stage could not be set up. Nothing is left behind."""
