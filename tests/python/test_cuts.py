"""Bounds along axis 0, and memory that slices have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedvector.arrays.partition import bounds_of, check_rows_apart, even_bounds, slice_by_slice


@given(st.integers(0, 50), st.integers(1, 60))
def test_even_bounds_are_those_of_array_split(length: int, parts: int) -> None:
    expected = np.array_split(np.arange(length), parts)
    found = [np.arange(low, high) for low, high in even_bounds(length, parts)]
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]


def test_no_parts() -> None:
    assert even_bounds(0, 0) == []
    assert bounds_of(3, []) == []


def bytes_of(array: Any) -> set[int]:
    """The addresses of all bytes of an array."""
    start = array.__array_interface__["data"][0]
    offsets = np.zeros((), np.int64)
    for length, stride in zip(array.shape, array.strides, strict=True):
        offsets = offsets[..., None] + np.arange(length) * stride
    return {int(start + o + i) for o in offsets.ravel() for i in range(array.itemsize)}


def meet(one: Any, other: Any) -> bool:
    """Does a row of one share a byte with another row of the other?"""
    rows = [[bytes_of(rows[i : i + 1]) for i in range(len(rows))] for rows in (one, other)]
    pairs = ((i, j) for i in range(len(one)) for j in range(len(other)) if i != j)
    return any(rows[0][i] & rows[1][j] for i, j in pairs)


@st.composite
def cut(draw: st.DrawFn) -> Any:
    """How four rows are taken from a 9 x 6 array."""
    step = draw(st.sampled_from([1, 2, -1, -2]))
    first = draw(st.integers(0, 2)) if step > 0 else draw(st.integers(6, 8))
    low = draw(st.integers(0, 4))
    columns = slice(low, draw(st.integers(low + 1, 6)), draw(st.sampled_from([1, 2])))
    return first, step, columns, draw(st.booleans())


def taken(base: Any, first: int, step: int, columns: slice, one: bool) -> Any:
    rows = base[first::step][:4, columns]
    return rows[:, 0] if one else rows


@given(cut(), cut(), st.sampled_from("CF"))
def test_slice_by_slice_never_lets_rows_meet(one: Any, other: Any, order: Any) -> None:
    base = np.zeros((9, 6), np.int16, order=order)
    a, b = taken(base, *one), taken(base, *other)
    if slice_by_slice(a, b):
        assert not meet(a, b)
    if order == "C" and a.strides[0] == b.strides[0] and not meet(a, b):
        assert slice_by_slice(a, b)


def test_slice_by_slice_of_one_array_in_any_order() -> None:
    for order in ("C", "F"):
        base = np.zeros((4, 5), order=order)  # type: ignore[call-overload]
        assert slice_by_slice(base, base[:])
        assert not slice_by_slice(base[1:], base[:-1])
        assert not slice_by_slice(base[::-1], base)
    assert slice_by_slice(base, np.zeros((4, 5)))


def test_rows_apart() -> None:
    base = np.arange(20, dtype=np.int32)
    window = np.lib.stride_tricks.sliding_window_view(base, 5)
    with pytest.raises(ValueError, match=r"parts 0 \[0:8\] and 1 \[8:16\] share memory"):
        check_rows_apart(window, even_bounds(len(window), 2))
    check_rows_apart(window, [(0, 1), (5, 6)])
    check_rows_apart(base.reshape(4, 5)[::-1, ::2], even_bounds(4, 4))
    check_rows_apart(np.broadcast_to(base[:, None], (20, 3)), even_bounds(20, 20))
    with pytest.raises(ValueError, match="share memory"):
        check_rows_apart(np.broadcast_to(base, (3, 20)), even_bounds(3, 3))
