"""Jobs that end badly, many times over: what the tests of crashes run in a process of their own.

python -c "import arrays_endings; arrays_endings.main(kind, prefix, rounds, seed)"

Each round is a forked child that shares arrays with workers of its own; another child, the
bystander, keeps a block of the same prefix for all of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np
from arrays_support import blocks
from core_support import wait_child

import sharedvector
from sharedvector import SharedArray, share, sweep

LIMIT = 60.0
DATA = np.arange(20_000.0)
PARTS = [slice(i * 2000, i * 2000 + 2000) for i in range(10)]


class MadeToFail(Exception):
    pass


def work(part: SharedArray, out: SharedArray) -> float:
    out[...] = part.array * 2
    return float(out.array.sum())


def fail_after(part: SharedArray, seconds: float) -> None:
    array = part.array
    time.sleep(seconds)
    raise MadeToFail(float(array[0]))


def workers() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=get_context("fork"))


def submit(
    executor: ProcessPoolExecutor, data: SharedArray, out: SharedArray
) -> list[Future[float]]:
    return [executor.submit(work, data[part], out[part]) for part in PARTS]


@contextlib.contextmanager
def arrays(prefix: str) -> Iterator[tuple[SharedArray, SharedArray]]:
    with (
        share(DATA, prefix=prefix) as data,
        SharedArray.empty(len(DATA), prefix=prefix, writable=True) as out,
    ):
        yield data, out


# ---- rounds ------------------------------------------------------------------------------------


def worker_killed(prefix: str, delay: float) -> None:
    """One of the workers is killed; whoever waits for results is told so, and goes on."""
    with arrays(prefix) as (data, out), workers() as executor:
        try:
            jobs = submit(executor, data, out)
            victim = next(iter(executor._processes))
            killer = threading.Timer(delay, os.kill, (victim, signal.SIGKILL))
            killer.start()
            while True:
                for job in jobs:
                    job.result(LIMIT)
                jobs = submit(executor, data, out)
        except BrokenProcessPool:
            killer.join()
        assert np.array_equal(data.array, DATA)


def worker_raises(prefix: str, delay: float) -> None:
    """The exception of a worker goes through everything."""
    with contextlib.suppress(MadeToFail), arrays(prefix) as (data, out), workers() as executor:
        jobs = submit(executor, data, out)
        failing = executor.submit(fail_after, data[PARTS[3]], delay)
        jobs += submit(executor, data, out)
        failing.result(LIMIT)
        raise AssertionError("the worker did not fail")


def task_cancelled(prefix: str, delay: float) -> None:
    """The task that made the arrays is cancelled while it waits for its workers."""

    async def job(executor: ProcessPoolExecutor) -> None:
        with arrays(prefix) as (data, out):
            loop = asyncio.get_running_loop()
            while True:
                calls = [(data[part], out[part]) for part in PARTS]
                await asyncio.gather(*(loop.run_in_executor(executor, work, *c) for c in calls))

    async def main() -> None:
        with workers() as executor:
            task = asyncio.create_task(job(executor))
            await asyncio.wait([task], timeout=delay)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(main())


def endless(told: int, prefix: str, delay: float) -> None:
    """Works until it is killed; tells when its executor is there, and when its arrays are.

    Killed while it makes the executor, it would leave the names of semaphores in shared memory.
    """
    os.setsid()
    with workers() as executor:
        os.write(told, b"e")
        with arrays(prefix) as (data, out):
            os.write(told, b"a")
            while True:
                for job in submit(executor, data, out):
                    job.result(LIMIT)


def run_round(body: Callable[[str, float], None], prefix: str, delay: float) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body(prefix, delay)
            status = 0
        except BaseException as error:
            os.write(2, f"round: {error!r}\n".encode())
        finally:
            os._exit(status)
    return pid


def ended_by_itself(body: Callable[[str, float], None]) -> Callable[[str, random.Random], int]:
    def play(prefix: str, dice: random.Random) -> int:
        assert wait_child(run_round(body, prefix, dice.uniform(0, 0.02)), LIMIT) == 0
        return 0

    return play


def parent_killed(prefix: str, dice: random.Random) -> int:
    """The parent is killed at any moment, its workers sooner or later than others look.

    In about half of the rounds the moments are counted from when there are arrays to leave behind:
    on a slow machine the parent would get to nothing otherwise. Returns how many were swept.
    """
    heard, told = os.pipe()
    pid = run_round(functools.partial(endless, told), prefix, 0)
    os.close(told)
    assert os.read(heard, 1) == b"e"
    if dice.random() < 0.5:
        assert os.read(heard, 1) == b"a"
    time.sleep(dice.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    assert wait_child(pid, LIMIT) == -signal.SIGKILL
    os.close(heard)
    swept = len(sweep(prefix)) if dice.random() < 0.5 else 0
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return swept


KINDS = {
    "worker killed": ended_by_itself(worker_killed),
    "worker raises": ended_by_itself(worker_raises),
    "task cancelled": ended_by_itself(task_cancelled),
    "parent killed": parent_killed,
}

# ---- all of them -------------------------------------------------------------------------------


def bystander(prefix: str, told: int, done: int) -> None:
    """Counts in a block of its own until it is told to stop; nobody may have touched it."""
    with share(np.zeros(4096), prefix=prefix) as mine:
        os.write(told, f"{mine.name}\n".encode())
        os.set_blocking(done, False)
        for turn in range(1, 1 << 30):
            mine.array[...] += 1
            assert (mine.array == turn).all() and os.path.exists(f"/dev/shm/{mine.name}")
            with contextlib.suppress(BlockingIOError):
                os.read(done, 1)
                return
            time.sleep(0.001)


def main(kind: str, prefix: str, rounds: str, seed: str) -> None:
    dice = random.Random(int(seed))
    heard, told = os.pipe()
    done, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            bystander(prefix, told, done)
            status = 0
        finally:
            os._exit(status)
    name = os.read(heard, 300).decode().strip()
    swept = 0
    for turn in range(int(rounds)):
        swept += KINDS[kind](prefix, dice)
        orphans = set(blocks(prefix)) - {name}
        if kind != "parent killed":
            assert not orphans, (turn, orphans)
        # A worker that was killed right after the fork may have its parent's lock while it dies.
        deadline = time.monotonic() + (LIMIT if kind == "parent killed" else 0)
        swept += len(sweep(prefix))
        while blocks(prefix) != [name] and time.monotonic() < deadline:
            time.sleep(0.01)
            swept += len(sweep(prefix))
        assert blocks(prefix) == [name], (turn, blocks(prefix))
    assert sharedvector.sweep(prefix) == []
    os.write(stop, b"y")
    assert wait_child(pid, LIMIT) == 0
    assert blocks(prefix) == []
    assert kind != "parent killed" or swept > int(rounds) // 4
    print(f"{rounds} rounds, {swept} swept")
    sys.stdout.flush()
