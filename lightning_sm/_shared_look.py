"""How all ranks find out together, every now and then, that one of them has a reason to do something."""

import time
from typing import Any, Callable, Sequence, Tuple

from lightning_sm._agree import sums

__all__ = ["Rhythm", "SharedLook"]

_INTERVAL = 0.25
_MOST_STEPS = 64


class Rhythm:
    """How many steps pass between two looks: a quarter of a second's, at most 64, at most twice as many as before.

    An agreement makes a GPU wait for its queue, so it is not for each step; and steps may become slower at any time, so
    it is not for hundreds of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._steps = 1

    def next(self) -> int:
        """After how many steps to look again, now that the last number of steps is over."""
        now = self._clock()
        seconds_per_step = max(now - self._last, 1e-6) / self._steps
        self._steps = max(1, min(int(_INTERVAL / seconds_per_step), 2 * self._steps, _MOST_STEPS))
        self._last = now
        return self._steps


class SharedLook:
    """Asks all ranks at the same step whether one of them has a reason to do something."""

    def __init__(self) -> None:
        self._rhythm = Rhythm()
        self._left = 1

    def look(self, trainer: Any, reasons: Sequence[bool]) -> Tuple[bool, ...]:
        """Which of the reasons any rank has. Every rank calls it at each step, and learns of it at the same one.

        A single process has nobody to wait for and looks at each step.
        Rank zero's clock says when the next look is, in the same sum.
        """
        if trainer.world_size == 1:
            return tuple(reasons)
        self._left -= 1
        if self._left > 0:
            return tuple(False for _ in reasons)
        then = self._rhythm.next() if trainer.is_global_zero else 0
        *found, self._left = (int(value) for value in sums(trainer, [*reasons, then]))
        return tuple(value > 0 for value in found)
