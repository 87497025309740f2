"""``Delivery``: sends what was logged to a server, in its order, and keeps what the server did not take for a while.

``DeliveryThread`` does so in a thread, so that no training step waits for a slow server.
"""

import atexit
import os
import queue
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm._logging import log

__all__ = ["Delivery", "DeliveryThread"]

# MLflow's own limits for one request: https://mlflow.org/docs/latest/rest-api.html#log-batch
_MAX_ENTITIES = {"Metric": 1000}
_MAX_OTHER_ENTITIES = 100
# What a repetition of the request cannot change.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"})
# How often a name is sent that the server refuses: each refusal costs a request for each value of the batch.
_MAX_REFUSALS = 3


class Delivery:
    """Sends metrics, parameters and tags, and never raises.

    After a failed request nothing is sent for ``pause`` seconds; what is logged meanwhile is kept, up to ``limit``
    values. One warning says so, and another one at the end what was lost.

    Args:
        server: The server's name for log lines.
        send: Sends values of one kind to a run; called with the run's id and the values.
        pause: Seconds between two attempts to reach a server that failed.
        limit: The largest number of values that are kept.
        clock: Returns seconds.
    """

    def __init__(
        self,
        server: str,
        send: Callable[[str, Sequence[Any]], Any],
        *,
        pause: float = 30.0,
        limit: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_failing = False
        self.lost = 0
        self.server, self._send = server, send
        self._pause, self._limit, self._clock = pause, limit, clock
        self._waiting: Deque[Tuple[str, Any]] = deque()
        self._refusals: Counter[Tuple[str, str]] = Counter()
        self._next_attempt = 0.0
        self._has_warned = self._has_warned_of_refusal = False

    def add(self, run_id: str, values: Sequence[Any]) -> None:
        """Send values, or keep them while the server fails.

        Args:
            run_id: The run that they belong to.
            values: Entities of the client library; the name of their class is their kind.
        """
        self.keep(run_id, values)
        self.send()

    def keep(self, run_id: str, values: Sequence[Any]) -> None:
        """Add values that the next :meth:`send` sends."""
        accepted = [value for value in values if self._refusals[run_id, _name(value)] < _MAX_REFUSALS]
        self.lost += len(values) - len(accepted)
        self._waiting.extend((run_id, value) for value in accepted)

    def send(self) -> None:
        """Send what is kept, unless the server has failed a moment ago."""
        if not self.is_failing or self._clock() >= self._next_attempt:
            self._send_waiting()
        self.lost += max(0, len(self._waiting) - self._limit)
        while len(self._waiting) > self._limit:
            self._waiting.popleft()

    def attempt(self, call: Callable[[], Any], values: int = 1) -> Any:
        """Return what a request returns, or ``None`` where it fails, which counts as so many lost values."""
        try:
            return call()
        except Exception as error:
            self.lost += values
            self._warn(error)
            return None

    def finish(self) -> None:
        """Make a last attempt, and say how many values were lost."""
        self._send_waiting()
        self.lost += len(self._waiting)
        self._waiting.clear()
        if self.lost:
            log.warning("%d values were not logged to %s.", self.lost, self.server)
        self.lost = 0

    def _send_waiting(self) -> None:
        while self._waiting:
            run_id, values = self._first_batch()
            try:
                self._send(run_id, values)
            except Exception as error:
                if not _is_refusal(error):
                    self._postpone(error)
                    return
                self._send_one_by_one(run_id, values)
            for _ in values:
                self._waiting.popleft()
            if self.is_failing:
                self.is_failing = False
                log.info("%s answers again; what was kept is logged now.", self.server)

    def _first_batch(self) -> Tuple[str, List[Any]]:
        """The first values that one request can hold: of one run and one kind."""
        run_id, first = self._waiting[0]
        kind = type(first)
        same = takewhile(lambda each: each[0] == run_id and type(each[1]) is kind, self._waiting)
        return run_id, [value for _, value in islice(same, _MAX_ENTITIES.get(kind.__name__, _MAX_OTHER_ENTITIES))]

    def _send_one_by_one(self, run_id: str, values: Sequence[Any]) -> None:
        """Send each value of a refused request alone, so that only those are lost that the server refuses."""
        for index, value in enumerate(values):
            try:
                self._send(run_id, [value])
            except Exception as error:
                if not _is_refusal(error):
                    self.lost += len(values) - index
                    self._warn(error)
                    return
                self.lost += 1
                self._refusals[run_id, _name(value)] += 1
                if not self._has_warned_of_refusal:
                    self._has_warned_of_refusal = True
                    log.warning(
                        "%s refuses %s, which is left out: %s HINT: Rename or shorten it; a parameter keeps the value "
                        "of the run's first start.",
                        self.server,
                        _name(value),
                        _text(error),
                    )

    def _postpone(self, error: Exception) -> None:
        self.is_failing = True
        self._next_attempt = self._clock() + self._pause
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s fails, training goes on. Metrics are kept, and sent again every %g s: %s HINT: Nothing is to be "
                "done if it is away for a while. Else check that it runs, and the access of the job's role.",
                self.server,
                self._pause,
                _text(error),
            )


class DeliveryThread:
    """Does the work of a ``Delivery`` in a thread, which begins with the first values. Nothing is raised.

    Args:
        delivery: Sends the values; used by the thread only.
        seconds: How long the end of a run, and of the process, waits for the server at most.
    """

    def __init__(self, delivery: Delivery, seconds: float = 30.0) -> None:
        self._delivery, self._seconds = delivery, seconds
        self._tasks: queue.Queue[_Task] = queue.Queue()
        self._pid: Optional[int] = None
        self._hangs = False

    def add(self, run_id: str, values: Sequence[Any]) -> None:
        """Send values soon, in the order of the calls."""
        self._put(_Task(run_id=run_id, values=values))

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Return what a function returns after all that was added has been tried; ``None`` if it does not in time."""
        task = self._put(_Task(function))
        return task.result if task.done.wait(seconds) else None

    def finish(self, function: Callable[[], Any] = lambda: None) -> None:
        """Send all that was added, call a function, and wait for both, though not for ever.

        Args:
            function: Is called last, in the thread.
        """

        def finish() -> None:
            self._delivery.finish()
            function()

        task = self._put(_Task(finish))
        self._hangs = not task.done.wait(self._seconds)
        if self._hangs:
            log.warning(
                "%s does not answer: what was logged last, and how the run ended, may be missing there. "
                "HINT: Training goes on without it after %g s. Check the load of the server, and the way to it.",
                self._delivery.server,
                self._seconds,
            )

    def _put(self, task: "_Task") -> "_Task":
        if self._pid != os.getpid():
            # A forked process has no thread, and maybe a queue that another thread has locked.
            self._pid, self._tasks, self._hangs = os.getpid(), queue.Queue(), False
            threading.Thread(target=self._run, args=(self._tasks,), name="mlflow-delivery", daemon=True).start()
            atexit.register(self._at_exit)
        self._tasks.put(task)
        return task

    def _at_exit(self) -> None:
        """Send what was logged after the end of the run, or by a training that ended without telling its loggers."""
        if self._pid == os.getpid() and not self._hangs:
            self.finish()

    def _run(self, tasks: "queue.Queue[_Task]") -> None:
        while True:
            found = [tasks.get()]
            with suppress(queue.Empty):
                while True:
                    found.append(tasks.get_nowait())
            for task in found:
                if task.function is None:
                    self._delivery.keep(task.run_id, task.values)
                    continue
                self._delivery.send()
                task.result = self._delivery.attempt(task.function, 0)
                task.done.set()
            self._delivery.send()


class _Task:
    """Values to send, or a function to call after them."""

    def __init__(
        self, function: Optional[Callable[[], Any]] = None, run_id: str = "", values: Sequence[Any] = ()
    ) -> None:
        self.function, self.run_id, self.values = function, run_id, values
        self.result: Any = None
        self.done = threading.Event()


def _is_refusal(error: Exception) -> bool:
    code = getattr(error, "error_code", None)
    if code is None:
        return isinstance(error, (TypeError, ValueError)) and not isinstance(error, OSError)
    return code in _REFUSALS


def _name(value: Any) -> str:
    return f"{type(value).__name__.lower()} {getattr(value, 'key', value)!r}"


def _text(error: Exception, length: int = 300) -> str:
    text = redact_patterns(" ".join(f"{type(error).__name__}: {error}".split())[:5000])
    return text if len(text) <= length else f"{text[:length]}…"
