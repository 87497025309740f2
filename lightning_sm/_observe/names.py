"""``numbered``: names of the several runs that a process logs to one place, such as those of a script's folds."""

from collections import Counter
from typing import Any, Tuple

__all__ = ["numbered"]

# How often this process has given each name at each place.
_given: "Counter[Tuple[Any, ...]]" = Counter()


def numbered(name: str, *place: Any) -> str:
    """Return the name, from the second time for a place on with a number: the curves of both would else be one."""
    key = (name, *place)
    _given[key] += 1
    return name if _given[key] == 1 else f"{name}-{_given[key]}"
