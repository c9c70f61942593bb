"""What replace() costs: by size of the chunk and by number of slots."""

from __future__ import annotations

from functools import partial

from harness import BUILD, Bench, interleave
from limits import build
from report import Line, Report, at_least, at_most

SIZES = {"16 KiB": 16 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}
SLOTS = (16, 1_000, 100_000)
CHUNK = 4096
HOT = 16


def measure(bench: Bench) -> Report:
    report = Report("replace", "replace() of a slot: one copy and its publication")
    _sizes(bench, report)
    _slots(bench, report)
    return report


def _sizes(bench: Bench, report: Report) -> None:
    """Chunks of several sizes, to the slots of a pool of about 128 MiB at random."""
    turns = {}
    rounds = bench.pick(21, 9)
    for label, size in SIZES.items():
        slots = min(64, (128 << 20) // size)
        calls = min(2000, max(slots, (16 << 20) // size))
        settings = {"size": size, "calls": calls, "batch": 1 if size > 1 << 20 else 10}
        for side in bench.have("ours", "0.1.0"):
            worker = bench.worker(side)
            name = bench.name(f"{size}-{side}")
            worker.call("vectors.create", name=name, slots=slots, chunk=size)
            turns[f"{label}, {side}"] = partial(worker.call, "vectors.replace", **settings)
        limit = bench.worker("ours")
        limit.call(
            "limits.start",
            library=str(build(BUILD)),
            name=bench.name("limit"),
            size_bytes=slots * size,
            source_bytes=size,
        )
        for kind, streaming in (("streaming copy", True), ("memcpy", False)):
            turns[f"{label}, {kind}"] = partial(
                limit.call, "limits.copy", **settings, streaming=streaming
            )
        report.payload |= {
            f"{label}, {kind}": size for kind in ("ours", "0.1.0", "streaming copy", "memcpy")
        }
    report.series |= interleave(rounds, turns)
    for label, wanted in (("16 MiB", 1.3), ("1 MiB", 1.0), ("16 KiB", None)):
        report.lines.append(
            Line(
                f"{label}: times as fast as 0.1.0",
                f"{label}, 0.1.0",
                f"{label}, ours",
                at_least(wanted) if wanted else None,
            )
        )
    report.lines.append(
        Line(
            "16 MiB: part of the streaming copy's speed, one core",
            "16 MiB, streaming copy",
            "16 MiB, ours",
            at_least(0.9),
        )
    )
    report.lines.append(
        Line("16 MiB: times as fast as memcpy, one core", "16 MiB, memcpy", "16 MiB, ours")
    )


def _slots(bench: Bench, report: Report) -> None:
    """Small chunks, to random slots of pools of several sizes."""
    turns = {}
    rounds, calls = bench.pick(31, 11), bench.pick(20_000, 8_000)
    limit = bench.worker("ours", bench.cpu)
    limit.call(
        "limits.start",
        library=str(build(BUILD)),
        name=bench.name("limit"),
        size_bytes=SLOTS[-1] * CHUNK,
        source_bytes=CHUNK,
    )
    for slots in SLOTS:
        worker = bench.worker("ours", bench.cpu)
        worker.call("vectors.create", name=bench.name(f"slots-{slots}"), slots=slots, chunk=CHUNK)
        for kind, hot in (("16 of them", HOT), ("all of them", None)):
            turns[f"{slots:,} slots, {kind}"] = partial(
                worker.call, "vectors.replace", size=CHUNK, calls=calls, batch=100, hot=hot
            )
        turns[f"memcpy to {slots:,} places"] = partial(
            limit.call, "limits.scatter", size=CHUNK, calls=calls, places=slots
        )
    report.series |= interleave(rounds, turns)
    small, large = f"{SLOTS[0]:,}", f"{SLOTS[-1]:,}"
    report.lines += [
        Line(
            f"4 KiB: {large} slots / {small}, 16 random slots used",
            f"{large} slots, 16 of them",
            f"{small} slots, 16 of them",
            at_most(1.2),
        ),
        Line(
            f"4 KiB: {large} slots / {small}, all used at random",
            f"{large} slots, all of them",
            f"{small} slots, all of them",
        ),
        Line(
            f"the machine: memcpy of 4 KiB, {large} places / {small}",
            f"memcpy to {large} places",
            f"memcpy to {small} places",
        ),
    ]
    report.notes.append(
        "With all of 100,000 slots in use each chunk goes to memory that no cache holds; the "
        "machine's own factor for a bare memcpy to as many places is in the table."
    )
