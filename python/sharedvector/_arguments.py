"""Arguments that should be integers, refused with their names."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["integer"]


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
