"""A loader for the examples beside it: `__len__` and `__call__(index) -> list[Chunk]`, no more."""

from __future__ import annotations

import numpy as np

from sharedvector import Chunk


class Gradients:
    """Sources that need no file: source i is a ramp of slope i, with its slope as metadata."""

    def __len__(self) -> int:
        return 16

    def __call__(self, source_index: int) -> list[Chunk]:
        ramp = np.linspace(0, source_index, 1000, dtype=np.float32).reshape(10, 10, 10)
        return [Chunk(ramp, np.array([source_index], dtype=np.float64))]
