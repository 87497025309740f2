"""Which handler of a signal a trainer leaves behind."""

from typing import Any

__all__ = ["leave_behind"]


def leave_behind(trainer: Any, number: int, handler: Any) -> None:
    """Have a trainer put ``handler`` in place when its fit is over, instead of the one from before it.

    Lightning does that before ``on_fit_end``, which is still work that a signal should not cut off
    (``trainer/trainer.py``, ``_teardown``; the same from 1.5 on, which has another name for the connector).

    Args:
        trainer: Its handlers are in place.
        number: The signal.
        handler: A function, or ``signal.SIG_DFL`` or ``signal.SIG_IGN``.
    """
    connector = getattr(trainer, "_signal_connector", None) or getattr(trainer, "signal_connector", None)
    handlers = getattr(connector, "_original_handlers", {})
    if number in handlers:
        handlers[number] = handler
