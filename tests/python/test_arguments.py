"""Integers and times as arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharedvector._arguments import integer, seconds


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


def test_seconds() -> None:
    assert [seconds("wait", value) for value in (0, 2, np.float32(0.5), float("inf"))] == [
        0,
        2,
        0.5,
        float("inf"),
    ]


@pytest.mark.parametrize("value", ["1", None, True, [1], b"1"])
def test_what_is_no_time_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^wait should be a number of seconds, got "):
        seconds("wait", value)


@pytest.mark.parametrize("value", [-1, float("nan"), -0.1])
def test_times_that_never_come(value: float) -> None:
    with pytest.raises(ValueError, match="wait should be 0 or more seconds, got"):
        seconds("wait", value)
