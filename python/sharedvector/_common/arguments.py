"""Arguments that should be integers, times or levels of a log, refused with their names."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import SupportsFloat, SupportsIndex

import numpy as np

__all__ = ["duration", "integer", "level_number", "seconds"]


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
    """Return how long to wait: 0 for a negative ``value``, which is how a caller says that the
    time that it had left is over.

    Args:
        what: name of the argument, for the message.
        value: a number, infinity included.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN, with which a wait would never end.
    """
    number = _number(what, value)
    if math.isnan(number):
        raise ValueError(f"{what} should be a number of seconds, got {value}")
    return max(0.0, number)


def duration(what: str, value: SupportsFloat) -> float:
    """Return a setting that is a length of time: finite, 0 s or more.

    Args:
        what: name of the argument, for the message.
        value: a number.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, infinite or NaN.
    """
    number = _number(what, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} should be a finite number of seconds, 0 or more, got {value}")
    return number


def level_number(what: str, value: SupportsIndex | str) -> int:
    """Return a level of Python's logging as its number.

    Args:
        what: name of the argument, for the message.
        value: a number, or the name of a level in any case.

    Raises:
        ValueError: it is neither.
    """
    import logging  # not for those who check a number only

    found = None
    if isinstance(value, str):
        found = logging.getLevelNamesMapping().get(value.upper())
    else:
        with contextlib.suppress(TypeError, ValueError):
            found = integer(what, value, 0)
    if found is None:
        raise ValueError(
            f"{what} should be the name of a level, such as 'INFO', or its number, such as 20, got "
            f"{value!r}"
        )
    return found


def _number(what: str, value: SupportsFloat) -> float:
    try:
        if isinstance(value, (str, bytes, bool, np.bool_)):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"{what} should be a number of seconds, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{what} should be a number of seconds, got one beyond 1e308") from None
