"""Durations in text: ``90s``, ``10m``, ``500ms``, ``23h30m``."""

import re

from lightning_sm.errors import OptionError

__all__ = ["duration_of_option", "read_duration"]

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = rf"({_NUMBER})\s*(us|ms|s|min|m|h|d)\s*"


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
    given = str(text).strip().lower()
    if re.fullmatch(_NUMBER, given):
        given += "s"
    parts = re.findall(_PART, given) if re.fullmatch(f"({_PART})+", given) else []
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds > 0:
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 500ms or 23h30m")
    return seconds


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
