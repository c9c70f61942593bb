"""What the tests of pools share: loaders that workers can import, names, processes with limits."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sharedvector import Chunk, ProducerSpec, SharedVector, no_meta
from sharedvector._producer.producer import Producer

HERE = Path(__file__).resolve().parent
LIMIT = 60.0  # seconds for one child process, or for what comes by itself; a test has 180
_numbers = itertools.count()


def unique(tag: str) -> str:
    """A pool name that no other test or process uses."""
    return f"svpool{os.getpid()}-{next(_numbers)}-{tag}"


class Constant:
    """Source ``i`` gives one chunk full of ``i + 1``."""

    def __init__(
        self,
        sources: int = 8,
        shape: tuple[int, ...] = (4, 8),
        delay: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        self.sources, self.shape, self.delay, self.dtype = sources, shape, delay, dtype

    def __len__(self) -> int:
        return self.sources

    def __call__(self, source_index: int) -> list[Chunk]:
        time.sleep(self.delay)
        return [Chunk(np.full(self.shape, source_index + 1, self.dtype), no_meta())]


class Gated(Constant):
    """Gives so many chunks at once, the others once a file is there."""

    def __init__(self, gate: str, free: int = 0, **more: Any) -> None:
        super().__init__(**more)
        self.gate, self.free = gate, free

    def __call__(self, source_index: int) -> list[Chunk]:
        if self.free <= 0:
            wait_for(lambda: os.path.exists(self.gate), 600)
        self.free -= 1
        return super().__call__(source_index)


class OneBad(Constant):
    def __call__(self, source_index: int) -> list[Chunk]:
        if source_index == 3:
            raise OSError("volume-003 is truncated")
        return super().__call__(source_index)


class AllBad(Constant):
    def __call__(self, source_index: int) -> list[Chunk]:
        raise OSError(f"volume-{source_index:03d} is truncated")


class Empty(Constant):
    def __call__(self, source_index: int) -> list[Chunk]:
        return []


class Dies(Constant):
    """Ends its process without a word at every source."""

    def __init__(self, status: int = 7) -> None:
        super().__init__()
        self.status = status

    def __call__(self, source_index: int) -> list[Chunk]:
        os._exit(self.status)


class DiesOnce(Constant):
    """Ends its process at source 3, and by SystemExit at source 4."""

    def __call__(self, source_index: int) -> list[Chunk]:
        if source_index == 3:
            os._exit(7)
        if source_index == 4:
            sys.exit("a loader that gives up")
        return super().__call__(source_index)


class Walkout(Constant):
    """Raises something that is meant to end the process."""

    def __init__(self, what: BaseException) -> None:
        super().__init__()
        self.what = what

    def __call__(self, source_index: int) -> list[Chunk]:
        raise self.what


class Stubborn(Constant):
    """Hangs at its third chunk and does not listen to SIGTERM."""

    calls = 0

    def __call__(self, source_index: int) -> list[Chunk]:
        self.calls += 1
        if self.calls > 4:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(600)
        return super().__call__(source_index)


class Swallower(Constant):
    """Lets nothing through that is raised in it."""

    def __call__(self, source_index: int) -> list[Chunk]:
        with contextlib.suppress(BaseException):
            time.sleep(0.3)
        return super().__call__(source_index)


class Unfit(Constant):
    """Gives another dtype than it is asked for, slowly."""

    def __call__(self, source_index: int) -> list[Chunk]:
        time.sleep(0.4)
        return [Chunk(np.zeros((4, source_index + 1), "uint8"), no_meta())]


class Silent(Empty):
    """Knows why it has nothing to give."""

    def explain_empty(self, source_index: int) -> str:
        return "volume x has 3 slices"


class Noisy(Constant):
    """Writes to standard output and knows its worker."""

    worker_id = -1

    def __call__(self, source_index: int) -> list[Chunk]:
        print("loader speaking", flush=True)
        return [Chunk(np.full(self.shape, self.worker_id, self.dtype), no_meta())]


class Unloadable(Constant):
    """Pickles, but cannot be made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _cannot_be_made, ()


def _cannot_be_made() -> None:
    raise ModuleNotFoundError("No module named 'left_at_home'")


class Into(Constant):
    """Source ``i`` gives ``chunks`` chunks full of ``i + 1``, ``at_once`` of them at the same time.

    Each chunk's metadata are its place and whether its array was made on the heap.
    """

    def __init__(self, sources: int = 8, chunks: int = 4, at_once: int = 4, **more: Any) -> None:
        super().__init__(sources, **more)
        self.chunks, self.buffers_at_once = chunks, at_once

    def load_into(self, source_index: int, allocate: Any) -> Iterator[Chunk]:
        for begin in range(0, self.chunks, self.buffers_at_once):
            arrays = [allocate(self.shape) for _ in range(self.buffers_at_once)]
            for place, array in enumerate(arrays, begin):
                time.sleep(self.delay)
                array.fill(source_index + 1)
                yield Chunk(array, np.array([place, array.flags.owndata], float))


class Holder(Into):
    """The first to come to its third source, when eight slots are filled, takes two buffers and
    keeps them. It makes a file to say so.
    """

    calls = 0

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held

    def load_into(self, source_index: int, allocate: Any) -> Iterator[Chunk]:
        self.calls += 1
        if self.calls == 3:
            with contextlib.suppress(FileExistsError), open(self.held, "x"):
                held = [allocate(self.shape) for _ in range(2)]
                time.sleep(600)
                del held
        return super().load_into(source_index, allocate)


class Threaded(Noisy):
    """Says that threads are good enough; chunks tell the worker, its process and its thread."""

    releases_gil = True

    def __call__(self, source_index: int) -> list[Chunk]:
        time.sleep(0.01)
        told = np.zeros(self.shape, self.dtype)
        told.flat[:3] = self.worker_id, os.getpid() % 10_000, threading.get_native_id() % 10_000
        return [Chunk(told, no_meta())]


class OneWalksOut(Threaded):
    """In its second worker it ends at the third chunk, by something that is meant to."""

    calls = 0

    def __call__(self, source_index: int) -> list[Chunk]:
        self.calls += 1
        if self.worker_id == 1 and self.calls == 3:
            raise KeyboardInterrupt("enough")
        return super().__call__(source_index)


class OneHangs(Threaded):
    """In its second worker it hangs at the third chunk."""

    calls = 0

    def __call__(self, source_index: int) -> list[Chunk]:
        self.calls += 1
        if self.worker_id == 1 and self.calls == 3:
            time.sleep(600)
        return super().__call__(source_index)


class Limits(Constant):
    """Tells which thread limits its process has."""

    def __call__(self, source_index: int) -> list[Chunk]:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLOSC_NTHREADS")
        limits = [float(os.environ.get(name, -1)) for name in names]
        return [Chunk(np.array(limits, "float32"), no_meta())]


class Held:
    """Holds the thread that comes to a step of a reign's end, until told to go on."""

    def __init__(self, reign: Any, step: str) -> None:
        self._step = getattr(reign, step)
        self._there, self._go = threading.Event(), threading.Event()
        setattr(reign, step, self._hold)

    def _hold(self) -> None:
        self._there.set()
        self._go.wait(LIMIT)
        self._step()

    def meet(self) -> None:
        """Wait until a thread is there."""
        assert self._there.wait(LIMIT)

    def let_go(self) -> None:
        self._go.set()


class Running:
    """A producer in a thread, ended with the block; `events` is what it reported."""

    def __init__(self, vector: SharedVector, loader: Any, **settings: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._stop = threading.Event()
        size = settings.pop("source_size", 8)
        self.producer = Producer(
            vector,
            loader,
            size,
            1,
            self._stop.is_set,
            report=self.events.append,
            **{"sleep_seconds": 0.0, **settings},
        )
        self._thread = threading.Thread(target=self.producer.run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


def counter(vector: SharedVector, which: int) -> int:
    """One of the pool's counters."""
    return vector.counter_add(which, 0)


def claims(vector: SharedVector, *, live: bool = True) -> int:
    """Buffers that are being filled, by processes that live (or by dead ones)."""
    return sum(row["claims"] for row in vector.rows() if row["live"] == live)


def spec(loader: Any = None, **settings: Any) -> ProducerSpec:
    """A small producer."""
    settings = {"chunk_size": 4096, "num_producers": 1, **settings}
    return ProducerSpec(loader if loader is not None else Constant(), **settings)


def wait_for(what: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """The first true value of ``what()``; AssertionError when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def refreshes(vector: SharedVector, seconds: float = LIMIT, count: int = 3) -> bool:
    """Whether chunks are still being replaced."""
    before = int(vector.write_counts().sum())
    wait_for(lambda: int(vector.write_counts().sum()) >= before + count, seconds)
    return True


def files(name: str) -> list[str]:
    """Files of a pool in shared memory."""
    directory = Path(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm"))
    return sorted(path.name for path in directory.iterdir() if name in path.name)


def start(code: str, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
    """Run code in a new interpreter that can import the tests' loaders; see `ended`."""
    path = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        text=True,
        env=environment,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
    )


def carries(name: str, pids: set[int]) -> bool:
    """Whether a file of shared memory was named by one of these processes.

    The first number in the names of tests is their process's id. Blocks have a head with the
    user's id and a random tail.
    """
    name = re.sub(r"^sv-\d+-(.*)-[0-9a-f]{16}$", r"\1", name)
    found = re.search(r"\d+", name)
    return found is not None and int(found[0]) in pids


_STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:INFO|WARNING) sharedvector: "
_SLOW = re.compile(_STAMP + r"(?:waiting for pool|pool '[^']*': \d+/\d+ slots filled after) ")
_ORPHANS = re.compile(r".*orphans of dead processes take .* \((.*)\); remove .*")


def own_words(err: str, *, slow: bool = False) -> str:
    """The error output of a program without what depends on what else the machine does.

    A pool that is made while a test beside this one kills an owner warns of what that owner left;
    and what takes longer than two seconds is shown, which ``slow`` keeps.
    """

    def own(line: str) -> bool:
        orphans = _ORPHANS.match(line)
        if orphans is not None:
            return any(carries(name, {os.getpid()}) for name in orphans[1].split(", "))
        return slow or _SLOW.match(line) is None

    return "".join(line for line in err.splitlines(keepends=True) if own(line))


def ended(process: subprocess.Popen[str], seconds: float = LIMIT) -> tuple[int, str, str]:
    """Exit status and output (see `own_words`) of a process that must end by itself."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, own_words(err or "")  # None: given to a terminal


def run(code: str, *arguments: str, seconds: float = LIMIT) -> tuple[int, str, str]:
    """Run code in a new interpreter to its end."""
    return ended(start(code, *arguments), seconds)


@contextlib.contextmanager
def running(code: str, *arguments: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Run code that prints a line when it is set up; it is killed at the end of the block."""
    process = start(code, *arguments, **settings)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=LIMIT)[1])
        process.first_line = line.strip()  # type: ignore[attr-defined]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT)


def supervisors(pid: int | None = None) -> list[int]:
    """Living supervisors of the pools of a process, this one by default.

    Other children of pytest's process are not a test's to count, or to kill.
    """
    found = []
    for child in children(pid if pid is not None else os.getpid()):
        with contextlib.suppress(OSError):
            if b"entry.py\0supervisor" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def workers(supervisor: int | None = None) -> list[int]:
    """Living worker processes of a supervisor, or of all of this process: each has a guard."""
    above = supervisors() if supervisor is None else [supervisor]
    return [pid for one in above for guard in children(one) for pid in children(guard)]


def deaf(pid: int) -> bool:
    """Whether a process blocks SIGTERM: `Stubborn` does so where it hangs."""
    with contextlib.suppress(OSError):
        (blocked,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def children(pid: int) -> list[int]:
    """Living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == pid and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False
