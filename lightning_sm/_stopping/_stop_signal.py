"""SIGTERM as a request to stop: noted while a model trains, heeded at once while there is nothing to save."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, List, Optional

from lightning_sm._lightning._signals import leave_behind

__all__ = ["STOPPED", "StopSignal"]

#: What a program that SIGTERM ended exits with, as shells count it.
STOPPED = 128 + int(signal.SIGTERM)


class StopSignal:
    """Hears SIGTERM from :meth:`take` on, until :meth:`release`. Before, :meth:`prepare` looks at what is there.

    Lightning's own handling is set aside for that time: since 2.0 it leaves the training at the next batch without a
    checkpoint and ends the program with 0, as if the job had succeeded
    (``trainer/connectors/signal_connector.py``, ``SIGTERMException``). A project's own handler still gets the signal.
    """

    def __init__(self) -> None:
        self.received = False
        self._own_handler: Any = None
        self._at_once = False
        self._is_taken = False

    def prepare(self) -> None:
        """Note a project's own handler before Lightning adds its own, and look after what is forked from now on."""
        self._own_handler = signal.getsignal(signal.SIGTERM)
        _watch_forks(self)

    def take(self, *, at_once: bool) -> None:
        """Hear the signal from now on; a second call only changes how it is answered.

        Only the main thread may install a handler; in another one the signal is left alone.

        Args:
            at_once: Whether to leave the program right away, because there is nothing to save.
        """
        self._at_once = at_once
        if self._is_taken or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGTERM, self._receive)
        self._is_taken = True

    def outlive(self, trainer: Any) -> None:
        """Hear the signal also between the end of Lightning's own handling and :meth:`release`."""
        if self._is_taken:
            leave_behind(trainer, signal.SIGTERM, self._receive)

    def release(self, trainer: Any) -> None:
        """Put back the handler that was there before the fit, now and at its end."""
        if self._is_taken:
            # None stands for a handler that was not installed from Python and cannot be put back.
            own = signal.SIG_DFL if self._own_handler is None else self._own_handler
            leave_behind(trainer, signal.SIGTERM, own)
            if signal.getsignal(signal.SIGTERM) == self._receive:
                signal.signal(signal.SIGTERM, own)
        self._is_taken = False
        if self in _prepared:
            _prepared.remove(self)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = True
        if callable(self._own_handler):
            self._own_handler(number, frame)
        if self._at_once:
            raise SystemExit(STOPPED)


_prepared: List[StopSignal] = []
_is_watching = False


def _watch_forks(prepared: StopSignal) -> None:
    global _is_watching
    if prepared not in _prepared:
        _prepared.append(prepared)
    if not _is_watching:
        os.register_at_fork(after_in_child=_leave_in_child)
        _is_watching = True


def _leave_in_child() -> None:
    """Keep a forked child, such as a worker of a data loader, alive until the rank has saved.

    Launchers signal a rank's whole process group (``torch/distributed/elastic``, ``SubprocessHandler.close``), and a
    worker that dies of it takes the training with it. So it leaves the group. The handler is not its own either: with
    it, nobody could terminate the child.
    """
    if not _prepared:
        return
    if any(signal.getsignal(signal.SIGTERM) == prepared._receive for prepared in _prepared):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prepared.clear()
    with suppress(OSError):
        os.setpgid(0, 0)
