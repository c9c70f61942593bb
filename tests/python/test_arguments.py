"""Integers, times and levels of a log as arguments."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from sharedvector._common.arguments import duration, integer, level_number, seconds


@pytest.mark.parametrize("value", [4, np.int16(4), np.uint64(4), np.array(4)])
def test_integers(value: Any) -> None:
    found = integer("steps", value, 4)
    assert found == 4 and type(found) is int
    assert integer("steps", value, -9) == 4


@pytest.mark.parametrize("value", ["4", 4.0, True, None, [4]])
def test_what_is_none_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^steps should be an integer, got ") as found:
        integer("steps", value)
    assert repr(value) in str(found.value)


def test_the_least() -> None:
    with pytest.raises(ValueError, match="steps should be 4 or more, got 3"):
        integer("steps", 3, 4)


@pytest.mark.parametrize("value", [0, 2, np.int16(2), np.float32(0.5), np.array(0.5), 1e300])
@pytest.mark.parametrize("time", [seconds, duration])
def test_times(time: Any, value: Any) -> None:
    found = time("wait", value)
    assert found == value and type(found) is float


@pytest.mark.parametrize("value", ["1", None, True, np.True_, [1], b"1", 1j])
@pytest.mark.parametrize("time", [seconds, duration])
def test_what_is_no_time_is_named(time: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=r"^wait should be a number of seconds, got ") as found:
        time("wait", value)
    assert repr(value) in str(found.value)


@pytest.mark.parametrize("value", [-1, -0.1, np.int8(-3), -math.inf])
def test_a_time_that_is_over_is_none(value: float) -> None:
    found = seconds("wait", value)
    assert found == 0 and type(found) is float
    with pytest.raises(ValueError, match="wait should be a finite number of seconds, 0 or more"):
        duration("wait", value)


@pytest.mark.parametrize("time", [seconds, duration])
def test_a_time_beyond_all_floats(time: Any) -> None:
    with pytest.raises(ValueError, match="wait should be a number of seconds, got one beyond"):
        time("wait", 10**400)


def test_a_time_that_never_comes() -> None:
    assert seconds("wait", math.inf) == math.inf
    with pytest.raises(ValueError, match="wait should be a number of seconds, got nan"):
        seconds("wait", math.nan)
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match=f"wait should be a finite .*, got {value}"):
            duration("wait", value)


@pytest.mark.parametrize("value", ["INFO", "info", "Info", 20, np.int64(20), np.str_("info")])
def test_levels(value: Any) -> None:
    found = level_number("log_level", value)
    assert found == logging.INFO and type(found) is int


@pytest.mark.parametrize("value", ["LOUD", "", "20", -1, 2.5, None, True, b"INFO"])
def test_what_is_no_level_is_told_both_forms(value: Any) -> None:
    words = r"^log_level should be the name of a level, such as 'INFO', or its number, such as 20, "
    with pytest.raises(ValueError, match=words) as found:
        level_number("log_level", value)
    assert repr(value) in str(found.value)
