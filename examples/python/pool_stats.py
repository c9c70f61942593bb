"""Statistics: how often chunks are read before they are replaced, and who was in the way."""

from __future__ import annotations

import os
import time

from gradients import Gradients

from sharedvector import ProducerSpec, ensure_pool

spec = ProducerSpec(loader=Gradients(), chunk_size=4000, num_producers=1)
with ensure_pool(os.environ.get("POOL", "volumes"), 4, producer=spec) as handle:
    vector = handle.attach()
    deadline = time.monotonic() + 20
    while handle.stats().replace_events < 8 and time.monotonic() < deadline:
        for index in range(len(vector)):
            vector.get(index)
        time.sleep(0.01)
    stats = handle.stats()
    print("replaced", stats.replace_events, "chunks; blocked", stats.blocked_replaces)
    print("reads before replacement: median", stats.recent_median, "p90", stats.recent_p90)
    for key, value in stats.as_dict(prefix="pool/").items():
        print(key, value)
    print("writes per slot", vector.write_counts().tolist())
    del vector
