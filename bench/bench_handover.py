"""Handing arrays over, next to packages that do only that."""

from __future__ import annotations

from functools import partial

from harness import Bench, interleave
from report import Line, Report

SIZES = {"64 KiB": 64 << 10, "8 MiB": 8 << 20}
# Way by side, and what the table calls it.
WAYS = (
    ("ours", "shared vector", "ours"),
    ("ours", "in place", "ours, in place"),
    ("0.1.0", "shared vector", "0.1.0"),
    ("ours", "stdlib", "SharedMemory"),
    ("iceoryx2", "iceoryx2", "iceoryx2"),
    ("iceoryx2", "iceoryx2 in place", "iceoryx2, in place"),
    ("SPDL", "spdl", "SPDL segment pool"),
)


def measure(bench: Bench) -> Report:
    report = Report(
        "handover", "an array is copied in, made available, viewed and dropped, in one process"
    )
    ways = [way for way in WAYS if way[0] in bench.pythons]
    turns = {}
    for label, size in SIZES.items():
        for number, (side, way, title) in enumerate(ways):
            worker = bench.worker(side)
            worker.call(
                "handover.start",
                way=way,
                name=bench.name(f"handover-{size}-{number}"),
                size=size,
                folder=str(bench.folder()),
            )
            calls, batch = (10, 1) if size >= 1 << 20 else (1000, 50)
            turns[f"{label}, {title}"] = partial(
                worker.call, "handover.time_handover", calls=calls, batch=batch
            )
            if "in place" not in way:
                report.payload[f"{label}, {title}"] = size
    report.series |= interleave(bench.pick(21, 9), turns)
    for label in SIZES:
        for _, way, title in ways:
            ours = "ours, in place" if "in place" in way else "ours"
            if title != ours:
                report.lines.append(
                    Line(f"{label}: {ours} / {title}", f"{label}, {ours}", f"{label}, {title}")
                )
    report.notes.append(
        "SharedMemory alone protects nothing: its reader may see the next array half written. "
        "iceoryx2 and SPDL are queues: each array is delivered, and is gone when it was read."
    )
    return report
