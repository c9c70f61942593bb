"""What attaching to a pool and detaching from it cost."""

from __future__ import annotations

from functools import partial

from harness import Bench, interleave
from report import Line, Report, at_most

POOLS = {"64 slots": (64, 1 << 20), "100,000 slots": (100_000, 64)}


def measure(bench: Bench) -> Report:
    report = Report("attach", "attach, one get() and detach, in a process that has done so before")
    turns = {}
    for label, (slots, chunk) in POOLS.items():
        for side in bench.have("ours", "0.1.0"):
            maker, user = bench.worker(side), bench.worker(side, bench.cpu)
            name = bench.name(f"attach-{slots}-{side}")
            maker.call("vectors.create", name=name, slots=slots, chunk=chunk)
            for kind, held in (("first handle", False), ("further handle", True)):
                turns[f"{label}, {kind}, {side}"] = partial(
                    user.call, "vectors.attach", name=name, calls=30, held=held
                )
    report.series |= interleave(bench.pick(31, 11), turns)
    for label in POOLS:
        for kind, limit in (("first handle", 2.0), ("further handle", 0.3)):
            series = f"{label}, {kind}"
            wanted = at_most(limit) if label == "64 slots" else None
            report.lines.append(
                Line(f"{series}, ours / 0.1.0", f"{series}, ours", f"{series}, 0.1.0", wanted)
            )
    return report
