"""Worker processes, one per package, that take turns; what a question of the benchmark is given."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "bench"
SHM = Path("/dev/shm")
ANSWER_SECONDS = 300.0  # for one request
END_SECONDS = 20.0


class BenchError(RuntimeError):
    """A worker failed, or what it read is not what was written."""


class Worker:
    """A process of one environment that serves the functions of this folder; see worker.py.

    Args:
        python: interpreter of the environment.
        cpu: the only core that it may use; None: all.
        environment: added to this process's.
    """

    def __init__(
        self, python: Path, cpu: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        self._rest = b""
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, **arguments: object) -> None:
        """Send a request; `answer` has to be called before the next one."""
        assert self._process.stdin is not None
        line = json.dumps({"call": call, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{call}: the worker has ended") from None

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        """What the request gives. BenchError when it fails or takes too long."""
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            if not poll.poll(int(left * 1000)):
                self._process.kill()
                raise BenchError(f"no answer within {seconds:.0f} s")
            data = os.read(stream, 1 << 16)
            if not data:
                status = self._process.wait(timeout=END_SECONDS)
                raise BenchError(f"a worker ended with exit status {status}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise BenchError(f"a worker failed:\n{reply['error']}")
        return reply["answer"]

    def call(self, call: str, **arguments: object) -> Any:
        self.ask(call, **arguments)
        return self.answer()

    def close(self) -> None:
        """End the process: by the end of its input, else by force."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=END_SECONDS)
        self._process.stdout.close()


class Bench:
    """What a question is given: environments, workers and names that do not outlive it.

    Args:
        pythons: interpreter by side: "ours", "0.1.0", "stdlib", ...
        quick: fewer rounds and smaller data.
    """

    def __init__(self, pythons: Mapping[str, Path], *, quick: bool) -> None:
        self.pythons = dict(pythons)
        self.quick = quick
        self._stack = contextlib.ExitStack()
        self._tag = f"svbench-{os.getpid()}"
        cpus = sorted(os.sched_getaffinity(0))
        # The measured process and the one beside it on different cores, where there are two.
        several = len(cpus) > 1
        self.cpu: int | None = cpus[0] if several else None
        self.other_cpu: int | None = cpus[1] if several else None
        self.cores = len(cpus)

    def __enter__(self) -> Self:
        self._stack.callback(self._remove_files)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def have(self, *sides: str) -> list[str]:
        """Those of the sides that could be installed."""
        return [side for side in sides if side in self.pythons]

    def name(self, tag: str) -> str:
        """Name of a segment; what is left of it is removed after the question."""
        return f"{self._tag}-{tag}"

    def worker(
        self, side: str, cpu: int | None = None, environment: Mapping[str, str] | None = None
    ) -> Worker:
        """A worker of a side, ended after the question."""
        worker = Worker(self.pythons[side], cpu, environment)
        self._stack.callback(worker.close)
        return worker

    def folder(self) -> Path:
        """An empty folder on disk, removed after the question."""
        import tempfile

        holder = tempfile.TemporaryDirectory(prefix=self._tag)
        self._stack.enter_context(holder)
        return Path(holder.name)

    def _remove_files(self) -> None:
        for left in [*SHM.glob(f"{self._tag}-*"), *SHM.glob(f".{self._tag}-*")]:
            left.unlink(missing_ok=True)


def interleave(
    rounds: int, turns: Mapping[str, Callable[[], float]], warm_up: int = 1
) -> dict[str, list[float]]:
    """One sample per round of each turn; who goes first changes from round to round.

    A busy machine then slows all of them alike, so that ratios within a round stay true.
    """
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(-warm_up, rounds):
        for name in _order(list(turns), number):
            value = turns[name]()
            if number >= 0:
                samples[name].append(value)
    return samples


def _order(names: list[str], number: int) -> Iterator[str]:
    shift = number // 2 % len(names)
    turned = names[shift:] + names[:shift]
    yield from turned if number % 2 == 0 else reversed(turned)


def per_index(call: Callable[[int], object], indices: list[int], batch: int = 500) -> float:
    """Seconds per call, each with the next index; for use in workers.

    The median over batches: on a busy machine a process loses its core in the middle of some. A
    batch of one call is for calls so long that they all lose it: the fastest of them counts.
    """
    times = []
    for first in range(0, len(indices), batch):
        part = indices[first : first + batch]
        start = time.perf_counter_ns()
        for index in part:
            call(index)
        times.append((time.perf_counter_ns() - start) / len(part))
    return 1e-9 * (min(times) if batch == 1 else statistics.median(times))
