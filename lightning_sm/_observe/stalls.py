"""``StallDetector``: says when a training makes no progress, from a thread that sleeps until then."""

import os
import sys
import threading
import time
from typing import Callable, NamedTuple, Optional

from lightning_sm._logging import log

__all__ = ["StallDetector", "Waiting"]

_FOLDERS = 3  # of the path of the code that is waited in


class Waiting(NamedTuple):
    """What a process does while nothing goes on.

    Args:
        stage: The stage, such as ``train``.
        position: Where it is, such as ``epoch=0 batch=8 rank=0 of 4``.
        state: What was begun last, such as ``waiting for data``.
        is_spoken: Whether this rank says it. Those that wait for others in a collective do not.
    """

    stage: str
    position: str
    state: str
    is_spoken: bool = True


class StallDetector:
    """Writes a warning when :meth:`beat` has not been called for a while, again after twice the time, and so on.

    When it goes on, a line says that, too. The thread that calls it first is watched, until :meth:`stop`. A process
    that is forked from this one, such as a worker of a data loader, has no thread of its own and writes nothing.

    Args:
        seconds: How long nothing must have happened.
        describe: Returns what the process does. Called in the thread.
    """

    def __init__(self, seconds: float, describe: Callable[[], Waiting]) -> None:
        self.seconds, self._describe = seconds, describe
        self._beat = time.monotonic()
        self._has_spoken = False
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._watched = 0

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1.0)
        self._has_spoken = False

    def beat(self) -> None:
        """Note that something goes on."""
        now = time.monotonic()
        if self._has_spoken:
            self._has_spoken = False
            waiting = self._describe()
            log.info("progress %s goes on: after seconds=%d %s", waiting.stage, now - self._beat, waiting.position)
        self._beat = now
        if self._thread is None:
            self._watched, self._stop = threading.get_ident(), threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="lightning-sm-stalls", daemon=True
            )
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        limit, seen = self.seconds, self._beat
        while not stop.wait(max(self._beat + limit - time.monotonic(), 0.001)):
            beat = self._beat
            if beat != seen:
                limit, seen = self.seconds, beat
            if time.monotonic() - beat >= limit:
                self._say(int(time.monotonic() - beat))
                limit *= 2

    def _say(self, seconds: int) -> None:
        try:
            stage, position, state, is_spoken = self._describe()
        except Exception as error:  # the loops change meanwhile
            log.debug("The state of a training that hangs cannot be read: %s", error)
            return
        if is_spoken:
            self._has_spoken = True
            text = "progress %s hang: no batch for seconds=%d %s, %s%s"
            log.warning(text, stage, seconds, position, state, self._place())

    def _place(self) -> str:
        """The function that the watched thread is in."""
        frame = sys._current_frames().get(self._watched)
        if frame is None:
            return ""
        path = os.sep.join(frame.f_code.co_filename.split(os.sep)[-_FOLDERS:])
        return f", in {frame.f_code.co_name} ({path}:{frame.f_lineno})"
