"""Lets a program end with the processes that Lightning has spawned for its fit (``ddp_spawn``, ``ddp_notebook``)."""

import multiprocessing
import signal
import threading
from functools import partial
from types import FrameType
from typing import Any, Callable, Optional

from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer import callbacks_named, callbacks_of
from lightning_sm._lightning.wrapped_method import wrap_method
from lightning_sm._sagemaker.exit_codes import STOPPED

__all__ = ["Stopped", "end_with_spawned"]


class Stopped(SystemExit):
    """Ends a fit in all of its processes, after what must be done before the end."""


def end_with_spawned(namespace: Namespace) -> None:
    """Leave a fit by :class:`Stopped` where its spawned processes do so, and hand SIGTERM on to them.

    Lightning waits without end for the result of a process that has ended by ``SystemExit``, and SIGTERM ends the
    program without them. 1.5 has no such launcher.

    Args:
        namespace: Lightning's namespace.
    """
    path = (f"{namespace.name}.strategies.launchers.multiprocessing", "_MultiProcessingLauncher")
    wrap_method(path, "launch", _launch)


def _launch(
    launch: Callable[..., Any],
    launcher: Any,
    function: Callable[..., Any],
    *args: Any,
    trainer: Any = None,
    **more: Any,
) -> Any:
    if trainer is None or not callbacks_named(trainer, "GracefulStopMixin"):
        return launch(launcher, function, *args, trainer=trainer, **more)
    handler = _HandingOn(launcher)
    # It alone may install handlers.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        signal.signal(signal.SIGTERM, handler)
    try:
        result = launch(launcher, partial(_returning_stops, function), *args, trainer=trainer, **more)
    except Exception:  # of processes that SIGTERM has ended at once
        if handler.received:
            raise SystemExit(STOPPED) from None
        raise
    finally:
        if is_main:
            handler.restore()
    if isinstance(result, Stopped):
        raise result
    return result


class _HandingOn:
    """A handler of SIGTERM that hands it on to the processes of a launcher."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher
        self._previous = signal.getsignal(signal.SIGTERM)
        self.received = False

    def __call__(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = True
        if callable(self._previous):
            self._previous(number, frame)
        # Absent before Lightning 2, and empty until all have been started.
        processes = getattr(self._launcher, "procs", ()) or multiprocessing.active_children()
        if not processes:
            raise SystemExit(STOPPED)
        for process in processes:
            process.terminate()

    def restore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)


def _returning_stops(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Runs in each spawned process; what the first one returns is the launcher's result."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, _HandingOn):  # in a process that was forked
        handler.restore()
    try:
        return function(*args, **more)
    except Stopped as stopped:
        # Lightning calls these in the program itself, whose callbacks have seen nothing of the fit.
        trainer: Any = getattr(function, "__self__", None)
        for callback in callbacks_of(trainer):
            callback.on_exception(trainer, trainer.lightning_module, stopped)
        return stopped
