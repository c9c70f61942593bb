"""What the tests of the extension and of SharedVector share."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sharedvector import SharedVector, remove_shared_memory

FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)

_numbers = itertools.count()

# Seconds that a child may take: many times what it needs, for slow machines that do other work too.
LIMIT_S = 120.0


def descriptors() -> int:
    """How many files this process has open, without those that only wait for the collector."""
    gc.collect()  # what earlier tests left to it is not the caller's to count
    return len(os.listdir("/proc/self/fd"))


def growth(work: Callable[[], object], harmless: int) -> int:
    """By how many bytes this process grows with `work`: the least of up to three tries.

    What leaks does so each time. Pages that the system had taken away may come back at any time.
    """
    grown = []
    while len(grown) < 3 and (not grown or grown[-1] >= harmless):
        before = _resident_bytes()
        work()
        gc.collect()
        grown.append(_resident_bytes() - before)
    return min(grown)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def fresh_name() -> Iterator[str]:
    """A name that no other test has; its segment is removed at the end."""
    name = f"sv_test_{os.getpid()}_{next(_numbers)}"
    try:
        yield name
    finally:
        remove_shared_memory(name)


def filled(name: str, count: int = 3, **options: Any) -> SharedVector:
    """A vector whose slot i holds FLOATS + i."""
    vector = SharedVector(name, chunk_size=4096, max_memory_size=1 << 20, **options)
    for i in range(count):
        vector.append(FLOATS + i)
    return vector


def in_child(body: Callable[[], object], limit_s: float = LIMIT_S) -> int:
    """Run `body` in a forked child and return its exit status: 0, or 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
        finally:
            os._exit(status)
    return wait_child(pid, limit_s)


def wait_child(pid: int, limit_s: float = LIMIT_S) -> int:
    """Wait for a child with a limit; returns its exit status, negative for a signal."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"child {pid} did not end within {limit_s} s")


@contextmanager
def held_child(body: Callable[[], object], limit_s: float = LIMIT_S) -> Iterator[int]:
    """A forked child that ran `body` and lives until the block ends; yields its pid.

    What `body` returns stays alive as long as the child.
    """
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = body()
            os.write(told, b"y")
            time.sleep(limit_s)
            del kept
        finally:
            os._exit(1)
    os.close(told)
    try:
        if os.read(ready, 1) != b"y":
            raise AssertionError("the child's body raised")
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def kill(pid: int) -> None:
    """SIGKILL, and wait until the kernel has taken the process apart (it stays a zombie)."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
