"""A loader of your own: any object with `__len__` and `__call__(index) -> list[Chunk]`.

Defined here, it travels to the producer by cloudpickle; in a module of its own it needs nothing.
"""

from __future__ import annotations

import os

import numpy as np

from sharedvector import Chunk, ProducerSpec, pool


class Gradients:
    """Sources that need no file: source i is a ramp of slope i, with its slope as metadata."""

    def __len__(self) -> int:
        return 16

    def __call__(self, source_index: int) -> list[Chunk]:
        ramp = np.linspace(0, source_index, 1000, dtype=np.float32).reshape(10, 10, 10)
        return [Chunk(ramp, np.array([source_index], dtype=np.float64))]


spec = ProducerSpec(loader=Gradients(), chunk_size=4000, num_producers=1)
with pool(os.environ.get("POOL", "gradients"), 4, producer=spec) as handle:
    vector = handle.attach()
    for index in range(len(vector)):
        chunk, meta = vector.get(index), vector.get_meta(index)
        print("slot", index, "shape", chunk.shape, "slope", meta[0])
        del chunk
    del vector
