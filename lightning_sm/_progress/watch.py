"""``HangWatch``: says when a run makes no progress, from a thread that sleeps until then."""

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional

from lightning_sm._logging import log

__all__ = ["HangWatch", "Waiting"]

_FOLDERS = 3  # of the path of the code that is waited in


@dataclass(frozen=True)
class Waiting:
    """What a process does while nothing goes on.

    Args:
        stage: The stage, such as ``train``.
        position: Its position, such as ``epoch=0 batch=8``.
        state: What was begun last, such as ``waiting for data``.
        rank: The global rank.
        world_size: The number of processes.
        is_spoken: Whether this rank says it. Those that wait for others in a collective do not.
    """

    stage: str
    position: str
    state: str
    rank: int
    world_size: int
    is_spoken: bool = True


class HangWatch:
    """Writes a warning when :meth:`beat` has not been called for a while, again after twice the time, and so on.

    When it goes on, a line says that, too. A process that is forked from this one, such as a worker of a data loader,
    has no thread and writes nothing.

    Args:
        seconds: How long nothing must have happened.
        describe: Returns what the process does. Called in the thread.
        clock: Returns seconds; it must not go backwards.
    """

    def __init__(
        self, seconds: float, describe: Callable[[], Waiting], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self._describe, self._clock = seconds, describe, clock
        self._beat = clock()
        self._spoken_for: Optional[float] = None
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._watched: Optional[int] = None

    def start(self) -> None:
        """Watch the thread that calls this. The interpreter may be shutting down, which then is no error."""
        if self._thread is not None:
            return
        self._watched = threading.get_ident()
        self._beat = self._clock()
        self._stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._stop,), name="lightning-sm-hang-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        self._spoken_for = None

    def beat(self, now: Optional[float] = None) -> None:
        """Note that something goes on."""
        if self._spoken_for is not None:
            self._say_end()
        self._beat = self._clock() if now is None else now

    def _say_end(self) -> None:
        self._spoken_for = None
        waiting, seconds = self._describe(), self._clock() - self._beat
        log.info(
            "progress %s goes on: after seconds=%d %s rank=%d of %d",
            waiting.stage,
            seconds,
            waiting.position,
            waiting.rank,
            waiting.world_size,
        )

    def _run(self, stop: threading.Event) -> None:
        limit, seen = self.seconds, self._beat
        while not stop.wait(max(self._beat + limit - self._clock(), 0.001)):
            beat = self._beat
            if beat != seen:
                limit, seen = self.seconds, beat
            silent = self._clock() - beat
            if silent >= limit:
                self._say(silent)
                limit *= 2

    def _say(self, silent: float) -> None:
        try:
            waiting = self._describe()
            if waiting.is_spoken:
                self._spoken_for = silent
                log.warning(
                    "progress %s hang: no batch for seconds=%d %s rank=%d of %d, %s%s",
                    waiting.stage,
                    silent,
                    waiting.position,
                    waiting.rank,
                    waiting.world_size,
                    waiting.state,
                    self._place(),
                )
        except Exception as error:  # the loops change meanwhile
            log.debug("The state of a run that hangs cannot be read: %s", error)

    def _place(self) -> str:
        """The function that the watched thread is in."""
        frame = sys._current_frames().get(self._watched) if self._watched is not None else None
        if frame is None:
            return ""
        path = os.sep.join(frame.f_code.co_filename.split(os.sep)[-_FOLDERS:])
        return f", in {frame.f_code.co_name} ({path}:{frame.f_lineno})"
