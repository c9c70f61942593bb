"""Where the elements of an array lie: shapes, strides and offsets as plain numbers.

Parts of blocks arrive from other processes as such numbers. NumPy sees that an array stays within
its memory, but only for numbers that do not overflow and do not begin before it.
"""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import numpy as np

from sharedvector import _core

_FARTHEST = 1 << 62  # bytes; sums below it overflow nowhere


class Layout:
    """What an array looks like, whatever it lies in."""

    __slots__ = ("_dtype", "_offset", "_shape", "_strides")
    _dtype: np.dtype[Any]
    _offset: int  # bytes from the beginning of the memory
    _shape: tuple[int, ...]
    _strides: tuple[int, ...] | None  # None: C order

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self._dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, for each axis."""
        if self._strides is None:
            return c_strides(self._shape, self.itemsize)
        return self._strides

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes; its one element is handle[()]")
        return self._shape[0]


def plain_array(array: Any) -> np.ndarray[Any, Any]:
    """``numpy.asarray(array)``. TypeError for a masked array, whose mask would be lost."""
    masked = sys.modules.get("numpy.ma")  # 17 ms to import, and without it there is no such array
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise TypeError("the mask of a masked array cannot be shared: pass .filled(value)")
    return np.asarray(array)


def shape_of(shape: Any) -> tuple[int, ...]:
    """The lengths of a new array. TypeError for what is no int, ValueError for what cannot be."""
    try:
        lengths = tuple(operator.index(n) for n in shape)
    except TypeError:
        lengths = (operator.index(shape),)
    if len(lengths) > _core.MAX_NDIM or any(n < 0 for n in lengths):
        raise ValueError(
            f"a shape has at most {_core.MAX_NDIM} lengths, none of them negative; found {lengths}"
        )
    return lengths


def bytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of a new array. ValueError when no array can be that large, empty or not."""
    if math.prod(n or 1 for n in shape) * dtype.itemsize >= _FARTHEST:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} is too large")
    return math.prod(shape) * dtype.itemsize


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in C order."""
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.insert(0, step)
        step *= max(length, 1)
    return tuple(strides)


def check_part(
    shape: tuple[int, ...], itemsize: int, offset: int, strides: tuple[int, ...] | None
) -> None:
    """TypeError or ValueError for numbers with which NumPy would miscount."""
    numbers = (*shape, offset, *(strides or ()))
    if not all(type(n) is int for n in numbers):
        raise TypeError(f"shape {shape}, offset {offset} and strides {strides} are no plain ints")
    steps = c_strides(shape, itemsize) if strides is None else strides
    if (
        any(n < 0 for n in shape)
        or len(steps) != len(shape)
        or not 0 <= offset < _FARTHEST
        or math.prod(n or 1 for n in shape) * itemsize >= _FARTHEST
        or sum((n or 1) * abs(step) for n, step in zip(shape, steps, strict=True)) >= _FARTHEST
    ):
        raise ValueError(
            f"shape {shape}, offset {offset} and strides {strides} are no part of a block"
        )


def address(array: np.ndarray[Any, Any]) -> int:
    """Where the first element lies."""
    return int(array.__array_interface__["data"][0])


def is_basic(key: Any) -> bool:
    """Does NumPy answer this index with a view?"""
    if isinstance(key, tuple):
        return all(not isinstance(item, tuple) and is_basic(item) for item in key)
    if key is None or key is Ellipsis or isinstance(key, slice | str):
        return True
    return isinstance(key, int | np.integer) and not isinstance(key, bool)
