"""``python -m sharedvector bench share``: the fastest way of giving an array to workers."""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sharedvector._common import integer
from sharedvector.cli.bench.jobs import METHODS, Job, Method, Workers
from sharedvector.cli.bench.report import Measured, Outcome, bytes_text, describe, describe_sweep

__all__ = ["add_arguments", "measure", "run"]

_WARM_ROUNDS = 2
_LARGE_BYTES, _LARGE_ROUNDS = 10**8, 7  # in a sweep: rounds of seconds
_SWEEP_BYTES = (10_000, 100_000, 1_000_000, 10_000_000, 80_000_000, 800_000_000)
_SWEEP_KEYS = ("in_process", "empty", "threads", "shared", "share", "attached", "recipe", "slices")


def measure(
    workers: Workers, size_bytes: int, rounds: int, methods: Sequence[Method] = METHODS
) -> Measured:
    """Do the job by every method, in rounds in which another one comes first each time.

    Args:
        workers: that do it.
        size_bytes: of the float64 array, at least 8 for each worker.
        rounds: that count; two more before them do not.
        methods: "in_process" and "empty" among them.

    Raises:
        RuntimeError: a method has given other sums than this process.
        OSError: shared memory has no room for the array.
    """
    least = 8 * workers.count
    integer("size_bytes", size_bytes, least)
    integer("rounds", rounds, 1)
    with (
        tempfile.TemporaryDirectory(prefix="sharedvector-bench-") as folder,
        Job(workers, size_bytes, Path(folder)) as job,
    ):
        outcomes = {
            method.key: Outcome(method.label, note=method.left_out(job)) for method in methods
        }
        present = [method for method in methods if not outcomes[method.key].note]
        pickled = len(pickle.dumps(job.shared[slice(*job.bounds[-1])]))
        for number in range(-_WARM_ROUNDS, rounds):
            start = number % len(present)
            turns = present[start:] + present[:start]
            _round(job, turns if number % 2 else turns[::-1], number, outcomes)
        _note_whole(job, outcomes)
    return Measured(size_bytes, workers.count, workers.start_method, pickled, outcomes)


def _round(job: Job, turns: Sequence[Method], number: int, outcomes: dict[str, Outcome]) -> None:
    took = {}
    for method in turns:
        # What is done rarely is not done to warm up.
        if number < method.rounds and (number >= 0 or method.rounds > _WARM_ROUNDS):
            took[method.key] = _time(job, method)
    if number < 0:
        return
    base = took["in_process"] + took["empty"]
    for key, seconds in took.items():
        outcomes[key].seconds.append(seconds)
        outcomes[key].ratios.append(seconds / base)


def _time(job: Job, method: Method) -> float:
    with method.given(job) as given:
        gc.collect()
        gc.disable()
        try:
            began = time.perf_counter()
            sums = method.run(job, given)
            seconds = time.perf_counter() - began
        finally:
            gc.enable()
    expected = [0.0] * len(job.sums) if method.key == "empty" else job.sums
    if method.key == "whole":
        expected = expected[: job.whole_tasks()]
    if sums != expected:
        raise RuntimeError(f"{method.label}: the sums are {sums}, in this process {expected}")
    return seconds * len(job.sums) / len(sums)


def _note_whole(job: Job, outcomes: dict[str, Outcome]) -> None:
    if "whole" in outcomes and outcomes["whole"].seconds:
        sent, total = job.whole_tasks(), len(job.bounds)
        outcomes["whole"].note = "one round"
        if sent < total:
            outcomes["whole"].note = f"one round of {sent} of {total} tasks, times {total / sent:g}"


def _sweep(workers: Workers, rounds: int, largest: int) -> list[Measured]:
    """Measure the quicker methods at each size that the machine has room for."""
    sizes = [size for size in _SWEEP_BYTES if 8 * workers.count <= size <= largest]
    methods = [method for method in METHODS if method.key in _SWEEP_KEYS]
    runs = []
    for size in sizes:
        print(f"{bytes_text(size)} ...", file=sys.stderr, flush=True)
        try:
            count = min(rounds, _LARGE_ROUNDS) if size > _LARGE_BYTES else rounds
            runs.append(measure(workers, size, count, methods))
        except TimeoutError:
            raise
        except (OSError, MemoryError) as error:
            print(f"{bytes_text(size)} left out: {error}", file=sys.stderr)
    if not runs:
        raise OSError("no size could be measured: the smallest is 10 kB, --mb the largest")
    return runs


# ---- the command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of `run`."""
    parser.add_argument("--mb", type=float, help="size of the array in MB (80; --quick: 8)")
    parser.add_argument("--workers", type=int, default=8, help="workers, one slice each (8)")
    parser.add_argument("--rounds", type=int, help="rounds that count (20; --quick: 5)")
    parser.add_argument(
        "--start-method",
        choices=multiprocessing.get_all_start_methods(),
        default=multiprocessing.get_context().get_start_method(),
        help="of the processes (%(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="a first look, in seconds")
    parser.add_argument(
        "--sweep", action="store_true", help="sizes from 10 kB to 800 MB, or to --mb: where it pays"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="?",
        const=Path("share.png"),
        metavar="FILE",
        help="draw them (share.png); needs matplotlib",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print, write. 0; 130 after an interrupt.

    Raises:
        ValueError: an option makes no sense.
        RuntimeError: a method has given wrong sums; matplotlib is missing.
        OSError: there is no room, or a file cannot be written.
    """
    integer("--workers", options.workers, 1)
    rounds, megabytes = options.rounds, options.mb
    if rounds is None:
        rounds = 5 if options.quick else 20
    if megabytes is None:
        megabytes = 8 if options.quick else 800 if options.sweep else 80
    integer("--rounds", rounds, 1)
    if not 8 * options.workers <= megabytes * 1e6 < math.inf:
        raise ValueError(
            f"--mb should give each of {options.workers} workers at least one value of 8 bytes,"
            f" got {megabytes:g} MB"
        )
    size = int(megabytes * 1e6)
    for path in filter(None, (options.json, options.plot)):
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    draw = _drawing(options.plot) if options.plot else None
    signal.signal(signal.SIGTERM, _terminate)  # to remove what there is, as after an interrupt
    try:
        with Workers(options.workers, options.start_method) as workers:
            if options.sweep:
                runs = _sweep(workers, rounds, size)
                print(describe_sweep(runs))
            else:
                runs = [measure(workers, size, rounds)]
                print(describe(runs[0]))
    except KeyboardInterrupt:
        print("interrupted; everything is removed", file=sys.stderr)
        return 130
    if options.json:
        options.json.write_text(json.dumps([run.as_dict() for run in runs], indent=1) + "\n")
    if draw:
        draw(runs, options.plot)
    return 0


def _terminate(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _drawing(path: Path) -> Callable[[Sequence[Measured], Path], None]:
    """What draws; looked at before the measuring, which takes longer."""
    try:
        from sharedvector.cli.bench import chart
    except ImportError as error:
        raise RuntimeError(f"--plot needs matplotlib ({error}): pip install matplotlib") from None
    chart.check(path)
    return chart.draw
