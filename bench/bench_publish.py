"""What making a filled buffer current costs: the same for 1 MiB and for 1 GiB."""

from __future__ import annotations

from functools import partial

from harness import Bench, interleave
from report import Line, Report, at_most

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}


def measure(bench: Bench) -> Report:
    report = Report("publish", "publish() of a reserved buffer that has been filled")
    turns = {}
    for label, size in SIZES.items():
        worker = bench.worker("ours", bench.cpu)
        name = bench.name(f"publish-{size}")
        worker.call("vectors.create", name=name, slots=1, chunk=size, spare_buffers=1)
        turns[label] = partial(worker.call, "vectors.publish", size=size, calls=100)
    report.series |= interleave(bench.pick(31, 15), turns)
    report.lines += [
        Line("1 GiB / 1 MiB", "1 GiB", "1 MiB", at_most(1.2)),
        Line("1 GiB / 4 KiB", "1 GiB", "4 KiB"),
    ]
    return report
