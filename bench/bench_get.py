"""What get() and the release of its view cost, alone and in company, in small pools and large."""

from __future__ import annotations

import time
from functools import partial

from harness import BUILD, Bench, Worker, interleave
from limits import build
from report import Line, Report, at_most

SLOTS = (16, 1_000, 100_000)
ROWS = (1, 16, 64, 256)
CHUNK = 4096
HOT = 16


def measure(bench: Bench) -> Report:
    report = Report("get", "get() and release of its view")
    _alone_and_shared(bench, report)
    _slots(bench, report)
    _rows(bench, report)
    return report


def _alone_and_shared(bench: Bench, report: Report) -> None:
    rounds, calls = bench.pick(41, 15), bench.pick(50_000, 20_000)
    turns = {}
    for side in bench.have("ours", "0.1.0"):
        main, other = bench.worker(side, bench.cpu), bench.worker(side, bench.other_cpu)
        main.call("vectors.create", name=bench.name(f"get-{side}"), slots=64, chunk=CHUNK)
        other.call("vectors.open_", name=bench.name(f"get-{side}"))
        turns[f"alone, {side}"] = partial(main.call, "vectors.get_one", calls=calls)
        turns[f"two processes, {side}"] = partial(_shared, main, other, calls)
    stdlib = bench.worker("ours", bench.cpu)
    stdlib.call("handover.create_stdlib", name=bench.name("get-stdlib"), size=CHUNK)
    turns["array over SharedMemory.buf"] = partial(
        stdlib.call, "handover.get_stdlib", calls=calls // 4
    )
    limit = bench.worker("ours", bench.cpu)
    name = bench.name("limit")
    limit.call(
        "limits.start", library=str(build(BUILD)), name=name, size_bytes=1 << 20, source_bytes=4096
    )
    turns["two atomic additions"] = partial(
        limit.call, "limits.atomic", calls=calls, places=1, stride=64
    )
    report.series |= interleave(rounds, turns)
    report.lines += [
        Line("get + release, ours / 0.1.0", "alone, ours", "alone, 0.1.0", at_most(0.25)),
        Line(
            "two processes on one slot / alone, ours",
            "two processes, ours",
            "alone, ours",
            at_most(1.15),
        ),
        Line("two processes on one slot / alone, 0.1.0", "two processes, 0.1.0", "alone, 0.1.0"),
        Line(
            "ours / array over SharedMemory.buf, no pin",
            "alone, ours",
            "array over SharedMemory.buf",
        ),
    ]


def _shared(main: Worker, other: Worker, calls: int) -> float:
    """get() while the other process does the same on the same slot."""
    other.ask("vectors.get_one", calls=1000, seconds=0.02 + 2e-6 * calls)
    time.sleep(0.01)  # it must be at work before the measurement begins
    taken = float(main.call("vectors.get_one", calls=calls))
    other.answer()
    return taken


def _slots(bench: Bench, report: Report) -> None:
    rounds, calls = bench.pick(31, 11), bench.pick(50_000, 20_000)
    turns = {}
    for slots in SLOTS:
        worker = bench.worker("ours", bench.cpu)
        worker.call("vectors.create", name=bench.name(f"slots-{slots}"), slots=slots, chunk=CHUNK)
        for kind, hot in (("16 of them", HOT), ("all of them", None)):
            turns[f"{slots:,} slots, {kind}"] = partial(
                worker.call, "vectors.get", calls=calls, hot=hot
            )
    limit = bench.worker("ours", bench.cpu)
    limit.call(
        "limits.start",
        library=str(build(BUILD)),
        name=bench.name("limit"),
        size_bytes=SLOTS[-1] * 1024,
        source_bytes=4096,
    )
    for slots in (SLOTS[0], SLOTS[-1]):
        turns[f"two atomic additions, {slots:,} words"] = partial(
            limit.call, "limits.atomic", calls=calls, places=slots, stride=1024
        )
    report.series |= interleave(rounds, turns)
    small, large = f"{SLOTS[0]:,}", f"{SLOTS[-1]:,}"
    report.lines += [
        Line(
            f"{large} slots / {small}, 16 random slots used",
            f"{large} slots, 16 of them",
            f"{small} slots, 16 of them",
            at_most(1.1),
        ),
        Line(
            f"{large} slots / {small}, all used at random",
            f"{large} slots, all of them",
            f"{small} slots, all of them",
        ),
        Line(
            f"the machine: atomic addition, {large} words / {small}",
            f"two atomic additions, {large} words",
            f"two atomic additions, {small} words",
        ),
    ]
    report.notes.append(
        "With all of 100,000 slots in use every get() touches lines of memory that no cache holds "
        "any more; the machine's own factor for one such line is in the table."
    )


def _rows(bench: Bench, report: Report) -> None:
    rounds, calls = bench.pick(15, 7), bench.pick(50_000, 20_000)
    turns = {}
    for rows in ROWS:
        worker = bench.worker("ours", bench.cpu)
        name = bench.name(f"rows-{rows}")
        worker.call("vectors.create", name=name, slots=64, chunk=CHUNK)
        worker.call("vectors.crowd", name=name, count=rows)
        turns[f"{rows} processes attached"] = partial(worker.call, "vectors.get", calls=calls)
    report.series |= interleave(rounds, turns)
    report.lines.append(
        Line(
            f"{ROWS[-1]} processes attached / 1",
            f"{ROWS[-1]} processes attached",
            "1 processes attached",
            at_most(1.1),
        )
    )
