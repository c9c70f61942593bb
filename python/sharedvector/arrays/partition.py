"""Where arrays are cut along axis 0, and whether the slices have memory in common."""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sharedvector._common import integer

__all__ = ["Bounds", "bounds_of", "check_rows_apart", "even_bounds", "slice_by_slice"]

Bounds: TypeAlias = tuple[int, int]

_OVERLAP_WORK = 1000  # steps of NumPy's search for a shared byte; it has to give up some time


def even_bounds(length: int, parts: int) -> list[Bounds]:
    """Bounds of so many parts, whose lengths differ by one at most, the longer ones first."""
    if parts == 0:
        return []
    size, longer = divmod(length, parts)
    edges = [index * size + min(index, longer) for index in range(parts + 1)]
    return list(itertools.pairwise(edges))


def bounds_of(length: int, n: Any) -> list[Bounds]:
    """Bounds of `n` parts, or those that `n` gives, if they are in range and do not overlap."""
    if not hasattr(n, "__iter__"):
        return even_bounds(length, integer("n", n, least=1))
    bounds = [_bound(length, index, given) for index, given in enumerate(n)]
    filled = sorted((bound, index) for index, bound in enumerate(bounds) if bound[0] < bound[1])
    for (one, i), (other, j) in itertools.pairwise(filled):
        if other[0] < one[1]:
            raise ValueError(
                f"parts {_named(i, one)} and {_named(j, other)} overlap; index the array itself "
                "for parts that are only read"
            )
    return bounds


def _bound(length: int, index: int, given: Any) -> Bounds:
    if isinstance(given, slice):
        low = 0 if given.start is None else given.start
        high = length if given.stop is None else given.stop
        if given.step not in (None, 1):
            raise ValueError(f"part {index} has step {given.step}; parts are whole: use step 1")
    else:
        try:
            low, high = given
        except (TypeError, ValueError):
            raise TypeError(f"part {index} should be (lo, hi) or a slice, got {given!r}") from None
    low, high = integer(f"part {index}: lo", low), integer(f"part {index}: hi", high)
    if not 0 <= low <= high <= length:
        raise ValueError(
            f"part {_named(index, (low, high))} is out of range: it should be "
            f"0 <= lo <= hi <= {length}"
        )
    return low, high


def _named(index: int, bound: Bounds) -> str:
    return f"{index} [{bound[0]}:{bound[1]}]"


def slice_by_slice(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether row i of one array shares memory with row i of the other at most."""
    if not _share_memory(one, other):
        return True
    if _place(one) == _place(other):
        return True
    # The rows i of both lie within one step, so that they meet no others.
    step = abs(one.strides[0])
    low, high = zip(_extent(one[:1]), _extent(other[:1]), strict=True)
    return one.strides[0] == other.strides[0] and max(high) - min(low) <= step


def check_rows_apart(array: NDArray[Any], bounds: list[Bounds]) -> None:
    """ValueError when parts that are to be written share memory."""
    if _elements_apart(array):
        return
    for i, one in enumerate(bounds):
        for j in range(i + 1, len(bounds)):
            other = bounds[j]
            if _share_memory(array[slice(*one)], array[slice(*other)]):
                raise ValueError(
                    f"parts {_named(i, one)} and {_named(j, other)} share memory: rows of this "
                    f"array, of shape {array.shape} and strides {array.strides}, lie over each "
                    "other, and such parts cannot be written by several workers"
                )


def _elements_apart(array: NDArray[Any]) -> bool:
    """Whether each stride steps over all that the smaller ones reach, as in any cut of a block."""
    reach = array.itemsize
    pairs = zip(array.strides, array.shape, strict=True)
    for stride, length in sorted((abs(stride), length) for stride, length in pairs if length > 1):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


def _share_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _place(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.itemsize


def _extent(array: NDArray[Any]) -> tuple[int, int]:
    """The first byte that the array may touch, and the one after the last."""
    start = array.__array_interface__["data"][0]
    reach = [step * (n - 1) for step, n in zip(array.strides, array.shape, strict=True) if n]
    below, above = (sum(pick(step, 0) for step in reach) for pick in (min, max))
    return start + below, start + above + array.itemsize
