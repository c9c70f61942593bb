"""The files beside a segment: who owns the pool, and whether it is ready."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gradients import Gradients

from sharedvector import PoolPaths, ProducerSpec, ensure_pool, probe_ready

name = os.environ.get("POOL", "volumes")
spec = ProducerSpec(loader=Gradients(), chunk_size=4000, num_producers=1)
paths = PoolPaths.for_name(name)
print("before:", probe_ready(paths, 4).reason)
with ensure_pool(name, 4, producer=spec) as handle:
    state = probe_ready(paths, 4)
    print("ready:", state.ready, "generation as promised:", state.generation == handle.generation)
    owner = json.loads(Path(paths.lock).read_text())
    print("owner:", sorted(owner))
print("after:", probe_ready(paths, 4).reason, paths.marker.exists(), paths.segment.exists())
