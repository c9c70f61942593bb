"""What a further consumer process costs in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Bench, Worker
from report import Line, Report, at_most

CHUNK = 1 << 20
SLOTS = 64
CONSUMERS = (1, 8)


def measure(bench: Bench) -> Report:
    report = Report("memory", "proportional memory (PSS) of consumers that read a pool of 64 MiB")
    report.series |= {
        "PSS per further consumer": [],
        "PSS of one interpreter with NumPy and the package": [],
    }
    for number in range(bench.pick(3, 1)):
        extra, interpreter = _one_round(bench, number)
        report.series["PSS per further consumer"].append(extra)
        report.series["PSS of one interpreter with NumPy and the package"].append(interpreter)
    report.lines += [
        Line(
            "each further consumer, beyond its interpreter",
            "PSS per further consumer",
            None,
            at_most(1.0),
            "MiB",
        ),
        Line(
            "an interpreter with NumPy and the package, for comparison",
            "PSS of one interpreter with NumPy and the package",
            None,
            unit="MiB",
        ),
    ]
    report.notes.append(
        "Counted: the growth of PSS (own and shared memory, not libraries) of all attached "
        "processes together when they attach and read "
        "every slot, with 8 consumers less that with 1, by 7. Pages of the pool are shared and "
        "count once in that sum, however many read them. Page tables are not part of PSS."
    )
    return report


def _one_round(bench: Bench, number: int) -> tuple[float, float]:
    """MiB for a further consumer, and those of an idle interpreter."""
    few, many = CONSUMERS
    name = bench.name(f"memory-{number}")
    maker = bench.worker("ours")
    maker.call("vectors.create", name=name, slots=SLOTS, chunk=CHUNK)
    consumers = [bench.worker("ours") for _ in range(many)]
    for consumer in consumers:
        consumer.call("bench_memory.import_package")
    growth = {}
    idle = _pss(consumers, pool_only=False)
    before = _pss([maker, *consumers], pool_only=True)
    for place, consumer in enumerate(consumers):
        consumer.call("bench_memory.attach_and_read", name=name)
        if place + 1 in CONSUMERS:
            growth[place + 1] = _pss([maker, *consumers], pool_only=True) - before
    for worker in [maker, *consumers]:
        worker.close()
    return (growth[many] - growth[few]) / (many - few) / (1 << 20), idle / many / (1 << 20)


def _pss(workers: list[Worker], *, pool_only: bool) -> int:
    """Bytes of proportional memory, all of them together; `pool_only`: not of files on disk.

    Pages of libraries are shared with whatever other Python processes the machine runs, which come
    and go meanwhile.
    """
    total = 0
    for worker in workers:
        for line in Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:") if pool_only else "Pss:"):
                total += int(line.split()[1]) << 10
    return total


# --- in the workers -----------------------------------------------------------------------------


def import_package(state: dict[str, Any]) -> None:
    import vectors  # noqa: F401


def attach_and_read(state: dict[str, Any], name: str) -> None:
    import vectors

    vectors.open_(state, name)
    vector = state["vector"]
    for slot in range(len(vector)):
        array = vector.get(slot)
        if array[0] != slot or array.sum() != slot:
            raise RuntimeError(f"slot {slot} does not hold what was written")
