"""What the tests of slices and tasks share: executors, and functions that workers can import."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import TERMINATE, Pool, ThreadPool
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from sharedvector.arrays import executors

METHODS = ("fork", "spawn", "forkserver")
LIMIT = 60.0  # seconds for anything that should happen soon


@contextlib.contextmanager
def processes(method: str = "fork", workers: int = 2) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method)) as executor:
        yield executor


@contextlib.contextmanager
def pool(method: str = "fork", workers: int = 2, **settings: Any) -> Iterator[Any]:
    """A pool that is ended without taking its queues, whose locks dead workers may hold."""
    made = multiprocessing.get_context(method).Pool(workers, **settings)
    try:
        yield made
    finally:
        # The dead are not replaced: a new worker would wait for a task, with the lock.
        with mock.patch.object(Pool, "_repopulate_pool_static", lambda *_: None):
            kill_all(made._pool)
            made._worker_handler._state = TERMINATE
            made._change_notifier.put(None)
            made._worker_handler.join(LIMIT)
            kill_all(made._pool)  # one that was about to be started is here now
        # Nobody but the dead keeps a lock that cannot be had now. Results are written by a thread,
        # too, which keeps theirs for a moment.
        for lock, patience in ((made._inqueue._rlock, 0), (made._outqueue._wlock, 1)):
            lock.acquire(timeout=patience)
            lock.release()
        made.terminate()
        made.join()


def kill_all(workers: list[Any]) -> None:
    for worker in list(workers):
        worker.kill()
        worker.join(LIMIT)


@contextlib.contextmanager
def torch_pool() -> Iterator[Any]:
    import torch.multiprocessing

    with torch.multiprocessing.get_context("fork").Pool(2) as made:
        yield made


@contextlib.contextmanager
def loky() -> Iterator[Any]:
    from joblib.externals.loky import ProcessPoolExecutor as Loky

    made = Loky(2)
    try:
        yield made
    finally:
        made.shutdown(wait=True)


EXECUTORS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    **{f"processes-{method}": functools.partial(processes, method) for method in METHODS},
    **{f"pool-{method}": functools.partial(pool, method) for method in METHODS},
    "threads": functools.partial(ThreadPoolExecutor, 2),
    "thread-pool": functools.partial(ThreadPool, 2),
    "torch-pool": torch_pool,
    "loky": loky,
}
# The others start helpers that end with the process, or import much; tests run them in another one.
IN_THIS_PROCESS = {"processes-fork", "pool-fork", "threads", "thread-pool"}


def wait_for(true: Callable[[], object], seconds: float = LIMIT) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


OFF = "called-off"


@contextlib.contextmanager
def told_of_calling_off(directory: Path) -> Iterator[None]:
    """Calls leave the mark OFF for their tasks when those that have not begun are called off."""
    settle = executors._settle

    def tell(*call: Any) -> None:
        (directory / OFF).touch()
        settle(*call)

    with mock.patch.object(executors, "_settle", tell):
        yield


def marks(directory: Path) -> list[str]:
    """What tasks have left in a directory."""
    return sorted(path.name for path in directory.iterdir() if path.name != OFF)


# -- tasks


def normalise(part: Any, mean: float = 0.5, std: float = 0.25) -> Any:
    return (part - mean) / std


def total(*parts: Any) -> float:
    return float(sum(part.sum() for part in parts))


def facts(part: Any) -> tuple[int, bool, bool, int]:
    """Process, whether the array may be written, whether it owns its memory, first element."""
    return os.getpid(), part.flags.writeable, part.flags.owndata, int(part[0])


def write_to(part: Any) -> None:
    part[0] = 1


def turned(part: Any) -> Any:
    return part[::-1]


def nothing(part: Any) -> None:
    return None


def too_wide(part: Any) -> Any:
    return np.zeros((len(part), 7))


def complex_of(part: Any) -> Any:
    return part * 1j


def fail_at(where: tuple[int, ...], directory: str, part: Any) -> int:
    """Leave a mark that tells the first element, and fail for some, when all these have begun.

    What comes behind them goes on when it is too late to call it off.
    """
    first, here = int(part[0]), Path(directory)
    (here / f"begun-{first}").touch()
    if first in where:
        wait_for(lambda: {f"begun-{index}" for index in where} <= set(marks(here)))
        raise ValueError(f"slice at {first}")
    if first > max(where, default=-1):
        wait_for((here / OFF).exists)
    return first


def slow_but_one(directory: str, part: Any) -> Any:
    """Fail at the slice that begins with 0, once another has begun.

    That one ends a while after the call has begun to wait for it.
    """
    here = Path(directory)
    if int(part[0]) == 0:
        wait_for(lambda: marks(here))
        raise ValueError("the first slice")
    (here / f"begun-{int(part[0])}").touch()
    wait_for((here / OFF).exists)
    time.sleep(0.3)
    (here / f"ended-{int(part[0])}").touch()
    return part


def held(directory: str, go: str, part: Any) -> None:
    """Leave marks at the begin and at the end, and wait for a file in between."""
    Path(directory, f"begun-{int(part[0])}").touch()
    wait_for(Path(go).exists)
    Path(directory, f"ended-{int(part[0])}").touch()


def end_process(status: int, part: Any) -> None:
    """End the worker without a word at the slice that begins with 0."""
    if int(part[0]) == 0:
        os._exit(status)
    time.sleep(0.1)


def leave(part: Any) -> int:
    """Leave the worker by SystemExit at the slice that begins with 0."""
    if int(part[0]) == 0:
        sys.exit(0)
    return 1


def sleep_long(directory: str, part: Any) -> None:
    """Tell the own process, then sleep."""
    Path(directory, f"pid-{os.getpid()}").touch()
    time.sleep(120)


def kill_marked(directory: Path) -> None:
    """Kill one of the two processes that tell themselves."""
    wait_for(lambda: len(marks(directory)) == 2)
    os.kill(int(marks(directory)[0].removeprefix("pid-")), signal.SIGKILL)


class TwoArguments(Exception):
    """Pickles, but cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_badly(part: Any) -> None:
    raise TwoArguments(1, 2)


class Unloadable:
    """Pickles, but cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ModuleNotFoundError("No module named 'left_at_home'")


def give_unloadable(part: Any) -> Unloadable:
    return Unloadable()


def give_a_function(part: Any) -> Callable[[], None]:
    return lambda: None


class UnloadableTask(Unloadable):
    def __call__(self, part: Any) -> None:
        raise AssertionError("never loaded")
