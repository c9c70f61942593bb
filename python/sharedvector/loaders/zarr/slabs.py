"""How a volume is cut into slabs; arithmetic alone.

Slices are counted along axis 0 of the volume as it is stored, whatever way it is turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Allocate", "Array", "Cut", "Part"]

Array = np.ndarray[Any, Any]
Allocate = Callable[[tuple[int, ...]], Array]


class Part(NamedTuple):
    """Where slices ``start`` up to ``stop`` of a volume go."""

    start: int
    stop: int
    view: Array  # of shape (stop - start, ...), writable; turned slabs have a negative stride


@dataclass(frozen=True)
class Cut:
    """A volume of ``depth`` slices, turned or not, cut into slabs of ``step``.

    The rest that fills no slab is at the end: of the turned volume, if it is turned.
    """

    depth: int
    step: int
    flip: bool

    @property
    def slabs(self) -> int:
        """How many slabs there are."""
        return self.depth // self.step if self.step else 0

    @property
    def first(self) -> int:
        """The first slice that belongs to a slab."""
        return self.depth - self.slabs * self.step if self.flip else 0

    def fill(
        self, read: Callable[[list[Part]], None], rows: int, tail: tuple[int, ...], make: Allocate
    ) -> Iterator[Array]:
        """Make and yield the slabs, in order, each as soon as it is complete.

        Args:
            read: called with the parts of the next ``rows`` slices, in order and without gaps. The
                stored volume is gone through once, by multiples of ``rows``; from its end when it
                is turned.
            rows: see above.
            tail: shape of a slice.
            make: makes the array of a slab.
        """
        first, end = self.first, self.first + self.slabs * self.step
        begins = range(first // rows * rows, end, rows) if self.slabs else range(0)
        opened: dict[int, Array] = {}
        for begin in reversed(begins) if self.flip else begins:
            start, stop = max(begin, first), min(begin + rows, end)
            touched = range((start - first) // self.step, (stop - 1 - first) // self.step + 1)
            in_order = touched[::-1] if self.flip else touched
            for slab in in_order:
                if slab not in opened:
                    opened[slab] = make((self.step, *tail))
            read([self._part(slab, opened[slab], start, stop) for slab in touched])
            for slab in in_order:
                low = first + slab * self.step
                if low >= start if self.flip else low + self.step <= stop:
                    yield opened.pop(slab)

    def _part(self, slab: int, array: Array, start: int, stop: int) -> Part:
        low = self.first + slab * self.step
        start, stop = max(start, low), min(stop, low + self.step)
        turned = array[::-1] if self.flip else array
        return Part(start, stop, turned[start - low : stop - low])

    def slabs_at_once(self, rows: int) -> int:
        """The most slabs that `fill` has open at a time."""
        if not self.slabs:
            return 0
        # A window of `rows` slices begins at a multiple of `rows`, seen from the first slab at
        # any place that is congruent to -first modulo their common divisor.
        common = math.gcd(rows, self.step)
        latest = self.step - common + -self.first % common
        return min(self.slabs, (latest + rows - 1) // self.step + 1)
