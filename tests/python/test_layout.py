"""Numbers that say where elements lie: those that NumPy would miscount are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sharedvector.arrays import layout


@given(hnp.arrays(st.sampled_from(["u1", "f8", "U3"]), hnp.array_shapes(min_dims=0)))
def test_facts_are_those_of_numpy(array: np.ndarray[Any, Any]) -> None:
    assert layout.shape_of(array.shape) == array.shape
    assert layout.bytes_of(array.shape, array.dtype) == array.nbytes
    assert layout.c_strides(array.shape, array.itemsize) == array.strides
    layout.check_part(array.shape, array.itemsize, 8, array.strides)
    layout.check_part(array.shape, array.itemsize, 8, None)


INT = st.one_of(st.integers(-4, 4), st.integers(-(1 << 70), 1 << 70))


@given(st.lists(st.tuples(INT, INT), max_size=4), INT, st.sampled_from([1, 8, 1000]))
def test_what_passes_stays_within_the_memory(
    axes: list[tuple[int, int]], offset: int, itemsize: int
) -> None:
    shape = tuple(length for length, _ in axes)
    strides = tuple(stride for _, stride in axes)
    try:
        layout.check_part(shape, itemsize, offset, strides)
        array = np.ndarray(shape, f"V{itemsize}", bytearray(5000), offset, strides)
    except (TypeError, ValueError):
        return
    ends = [(n - 1) * stride for n, stride in axes]
    assert array.size == 0 or offset + sum(min(end, 0) for end in ends) >= 0
    assert array.size == 0 or offset + sum(max(end, 0) for end in ends) + itemsize <= 5000


@pytest.mark.parametrize("key", [0, np.int8(1), None, ..., np.s_[1:], "a", (0, ..., None), ()])
def test_basic_keys(key: Any) -> None:
    assert layout.is_basic(key)


@pytest.mark.parametrize("key", [[0], True, np.array([1]), (0, [1]), ((0,),), np.True_, 1.5])
def test_keys_that_make_a_copy(key: Any) -> None:
    assert not layout.is_basic(key)
