"""Which handler of a signal a trainer leaves behind."""

from typing import Any

from lightning_sm._lightning._shims import signal_connector_of

__all__ = ["leave_behind"]


def leave_behind(trainer: Any, number: int, handler: Any) -> None:
    """Have a trainer put ``handler`` in place when its fit is over, instead of the one from before it.

    Lightning does that before ``on_fit_end``, which is still work that a signal should not cut off
    (``trainer/trainer.py``, ``_teardown``).

    Args:
        trainer: Its handlers are in place.
        number: The signal.
        handler: A function, or ``signal.SIG_DFL`` or ``signal.SIG_IGN``.
    """
    # Empty while none of Lightning's handlers is in place; a private name, which a newer Lightning may not have.
    handlers = getattr(signal_connector_of(trainer), "_original_handlers", {})
    if number in handlers:
        handlers[number] = handler
