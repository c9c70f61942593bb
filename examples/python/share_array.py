"""An array in shared memory: eight workers read slices of it and write their results in place."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from sharedvector import SharedArray, map_slices, share

if __name__ == "__main__":
    array = np.random.default_rng(0).random((80_000, 100))
    with (
        ProcessPoolExecutor(8) as executor,
        share(array) as shared,
        SharedArray.empty(array.shape) as roots,
    ):
        sums = map_slices(executor, np.sum, shared)
        map_slices(executor, np.sqrt, shared, out=roots)
        print("sum", sum(sums), "- first root", roots[0, 0])
