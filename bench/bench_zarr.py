"""Zarr volumes into slots: this package's loader, that of 0.1.0, and decoding alone."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from pathlib import Path

from harness import Bench, Worker, interleave
from report import Line, Report, at_least, at_most
from volumes import SLOT_BYTES

LAYOUTS = {
    "blosc-lz4": 2.3,
    "uncompressed": 3.0,
    "zstd, 16-slice chunks": 1.8,
    "zstd, 1-slice chunks": 1.6,
    "zstd, shards of 1-slice chunks": None,
    "automatic chunks": 1.5,
    "float32 to int16": 2.2,
}
# How often loading and decoding alone go through all volumes in one turn: the first time the caches
# hold what ran before.
ROUNDS = 4
# Volumes of whole slabs: for those with a rest more chunks are decoded than slots are filled.
ALONE = ("zstd, no rest", "blosc-zstd, no rest")
MEMORY = "zstd, 16-slice chunks"
WORKERS = 2


def measure(bench: Bench) -> Report:
    report = Report(
        "zarr",
        f"volumes of 84 x 512 x 512 int16 into slots of 16 slices (8 MiB), {WORKERS} processes",
    )
    root, writer = bench.folder(), bench.worker("ours")
    # As the producers of a pool run: codecs do not start threads of their own beside them.
    alone = {"BLOSC_NTHREADS": "1"}
    sides = {
        side: [bench.worker(side, environment=alone) for _ in range(WORKERS)]
        for side in bench.have("ours", "0.1.0")
    }
    decoders = [bench.worker("ours", environment=alone) for _ in range(WORKERS)]
    layouts = {name: aim for name, aim in LAYOUTS.items() if aim or not bench.quick}
    for number, layout in enumerate([*layouts, *ALONE]):
        folder = root / str(number)
        folder.mkdir()
        ratio = writer.call(
            "volumes.write", folder=str(folder), layout=layout, count=bench.pick(3, 1)
        )
        report.notes.append(f"{layout}: {ratio:.2f} bytes stored per byte")
        _layout(bench, report, layout, folder, sides, decoders)
        shutil.rmtree(folder)
    for layout, wanted in layouts.items():
        report.lines.append(
            Line(
                f"{layout}: times as fast as 0.1.0",
                f"{layout}, 0.1.0",
                f"{layout}, ours",
                at_least(wanted) if wanted else None,
            )
        )
    for layout in ALONE:
        for title, name, aim in (
            ("decode(out=)", "decoding alone", at_least(0.9)),
            ("reading and decode(out=)", "reading and decoding alone", None),
            ("decode(out=) into huge pages", "decoding alone into huge pages", None),
        ):
            report.lines.append(
                Line(
                    f"{layout}: part of the speed of {title} alone, processor time",
                    f"{layout}, {name}",
                    f"{layout}, ours",
                    aim,
                )
            )
    report.lines += [
        Line(
            f"{MEMORY}: peak of the heap, ours",
            "peak of the heap, ours",
            None,
            at_most(2),
            "slots",
        ),
        Line("... 0.1.0", "peak of the heap, 0.1.0", None, None, "slots"),
    ]
    report.notes.append(
        "The heap holds one encoded chunk and, for a volume that is turned, one decoded chunk."
    )
    return report


def _layout(
    bench: Bench,
    report: Report,
    layout: str,
    folder: Path,
    sides: dict[str, list[Worker]],
    decoders: list[Worker],
) -> None:
    turns = {}
    for side, workers in sides.items():
        if layout in ALONE and side != "ours":
            continue
        name = bench.name(f"zarr-{side}-{folder.name}")
        for part, worker in enumerate(workers):
            worker.call("volumes.start", folder=str(folder), name=name, create=part == 0, part=part)
        for worker in workers:
            worker.call("volumes.load", check=True)
        title = f"{layout}, {side}"
        if layout in ALONE:
            turns[title] = partial(
                _processor,
                workers,
                "volumes.load",
                check=False,
                clock="process_time",
                turn=False,
                repeat=ROUNDS,
            )
        else:
            turns[title] = partial(_together, workers, "volumes.load", check=False)
            report.payload[title] = SLOT_BYTES
    if layout in ALONE:
        for part, worker in enumerate(decoders):
            name = bench.name(f"decode-{part}-{folder.name}")
            worker.call("volumes.start_decode", folder=str(folder), name=name)
        for title, into, reading in (
            ("decoding alone", "slots", False),
            ("reading and decoding alone", "slots", True),
            ("decoding alone into huge pages", "heap", False),
        ):
            turns[f"{layout}, {title}"] = partial(
                _processor, decoders, "volumes.decode", repeat=ROUNDS, into=into, reading=reading
            )
    report.series |= interleave(bench.pick(15, 4), turns)
    for side, workers in sides.items():
        if f"{layout}, {side}" not in turns:
            continue
        if layout == MEMORY:
            report.series[f"peak of the heap, {side}"] = [workers[0].call("volumes.memory")]
        workers[0].call("vectors.remove")
    if layout in ALONE:
        for worker in decoders:
            worker.call("volumes.stop_decode")


def _together(workers: list[Worker], call: str, **arguments: object) -> float:
    """Seconds per slot while all are at work: as long as the slowest, by the number of slots."""
    return max(_answers(workers, call, arguments)) / len(workers)


def _processor(workers: list[Worker], call: str, **arguments: object) -> float:
    """Processor seconds per slot while all are at work."""
    return statistics.mean(_answers(workers, call, arguments))


def _answers(workers: list[Worker], call: str, arguments: dict[str, object]) -> list[float]:
    for worker in workers:
        worker.ask(call, **arguments)
    return [float(worker.answer()) for worker in workers]
