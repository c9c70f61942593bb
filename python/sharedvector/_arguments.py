"""Arguments that should be integers or times, refused with their names."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

__all__ = ["integer", "seconds"]


def integer(what: str, value: SupportsIndex, least: int | None = None) -> int:
    """Return ``value`` as ``int``. A bool is a mistake here, not 0 or 1.

    Args:
        what: name of the argument, for the message.
        value: an ``int``, or whatever stands for one exactly (NumPy's integers).
        least: the smallest that makes sense; None: any does.

    Raises:
        TypeError: it is no integer.
        ValueError: it is less than ``least``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} should be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{what} should be {least} or more, got {number}")
    return number


def seconds(what: str, value: SupportsFloat) -> float:
    """Return ``value`` as a time of 0 s or more, infinity included.

    Args:
        what: name of the argument, for the message.
        value: a number.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, or not a number (NaN), for which a wait would never end.
    """
    if isinstance(value, (str, bytes, bool)):
        raise TypeError(f"{what} should be a number of seconds, got {value!r}")
    try:
        number = float(value)
    except TypeError:
        raise TypeError(f"{what} should be a number of seconds, got {value!r}") from None
    if not number >= 0:
        raise ValueError(f"{what} should be 0 or more seconds, got {value}")
    return number
