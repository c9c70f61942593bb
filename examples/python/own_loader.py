"""A loader of your own, in the module gradients.py beside this script.

The producer's processes import it there. A loader defined in this file, or in a notebook, would
travel by cloudpickle.
"""

from __future__ import annotations

import os

from gradients import Gradients

from sharedvector import ProducerSpec, pool

spec = ProducerSpec(loader=Gradients(), chunk_size=4000, num_producers=1)
with pool(os.environ.get("POOL", "gradients"), 4, producer=spec) as handle:
    vector = handle.attach()
    for index in range(len(vector)):
        chunk, meta = vector.get(index), vector.get_meta(index)
        print("slot", index, "shape", chunk.shape, "slope", meta[0])
        del chunk
    del vector
