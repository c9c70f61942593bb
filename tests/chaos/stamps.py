"""Chunks that prove what they are: every word, the metadata and the source agree."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

import numpy as np

from sharedvector import Chunk

SHAPE = (8, 64, 64)
DTYPE = "int32"
SOURCES = 37
CHUNK_SIZE = int(np.prod(SHAPE)) * 4


class Stamped:
    """Source ``i`` gives two chunks of which every word is one stamp; the high bits name ``i``.

    Every other worker decodes in place (`load_into`), and sources take a little while, as real
    ones do, so that kills meet every step of a load.
    """

    def __len__(self) -> int:
        return SOURCES

    def __call__(self, source_index: int) -> list[Chunk]:
        return [stamped(np.empty(SHAPE, DTYPE), source_index) for _ in range(2)]


class StampedInPlace(Stamped):
    """The same, decoded into the slots."""

    def load_into(self, source_index: int, allocate: Any) -> Any:
        for _ in range(2):
            yield stamped(allocate(SHAPE), source_index)


def stamped(array: np.ndarray[Any, Any], source: int) -> Chunk:
    """Fill an array with a stamp of its own, in two halves with a pause between them."""
    stamp = source << 16 | secrets.randbits(16)
    half = len(array) // 2
    array[:half] = stamp
    time.sleep(0.0005 * (os.getpid() % 5))
    array[half:] = stamp
    return Chunk(array, np.array([source, stamp], np.float64))


def fault_of(data: np.ndarray[Any, Any], meta: Any) -> str | None:
    """What is wrong with a chunk, or with a part of one; None when it is whole."""
    stamp = int(data.flat[0])
    if not (data == stamp).all():
        return f"torn: stamps {sorted(set(data.ravel().tolist()))[:4]}"
    if meta is not None and (int(meta[0]), int(meta[1])) != (stamp >> 16, stamp):
        return f"the metadata {meta} belong to another chunk than stamp {stamp}"
    if not 0 <= stamp >> 16 < SOURCES:
        return f"stamp {stamp} comes from no source"
    return None
