"""How long ensure_pool() takes until a pool with a trivial loader is ready."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from harness import HERE, Bench, interleave
from report import Line, Report, at_most

SLOTS = 16


def measure(bench: Bench) -> Report:
    report = Report(
        "start",
        "ensure_pool() with a trivial loader and 4 producers (the default), until it is ready; "
        "fresh processes that have imported the package",
    )
    turns = {}
    for side in bench.have("ours", "0.1.0"):
        for producers in (4,) if bench.quick else (4, 1):
            turns[f"{producers} producers, {side}"] = partial(_start, bench, side, producers)
    report.series |= interleave(bench.pick(11, 3), turns, warm_up=1 if not bench.quick else 0)
    for producers, wanted in ((4, at_most(0.4)), (1, None)):
        series = f"{producers} producers"
        if f"{series}, ours" not in turns:
            continue
        report.lines.append(
            Line(f"{series}, ours / 0.1.0", f"{series}, ours", f"{series}, 0.1.0", wanted)
        )
    return report


def _start(bench: Bench, side: str, producers: int) -> float:
    # Producers import the loader's module from this folder.
    worker = bench.worker(side, environment={"PYTHONPATH": str(HERE)})
    name = bench.name(f"start-{worker.pid}")
    try:
        return float(worker.call("bench_start.time_start", name=name, producers=producers))
    finally:
        worker.close()


# --- in the workers -----------------------------------------------------------------------------


def time_start(state: dict[str, Any], name: str, producers: int) -> float:
    """Seconds until the pool is ready; it is read and closed then."""
    from trivial import Trivial

    import sharedvector as sv

    # Both load these at their first use: here, before the clock runs.
    sv.ensure_pool, sv.ProducerSpec  # noqa: B018
    spec = sv.ProducerSpec(loader=Trivial(), chunk_size=1024, num_producers=producers)
    start = time.perf_counter()
    handle = sv.ensure_pool(name, SLOTS, producer=spec)
    taken = time.perf_counter() - start
    try:
        vector = handle.attach()
        for slot in range(SLOTS):
            chunk = vector.get(slot)
            if chunk.shape != (16, 16) or (chunk != chunk[0, 0]).any():
                raise RuntimeError(f"slot {slot} is not one of the loader's chunks")
            del chunk
        del vector
    finally:
        handle.close()
    return taken
