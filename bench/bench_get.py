"""What get() costs next to 0.1.0: `python bench/bench_get.py [--quick]`.

Both packages run at the same time, each in its own environment and worker process, and take turns
round by round, so that a busy machine slows both alike: compare the ratios, not the nanoseconds.

Measured: get() and release in one process; the same while a second process does it on the same
slot; attach and detach of a pool of 100,000 slots. Prints medians and ratios with their spread,
writes build/bench/get.json. The worker half of this file runs in both packages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "build" / "bench" / "get.json"
BIG_SLOTS = 100_000
BIG_CHUNK = 64


# --- worker: one package, one process ---------------------------------------------------------


def worker_main(name: str) -> None:
    """Serve one-line JSON requests on standard input until it ends."""
    import gc

    import numpy as np

    import sharedvector as sv

    # A collection in the middle of a round would be charged to one package.
    gc.disable()
    vector: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        verb = request["verb"]
        answer: Any = None
        if verb == "create":
            vector = sv.SharedVector(name, chunk_size=1 << 16, max_memory_size=1 << 20)
            vector.append(np.zeros((64, 64), dtype=np.float32))
        elif verb == "open":
            vector = sv.SharedVector(name, create=False)
        elif verb == "get":
            answer = time_get(vector.get, request["calls"])
        elif verb == "spin":
            time_get(vector.get, request["calls"], until=request["seconds"])
        elif verb == "fill":
            answer = fill_big(sv, np, f"{name}-big")
        elif verb == "attach":
            answer = time_attach(sv.SharedVector, f"{name}-big", request["calls"])
        elif verb == "remove":
            vector = None
            for segment in (name, f"{name}-big"):
                sv.remove_shared_memory(segment)
        print(json.dumps({"done": verb, "answer": answer}), flush=True)


def time_get(get: Callable[[int], object], calls: int, until: float = 0.0) -> float:
    """Nanoseconds per get() with release of the view; repeats for `until` seconds."""
    end = time.monotonic() + until
    while True:
        indices = [0] * calls
        start = time.perf_counter_ns()
        for index in indices:
            get(index)
        taken = time.perf_counter_ns() - start
        if time.monotonic() >= end:
            return taken / calls


def fill_big(sv: Any, np: Any, name: str) -> int:
    """Create and fill a segment of BIG_SLOTS slots; returns how many it holds."""
    chunk = np.zeros(BIG_CHUNK // 4, dtype=np.float32)
    vector = sv.SharedVector(name, chunk_size=BIG_CHUNK, max_memory_size=BIG_SLOTS * 640)
    with contextlib.suppress(sv.OutOfMemoryError):
        for _ in range(BIG_SLOTS):
            vector.append(chunk)
    return len(vector)


def time_attach(vector: Any, name: str, calls: int) -> float:
    """Nanoseconds per attach, first get() and detach; the median of `calls`."""
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        handle = vector(name, create=False)
        handle.get(BIG_SLOTS // 2)
        del handle
        times.append(time.perf_counter_ns() - start)
    return float(statistics.median(times))


# --- driver -----------------------------------------------------------------------------------


class Worker:
    """A worker process of one package."""

    def __init__(self, python: Path, name: str, cpu: int | None) -> None:
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).resolve()), "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin: IO[str] = self._process.stdin
        self._stdout: IO[str] = self._process.stdout
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})

    def ask(self, verb: str, **values: object) -> None:
        self._stdin.write(json.dumps({"verb": verb, **values}) + "\n")
        self._stdin.flush()

    def answer(self) -> Any:
        line = self._stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with exit code {self._process.wait()}")
        return json.loads(line)["answer"]

    def call(self, verb: str, **values: object) -> Any:
        self.ask(verb, **values)
        return self.answer()

    def close(self) -> None:
        self._stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Side:
    """The two processes of one package: one that is measured, one that gets in its way."""

    main: Worker
    other: Worker


@dataclass(frozen=True)
class Sizes:
    rounds: int
    calls: int
    attach_rounds: int
    attach_calls: int


def measure(sides: dict[str, Side], sizes: Sizes) -> dict[str, list[float]]:
    """Samples by "<measurement>.<side>", one per round, the sides taking turns."""
    samples: dict[str, list[float]] = {}
    for side in sides.values():
        side.main.call("create")
        side.other.call("open")
        side.main.call("get", calls=sizes.calls)
    for round_number in range(sizes.rounds):
        for label, side in turns(sides, round_number):
            alone = side.main.call("get", calls=sizes.calls)
            # The other process must be at work from before the measurement until after its end.
            expected = 1e-9 * alone * sizes.calls
            side.other.ask("spin", calls=1000, seconds=0.02 + 3 * expected)
            time.sleep(0.01)
            shared = side.main.call("get", calls=sizes.calls)
            side.other.answer()
            samples.setdefault(f"alone.{label}", []).append(alone)
            samples.setdefault(f"shared.{label}", []).append(shared)
    for label, side in sides.items():
        slots = side.main.call("fill")
        if slots != BIG_SLOTS:
            raise RuntimeError(f"{label}: the big pool holds {slots} slots, wanted {BIG_SLOTS}")
    for round_number in range(sizes.attach_rounds):
        for label, side in turns(sides, round_number):
            taken = side.other.call("attach", calls=sizes.attach_calls)
            samples.setdefault(f"attach.{label}", []).append(taken)
    return samples


def turns(sides: dict[str, Side], round_number: int) -> Iterator[tuple[str, Side]]:
    """The sides, each first in every second round."""
    items = list(sides.items())
    yield from items if round_number % 2 == 0 else reversed(items)


def spread(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartile_low": low, "quartile_high": high}


def ratio(upper: list[float], lower: list[float]) -> dict[str, float]:
    """Spread of the ratio round by round."""
    return spread([a / b for a, b in zip(upper, lower, strict=True)])


def summarise(samples: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "nanoseconds": {name: spread(values) for name, values in sorted(samples.items())},
        "ratios": {
            "get, ours / 0.1.0": ratio(samples["alone.new"], samples["alone.old"]),
            "get with two processes on one slot, ours / 0.1.0": ratio(
                samples["shared.new"], samples["shared.old"]
            ),
            "two processes / alone, ours": ratio(samples["shared.new"], samples["alone.new"]),
            "two processes / alone, 0.1.0": ratio(samples["shared.old"], samples["alone.old"]),
            f"attach to {BIG_SLOTS:,} slots, ours / 0.1.0": ratio(
                samples["attach.new"], samples["attach.old"]
            ),
        },
    }


def print_summary(summary: dict[str, Any]) -> None:
    names = {"alone": "get + release", "shared": "same, two processes", "attach": "attach + detach"}
    print(f"{'':<28}{'0.1.0':>14}{'ours':>14}   median, ns")
    for key, label in names.items():
        old, new = (summary["nanoseconds"][f"{key}.{side}"]["median"] for side in ("old", "new"))
        print(f"{label:<28}{old:>14,.0f}{new:>14,.0f}")
    print(f"\n{'ratio':<52}{'median':>8}   quartiles")
    for label, value in summary["ratios"].items():
        low, high = value["quartile_low"], value["quartile_high"]
        print(f"{label:<52}{value['median']:>8.3f}   {low:.3f} to {high:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="get() and attach next to 0.1.0, as ratios.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--old", type=Path, help="python with sharedvector 0.1.0")
    parser.add_argument("--new", type=Path, help="python with this tree installed")
    parser.add_argument("--json", type=Path, default=RESULT, help="where the figures go")
    parser.add_argument("--worker", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        worker_main(arguments.worker)
        return 0
    pythons = {"old": arguments.old, "new": arguments.new}
    if None in pythons.values():
        sys.path.insert(0, str(ROOT / "tools"))
        from compare_env import environments

        made = dict(zip(("old", "new"), environments(), strict=True))
        pythons = {label: python or made[label] for label, python in pythons.items()}
    sizes = Sizes(9, 20_000, 7, 20) if arguments.quick else Sizes(41, 100_000, 21, 50)
    # The measured process and the one beside it on different cores, where there are two.
    cpus = sorted(os.sched_getaffinity(0))
    first, second = (cpus[0], cpus[1]) if len(cpus) > 1 else (None, None)
    print(f"{sizes.rounds} rounds of {sizes.calls:,} calls, packages taking turns", flush=True)
    with contextlib.ExitStack() as stack:
        sides = {}
        for label, python in pythons.items():
            name = f"svbench-{label}-{os.getpid()}"
            main_worker = Worker(python, name, first)
            stack.callback(main_worker.close)
            other_worker = Worker(python, name, second)
            stack.callback(other_worker.close)
            sides[label] = Side(main_worker, other_worker)
        try:
            summary = summarise(measure(sides, sizes))
        finally:
            for label in sides:
                for left in Path("/dev/shm").glob(f"svbench-{label}-{os.getpid()}*"):
                    left.unlink(missing_ok=True)
    print_summary(summary)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nwritten to {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
