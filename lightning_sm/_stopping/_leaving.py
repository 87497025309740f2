"""Where a validation can be left."""

import math
from typing import Any, Sequence

from lightning_sm._agree import all_true, broadcast

__all__ = ["may_leave_anywhere"]


def may_leave_anywhere(trainer: Any, batches: Sequence[float]) -> bool:
    """Whether ranks that look at each of these batches look equally often. Every rank must call it.

    Where a rank has fewer batches, one more look of another would wait for ever, or meet something else.
    """
    if trainer.world_size == 1:
        return True
    counts = [float(count) for count in batches]
    return all_true(trainer, counts == broadcast(trainer, counts) and math.inf not in counts)
