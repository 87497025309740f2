"""Durations and bandwidths as people write them: ``60s``, ``5ms``, ``1gbit``."""

from __future__ import annotations

import re

from ._errors import RehearsalError

__all__ = ["bits_per_second", "milliseconds", "seconds"]

_SECONDS = {"ms": 0.001, "us": 0.000001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def seconds(text: str, option: str) -> float:
    """``90``, ``90s``, ``1.5m``, ``2h`` or ``500ms`` in seconds."""
    return _read(text, _SECONDS, option, "a time such as 60s, 5m or 500ms")


def milliseconds(text: str, option: str) -> float:
    """As :func:`seconds`, in milliseconds."""
    return seconds(text, option) * 1000.0


def bits_per_second(text: str, option: str) -> int:
    """``100mbit`` or ``1gbit`` in bits per second, with the units of ``tc``."""
    return int(_read(text, _BITS, option, "a bandwidth such as 100mbit or 1gbit"))


def _read(text: str, units: dict[str, float] | dict[str, int], option: str, wanted: str) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in units:
        raise RehearsalError(f"{option} {text!r} is not {wanted}.", hint=f"Units: {', '.join(u for u in units if u)}.")
    value = float(match.group(1)) * units[match.group(2)]
    if value <= 0:
        raise RehearsalError(f"{option} {text!r} must be more than zero.")
    return value
