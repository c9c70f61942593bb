"""How costs grow: with the size of a chunk and with the number of readers."""

from __future__ import annotations

import statistics
from functools import partial

from harness import Bench, Worker, interleave
from report import Line, Report

SIZES = {
    "4 KiB": 4 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "256 MiB": 256 << 20,
    "1 GiB": 1 << 30,
}
QUICK_LIMIT = 16 << 20
READERS = (1, 2, 4, 8)


def measure(bench: Bench) -> Report:
    report = Report(
        "growth", "get() and replace() by size of the chunk; get() by number of readers"
    )
    _chunks(bench, report)
    _readers(bench, report)
    return report


def _chunks(bench: Bench, report: Report) -> None:
    """A pool of one slot per size, one after the other: the largest takes 2 GiB."""
    rounds = bench.pick(9, 3)
    sizes = {label: size for label, size in SIZES.items() if not bench.quick or size <= QUICK_LIMIT}
    for label, size in sizes.items():
        worker = bench.worker("ours")
        name = bench.name(f"growth-{size}")
        worker.call("vectors.create", name=name, slots=1, chunk=size, spare_buffers=1)
        calls = max(2, min(2000, (64 << 20) // size))
        batch = 1 if size > 1 << 20 else 10
        turns = {
            f"get, {label}": partial(worker.call, "vectors.get_one", calls=20_000),
            f"replace, {label}": partial(
                worker.call, "vectors.replace", size=size, calls=calls, batch=batch
            ),
        }
        report.series |= interleave(rounds, turns)
        report.payload[f"replace, {label}"] = size
        worker.call("vectors.remove")
        worker.close()
    small, *_, large = sizes
    report.lines.append(Line(f"get: {large} / {small}", f"get, {large}", f"get, {small}"))


def _readers(bench: Bench, report: Report) -> None:
    maker = bench.worker("ours")
    name = bench.name("readers")
    maker.call("vectors.create", name=name, slots=64, chunk=4096)
    readers = [bench.worker("ours") for _ in range(max(READERS))]
    for reader in readers:
        reader.call("vectors.open_", name=name)
    turns = {
        f"{count} readers": partial(_together, readers[:count], bench.pick(200_000, 100_000))
        for count in READERS
    }
    report.series |= interleave(bench.pick(15, 7), turns)
    report.lines.append(
        Line(
            f"processor time of a get() with {READERS[-1]} readers / 1",
            f"{READERS[-1]} readers",
            "1 readers",
        )
    )


def _together(readers: list[Worker], calls: int) -> float:
    """Processor time of a get() while all read the same slots at once."""
    for reader in readers:
        reader.ask("vectors.get_cpu", calls=calls)
    return statistics.mean(float(reader.answer()) for reader in readers)
