"""Durations in text: ``90s``, ``10m``, ``500ms``, ``23h30m``."""

import re

from lightning_sm.errors import OptionError

__all__ = ["duration_of_option", "read_duration"]

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def read_duration(text: object) -> float:
    """Return the seconds that ``text`` means.

    Args:
        text: A number of seconds, or one or more numbers with a unit each: ``us``, ``ms``, ``s``, ``m`` or ``min``,
            ``h``, ``d``.

    Raises:
        ValueError: It is not a duration, or not more than zero.

    Example::

        >>> read_duration("23h30m"), read_duration("500ms"), read_duration(90)
        (84600.0, 0.5, 90.0)
    """
    rest, total = str(text).strip().lower(), 0.0
    if rest.replace(".", "", 1).isdigit():
        rest += "s"
    while rest:
        match = _PART.match(rest)
        if match is None or match.group(2) not in _SECONDS:
            raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 500ms or 23h30m")
        total += float(match.group(1)) * _SECONDS[match.group(2)]
        rest = rest[match.end() :]
    if not total > 0:
        raise ValueError(f"{text!r} is not a duration of more than zero")
    return total


def duration_of_option(name: str, value: object) -> float:
    """Return the seconds that an option of the group ``sagemaker`` means.

    Args:
        name: The name of the option, for the error.
        value: Its value.

    Raises:
        OptionError: It is not a duration.
    """
    try:
        return read_duration(value)
    except ValueError as error:
        hint = "Write a number of seconds, or a duration such as 30s, 10m or 23h30m."
        raise OptionError(f"sagemaker.{name}: {error}.", hint=hint) from error
