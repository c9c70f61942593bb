"""Batches of torch tensors: this package, 0.1.0, torch without a pool, and the machine's gather."""

from __future__ import annotations

import statistics
from functools import partial

from batches import BATCH, CHUNK, CROP, SLOTS
from harness import BUILD, Bench, interleave
from limits import build
from report import Line, Report, at_least, at_most

# Side, way in batches.py, name in the table.
WAYS = (
    ("0.1.0", "DataLoader", "DataLoader, 0.1.0"),
    ("ours", "DataLoader", "DataLoader, ours"),
    ("ours", "PoolLoader", "PoolLoader, ours"),
    ("ours", "gather", "gather() into one array, ours"),
    ("ours", "heap", "DataLoader over tensors in memory"),
    ("ours", "heap, 2 workers", "DataLoader over tensors in memory, 2 workers"),
)
CROPS = (
    ("0.1.0", "DataLoader, crop", "crop: DataLoader, 0.1.0"),
    ("ours", "DataLoader, crop", "crop: DataLoader, ours"),
    ("ours", "DataLoader, crop=", "crop: DataLoader with crop=, ours"),
    ("ours", "PoolLoader, crop", "crop: PoolLoader, ours"),
)
ITEMS = (
    ("0.1.0", "item, crop", "single item, cropped by a transform, 0.1.0"),
    ("ours", "item, crop", "single item, cropped by a transform, ours"),
)
LIMITS = {"limit: gather in C, one thread": 1, "limit: gather in C, all cores": 0}


def measure(bench: Bench) -> Report:
    report = Report(
        "batch", f"batches of {BATCH} chunks of 8 MiB (int16), and of 16x128x128 crops of them"
    )
    readers = {}
    for side in bench.have("ours", "0.1.0"):
        bench.worker(side).call("batches.create", name=bench.name(f"batch-{side}"))
        readers[side] = bench.worker(side)
    crop = 2 * CROP[0] * CROP[1] * CROP[2]
    for ways, size in ((WAYS, BATCH * CHUNK), (CROPS, BATCH * crop), (ITEMS, crop)):
        turns = {}
        for side, way, title in ways:
            if side in readers:
                worker = readers[side]
                worker.call("batches.start", way=way, name=bench.name(f"batch-{side}"))
                turns[title] = partial(
                    worker.call, "batches.time_batches", way=way, count=bench.pick(6, 4)
                )
        if ways is WAYS:
            limit = bench.worker("ours")
            limit.call(
                "limits.start",
                library=str(build(BUILD)),
                name=bench.name("limit"),
                size_bytes=SLOTS * CHUNK,
                source_bytes=SLOTS * CHUNK,
            )
            for title, threads in LIMITS.items():
                turns[title] = partial(
                    limit.call,
                    "limits.gather",
                    items=BATCH,
                    size=CHUNK,
                    threads=threads or bench.cores,
                    count=bench.pick(6, 4),
                )
        report.payload |= dict.fromkeys(turns, size)
        report.series |= interleave(bench.pick(21, 5), turns)
    best = min(LIMITS, key=lambda title: statistics.median(report.series[title]))
    old = "DataLoader, 0.1.0"
    report.lines += [
        Line("DataLoader: times as fast as 0.1.0", old, "DataLoader, ours", at_least(4)),
        Line("PoolLoader: times as fast as 0.1.0", old, "PoolLoader, ours", at_least(7)),
        Line(f"PoolLoader: part of the {best}", best, "PoolLoader, ours", at_least(0.85)),
        Line(f"gather(): part of the {best}", best, "gather() into one array, ours"),
        Line(
            "DataLoader: times as fast as torch over tensors in memory",
            "DataLoader over tensors in memory",
            "DataLoader, ours",
        ),
        Line(
            "PoolLoader: times as fast as torch over tensors in memory, 2 workers",
            "DataLoader over tensors in memory, 2 workers",
            "PoolLoader, ours",
        ),
        Line(
            "crop: PoolLoader: times as fast as 0.1.0",
            "crop: DataLoader, 0.1.0",
            "crop: PoolLoader, ours",
            at_least(9),
        ),
        Line(
            "crop: DataLoader: times as fast as 0.1.0",
            "crop: DataLoader, 0.1.0",
            "crop: DataLoader, ours",
        ),
        Line(
            "crop: DataLoader with crop=: times as fast as with a transform that crops",
            "crop: DataLoader, ours",
            "crop: DataLoader with crop=, ours",
            at_least(5),
        ),
        Line(
            "single item, cropped by a transform: ours / 0.1.0",
            "single item, cropped by a transform, ours",
            "single item, cropped by a transform, 0.1.0",
            at_most(0.7),
        ),
    ]
    return report
