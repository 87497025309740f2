"""Durations as people write them: ``90s``, ``10m``, ``23h30m``."""

import re

__all__ = ["read_duration"]

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def read_duration(text: object) -> float:
    """Return the seconds that ``text`` means: ``90``, ``90s``, ``10m``, ``1.5h`` or ``23h30m``.

    Raises:
        ValueError: It is no duration, or none that is more than zero.
    """
    rest, total = str(text).strip().lower(), 0.0
    while rest:
        match = _PART.match(rest)
        if match is None or match.group(2) not in _SECONDS:
            raise ValueError(f"{text!r} is no duration such as 90s, 10m or 23h30m")
        total += float(match.group(1)) * _SECONDS[match.group(2)]
        rest = rest[match.end() :]
    if not total > 0:
        raise ValueError(f"{text!r} is no duration of more than zero")
    return total
