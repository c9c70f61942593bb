"""What an engine is, and what several of them use."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from sharedvector.loaders.casting import move
from sharedvector.loaders.zarr.slabs import Array, Part

__all__ = ["Scratch", "Source", "as_bytes", "block", "rows_of", "scatter"]

REMOTE_CHUNKS = 8  # chunks that are asked for at once where each answer takes its time


class Source(Protocol):
    """One volume, opened."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int  # slices to read at once: a multiple of the chunks' depth

    @property
    def missing(self) -> int:
        """How many chunks were not there, so far."""
        ...

    def read(self, parts: list[Part]) -> None:
        """Fill the parts, which follow each other, of one range of ``rows`` slices."""
        ...

    def close(self) -> None:
        """Give back what it holds open; harmless when repeated."""
        ...


class Scratch:
    """Memory of one thread that is used again for each chunk; it grows and never shrinks."""

    def __init__(self) -> None:
        self._blocks: dict[str, Array] = {}

    def take(self, use: str, size: int) -> Array:
        """Return ``size`` bytes for one use; what was taken for that use before is overwritten."""
        if use not in self._blocks or self._blocks[use].nbytes < size:
            self._blocks.pop(use, None)  # before the larger one is made
            self._blocks[use] = np.empty(size, np.uint8)
        return self._blocks[use][:size]


def rows_of(shape: tuple[int, ...], chunk: tuple[int, ...], step: int, remote: bool) -> int:
    """Return how many slices a library is asked for at once, in whole rows of chunks.

    As many as a slab has; where chunks travel at least so many rows that several are on their way
    at the same time.
    """
    rows = -(-step // chunk[0])
    if remote:
        in_row = math.prod(
            -(-size // part) for size, part in zip(shape[1:], chunk[1:], strict=True)
        )
        rows = max(rows, -(-REMOTE_CHUNKS // max(1, in_row)))
    return rows * chunk[0]


def as_bytes(array: Array) -> Array:
    """Return a contiguous array as uint8, 1-D, over the same memory."""
    return array.reshape(-1).view(np.uint8)


def block(scratch: Scratch, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    raw = scratch.take("block", math.prod(shape) * dtype.itemsize)
    return raw.view(dtype).reshape(shape)


def scatter(slices: Array, parts: list[Part]) -> None:
    begin = parts[0].start
    for part in parts:
        move(part.view, slices[part.start - begin : part.stop - begin])
