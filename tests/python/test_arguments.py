"""Integers as arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharedvector._arguments import integer


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
