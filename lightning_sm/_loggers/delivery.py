"""``Delivery``: sends what was logged to a server, in its order, and keeps what the server did not take for a while."""

import time
from collections import deque
from itertools import islice, takewhile
from typing import Any, Callable, Deque, List, Sequence, Tuple

from lightning_sm._logging import log

__all__ = ["Delivery"]

# MLflow's own limits for one request: https://mlflow.org/docs/latest/rest-api.html#log-batch
_MAX_ENTITIES = {"Metric": 1000}
_MAX_OTHER_ENTITIES = 100
# What a repetition of the request cannot change.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"})


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
        self._server, self._send = server, send
        self._pause, self._limit, self._clock = pause, limit, clock
        self._waiting: Deque[Tuple[str, Any]] = deque()
        self._next_attempt = 0.0
        self._has_warned = self._has_warned_of_refusal = False

    def add(self, run_id: str, values: Sequence[Any]) -> None:
        """Send values, or keep them while the server fails.

        Args:
            run_id: The run that they belong to.
            values: Entities of the client library; the name of their class is their kind.
        """
        self._waiting.extend((run_id, value) for value in values)
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
            log.warning("%d values were not logged to %s.", self.lost, self._server)
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
                log.info("%s answers again; what was kept is logged now.", self._server)

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
                if not self._has_warned_of_refusal:
                    self._has_warned_of_refusal = True
                    log.warning("%s refuses %s, which is left out: %s", self._server, _name(value), _text(error))

    def _postpone(self, error: Exception) -> None:
        self.is_failing = True
        self._next_attempt = self._clock() + self._pause
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s fails, training goes on. Metrics are kept, and sent again every %g s: %s",
                self._server,
                self._pause,
                _text(error),
            )


def _is_refusal(error: Exception) -> bool:
    code = getattr(error, "error_code", None)
    if code is None:
        return isinstance(error, (TypeError, ValueError)) and not isinstance(error, OSError)
    return code in _REFUSALS


def _name(value: Any) -> str:
    return f"{type(value).__name__.lower()} {getattr(value, 'key', value)!r}"


def _text(error: Exception, length: int = 300) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= length else f"{text[:length]}…"
