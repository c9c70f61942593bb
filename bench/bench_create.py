"""How long the rest of a process waits while one of its threads makes a large pool."""

from __future__ import annotations

import os
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import SHM, Bench
from report import Line, Report, at_most

GIB = 1 << 30


def measure(bench: Bench) -> Report:
    gib = bench.pick(8, 2)
    report = Report(
        "create",
        f"one thread makes a pool of {gib} GiB; another attaches to a small one, gets its first "
        "chunk, forks and closes, over and over: the longest that one of these took in each round",
    )
    free = free_bytes()
    if free < (gib + 1) * GIB:
        report.notes.append(
            f"Left out: it needs {gib + 1} GiB of memory, {free / GIB:.1f} GiB are free."
        )
        return report
    worker = bench.worker("ours")
    series = f"creating {gib} GiB"
    worker.call("bench_create.start", name=bench.name("small"))
    report.series[series] = [
        worker.call("bench_create.longest_ms", name=bench.name("large"), gib=gib)
        for _ in range(bench.pick(5, 3))
    ]
    text = f"{series}: longest delay of a pin / fork / close elsewhere"
    report.lines.append(Line(text, series, None, at_most(5), "ms"))
    return report


def free_bytes() -> int:
    """What /dev/shm and the machine's memory both have."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return min(shutil.disk_usage(SHM).free, int(meminfo["MemAvailable"].split()[0]) * 1024)


# --- in the worker ------------------------------------------------------------------------------


def start(state: dict[str, Any], name: str) -> None:
    import numpy as np

    import sharedvector as sv

    state["small"] = vector = sv.SharedVector(name, chunk_size=4096, slot_count=4)
    vector.append(np.zeros(16, np.float32))
    vector.close()


def longest_ms(state: dict[str, Any], name: str, gib: int) -> float:
    """Milliseconds of the longest verb while a pool is made."""
    import sharedvector as sv

    made = threading.Event()

    def make() -> None:
        try:
            sv.SharedVector(name, chunk_size=16 << 20, slot_count=gib * 64 - 2, exclusive=True)
        finally:
            made.set()

    thread = threading.Thread(target=make)
    longest, rounds = 0.0, 0
    small = state["small"].name
    thread.start()
    while not made.is_set():
        vector = sv.SharedVector(small, create=False)
        for verb in (partial(vector.get, 0), os.fork, vector.close):
            began = time.perf_counter()
            result = verb()
            longest = max(longest, time.perf_counter() - began)
            if verb is os.fork:
                if result == 0:
                    os._exit(0)
                os.waitpid(int(result), 0)
            result = None
        rounds += 1
    thread.join()
    sv.remove_shared_memory(name)
    if rounds < 3:
        raise RuntimeError(f"only {rounds} rounds while the pool was made")
    return 1e3 * longest
