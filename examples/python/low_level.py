"""Chunks without a service: create, append, read without copying, replace, remove."""

from __future__ import annotations

import os

import numpy as np

from sharedvector import InUseError, SharedVector, remove_shared_memory

name = os.environ.get("POOL", "chunks")
vector = SharedVector(name, chunk_size=1 << 20, max_memory_size=10 << 20, dtype="int16")
vector.append(np.zeros((16, 64, 64), dtype=np.int16), meta=[2.0, 0.5, 0.5])
vector.append(np.ones((16, 64, 64), dtype=np.int16))

# Any process of this user on this node:
reader = SharedVector(name, create=False)
view = reader.get(0)
print("shape", view.shape, "spacing", reader.get_meta(0), "writeable", view.flags.writeable)

try:
    vector.replace(0, np.full((8, 8), 7, dtype=np.int16))
except InUseError as error:
    print("a view is alive:", type(error).__name__)
del view
vector.replace(0, np.full((8, 8), 7, dtype=np.int16))
print("replaced, first value", int(reader.get(0)[0, 0]), "slots", len(reader))

del reader, vector
remove_shared_memory(name)
