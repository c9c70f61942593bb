"""One job, "N workers each sum a slice of an array", by every way of getting the slices to them."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sharedvector import _core
from sharedvector.arrays import SharedArray, share

__all__ = ["METHODS", "Job", "Method", "Workers"]

LIMIT = 120.0  # seconds for one job, or for all workers to start
_WHOLE_BYTES = 1 << 30  # at most, for the arrays that go whole through the workers' pipe

Array = npt.NDArray[np.float64]
_Task = tuple[Any, ...]  # arguments
_FLOAT = np.dtype(np.float64)

# ---- what the workers do -------------------------------------------------------------------------

_arrived: Any = None  # semaphores of this worker's pool, see Workers.each
_gate: Any = None
_loaded: Array | None = None  # what a pool initializer would have loaded


def _begin(arrived: Any, gate: Any) -> None:
    global _arrived, _gate
    _arrived, _gate = arrived, gate
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has the parent's handler


def _once(fn: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        fn(*arguments)
    finally:
        _arrived.release()
        _gate.acquire(timeout=LIMIT)  # a worker that waits here takes no second task


def _nothing() -> float:
    return 0.0


def _sum(array: Array) -> float:
    return float(np.sum(array))


def _sum_whole(array: Array, lo: int, hi: int) -> float:
    return _sum(array[lo:hi])


def _sum_shared(part: SharedArray) -> float:
    return _sum(part.array)


def _sum_attached(name: str, length: int, lo: int, hi: int) -> float:
    memory = SharedMemory(name)
    array = np.ndarray((length,), _FLOAT, memory.buf)
    total = _sum(array[lo:hi])
    del array  # close() raises BufferError while an array lives
    memory.close()
    return total


def _load(path: str | None) -> None:
    global _loaded
    _loaded = None if path is None else np.load(path)


def _sum_loaded(lo: int, hi: int) -> float:
    assert _loaded is not None
    return _sum(_loaded[lo:hi])


# ---- the workers and the array -------------------------------------------------------------------


class Workers:
    """A process pool and a thread pool of ``count`` workers each, all started, modules imported.

    Args:
        count: of workers.
        start_method: of the processes: "fork", "spawn" or "forkserver".

    Raises:
        TimeoutError: they have not started within two minutes.
        BrokenProcessPool: one of them has ended.
    """

    def __init__(self, count: int, start_method: str) -> None:
        self.count = count
        self.start_method = start_method
        # A worker that is forked before there is a tracker starts one of its own, which unlinks
        # every SharedMemory that the worker attached when the worker ends.
        resource_tracker.ensure_running()
        context = multiprocessing.get_context(start_method)
        self._arrived, self._gate = context.Semaphore(0), context.Semaphore(0)
        self._processes = ProcessPoolExecutor(count, context, _begin, (self._arrived, self._gate))
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        # An interrupt is this process's to handle: the workers inherit the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            try:
                self.each(_nothing)
                _results(self._threads, time.sleep, [(0.01,)] * self.count)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            self._shutdown()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._shutdown()

    def _open_gate(self) -> None:
        for _ in range(self.count):
            self._gate.release()

    def _shutdown(self) -> None:
        self._processes.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)

    def run(self, fn: Callable[..., float], tasks: Sequence[_Task]) -> list[float]:
        """Results of ``fn(*task)`` in processes, in order."""
        return _results(self._processes, fn, tasks)

    def run_threads(self, fn: Callable[..., float], tasks: Sequence[_Task]) -> list[float]:
        """The same in threads."""
        return _results(self._threads, fn, tasks)

    def each(self, fn: Callable[..., object], *arguments: object) -> None:
        """Run ``fn`` once in every worker process: none goes on before all have come."""
        deadline = time.monotonic() + LIMIT
        with _submitted() as futures:
            try:
                for _ in range(self.count):
                    futures.append(self._processes.submit(_once, fn, arguments))
                arrived = 0
                while arrived < self.count and time.monotonic() < deadline:
                    arrived += self._arrived.acquire(timeout=0.05)
                    if any(future.done() for future in futures):
                        break  # before the gate is open: a worker has ended
            finally:
                self._open_gate()
            _collect(futures)


def _results(executor: Executor, fn: Callable[..., Any], tasks: Sequence[_Task]) -> list[Any]:
    with _submitted() as futures:
        for task in tasks:
            futures.append(executor.submit(fn, *task))
        return _collect(futures)


@contextlib.contextmanager
def _submitted() -> Iterator[list[Future[Any]]]:
    """When the block raises, an interrupt included, no task is pickled or run any more."""
    futures: list[Future[Any]] = []
    try:
        yield futures
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures, LIMIT)
        raise


def _collect(futures: Sequence[Future[Any]]) -> list[Any]:
    deadline = time.monotonic() + LIMIT
    return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]


class Job:
    """An array of whole numbers, so that every order of adding gives the same sums, and what the
    methods prepare once: the array as a block and as a file.

    Args:
        workers: that do the job, one slice each.
        size_bytes: of the array.
        folder: for the file.

    Raises:
        OSError: shared memory has no room for it.
    """

    def __init__(self, workers: Workers, size_bytes: int, folder: Path) -> None:
        self.workers = workers
        length = size_bytes // _FLOAT.itemsize
        self.array: Array = np.resize(np.arange(251, dtype=_FLOAT), length)
        edges = [length * place // workers.count for place in range(workers.count + 1)]
        self.bounds = list(itertools.pairwise(edges))
        self.sums = [_sum(self.array[lo:hi]) for lo, hi in self.bounds]
        self.path = folder / f"{length}.npy"
        self._stack = contextlib.ExitStack()

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def __enter__(self) -> Self:
        _check_room(2 * self.size_bytes)  # what is prepared, and the copy of one method at a time
        with contextlib.ExitStack() as stack:
            stack.callback(self.path.unlink, missing_ok=True)
            np.save(self.path, self.array)
            self.shared = stack.enter_context(share(self.array, prefix="bench"))
            # What a later job finds: every worker has used the block, and has loaded the file.
            self.workers.each(_sum_shared, self.shared)
            if self.copies_fit():
                self.workers.each(_load, str(self.path))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._stack:
            if kind is None:
                self.workers.each(_load, None)  # for the next job; else the workers end anyway

    def copies_fit(self) -> bool:
        """Whether each worker may have a copy: together at most a quarter of the free memory."""
        free, *_ = _core.memory_free()
        return free is None or self.workers.count * self.size_bytes <= free // 4

    def whole_tasks(self) -> int:
        """How many tasks may get the whole array, within a bound on the bytes sent."""
        return min(self.workers.count, _WHOLE_BYTES // self.size_bytes)


def _check_room(size_bytes: int) -> None:
    """SharedMemory on a full file system ends a process by SIGBUS: better an error before."""
    for directory in {"/dev/shm", os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm")}:
        state = os.statvfs(directory)
        free = state.f_bavail * state.f_frsize
        if free < size_bytes:
            raise OSError(
                f"the benchmark needs {size_bytes / 1e6:.0f} MB in {directory}, {free / 1e6:.0f} MB"
                " are free: take a smaller --mb, or enlarge it (docker run --shm-size=...)"
            )


# ---- the methods ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A way to do the job.

    Attributes:
        key: short name, for figures.
        label: what it is.
        run: what is timed; returns the sums in order.
        given: makes what is there before the clock runs, and removes it afterwards.
        rounds: at most.
        left_out: the reason why it is not done at this size, or "".
    """

    key: str
    label: str
    run: Callable[[Job, Any], list[float]]
    given: Callable[[Job], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    rounds: int = 1_000_000
    left_out: Callable[[Job], str] = lambda job: ""


def _in_process(job: Job, given: Any) -> list[float]:
    return [_sum(job.array[lo:hi]) for lo, hi in job.bounds]


def _empty(job: Job, given: Any) -> list[float]:
    return job.workers.run(_nothing, [()] * job.workers.count)


def _in_threads(job: Job, given: Any) -> list[float]:
    return job.workers.run_threads(_sum, [(job.array[lo:hi],) for lo, hi in job.bounds])


def _send_slices(job: Job, given: Any) -> list[float]:
    return job.workers.run(_sum, [(job.array[lo:hi],) for lo, hi in job.bounds])


def _send_whole(job: Job, given: Any) -> list[float]:
    sent = job.bounds[: job.whole_tasks()]
    return job.workers.run(_sum_whole, [(job.array, lo, hi) for lo, hi in sent])


def _parts(job: Job, shared: SharedArray) -> list[float]:
    return job.workers.run(_sum_shared, [(shared[lo:hi],) for lo, hi in job.bounds])


def _shared_before(job: Job) -> contextlib.AbstractContextManager[SharedArray]:
    return contextlib.nullcontext(job.shared)


@contextlib.contextmanager
def _new_block(job: Job) -> Iterator[SharedArray]:
    with share(job.array, prefix="bench") as shared:
        yield shared


def _share_and_use(job: Job, given: Any) -> list[float]:
    with share(job.array, prefix="bench") as shared:
        return _parts(job, shared)


def _attach_each(job: Job, memory: SharedMemory) -> list[float]:
    length = len(job.array)
    tasks = [(memory.name, length, lo, hi) for lo, hi in job.bounds]
    return job.workers.run(_sum_attached, tasks)


@contextlib.contextmanager
def _new_memory(job: Job) -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=job.size_bytes)
    try:
        copy = np.ndarray(job.array.shape, job.array.dtype, memory.buf)
        copy[...] = job.array
        del copy
        yield memory
    finally:
        memory.close()
        memory.unlink()


def _fill_and_use(job: Job, given: Any) -> list[float]:
    with _new_memory(job) as memory:
        return _attach_each(job, memory)


def _use_loaded(job: Job, given: Any) -> list[float]:
    return job.workers.run(_sum_loaded, job.bounds)


@contextlib.contextmanager
def _none_loaded(job: Job) -> Iterator[None]:
    job.workers.each(_load, None)
    yield


def _load_and_use(job: Job, given: Any) -> list[float]:
    job.workers.each(_load, str(job.path))
    return _use_loaded(job, given)


def _too_large_to_load(job: Job) -> str:
    if job.copies_fit():
        return ""
    size = job.workers.count * job.size_bytes
    return f"left out: {job.workers.count} copies take {size / 1e6:.0f} MB"


def _too_large_to_send(job: Job) -> str:
    return "" if job.whole_tasks() else f"left out: more than {_WHOLE_BYTES >> 30} GiB per task"


METHODS = (
    Method("in_process", "in this process", _in_process),
    Method("empty", "tasks that do nothing", _empty),
    Method("threads", "threads", _in_threads),
    Method("shared", "sharedvector, shared before", _parts, _shared_before),
    Method("first", "sharedvector, first job after sharing", _parts, _new_block),
    Method("share", "sharedvector, copy in and removal included", _share_and_use),
    Method("attached", "SharedMemory, filled before", _attach_each, _new_memory),
    Method("recipe", "SharedMemory, copy in and removal included", _fill_and_use),
    Method("slices", "slices pickled", _send_slices),
    Method(
        "loaded", "initializer has loaded it from disk", _use_loaded, left_out=_too_large_to_load
    ),
    Method(
        "loads",
        "initializer's np.load() included",
        _load_and_use,
        _none_loaded,
        rounds=5,
        left_out=_too_large_to_load,
    ),
    Method(
        "whole",
        "whole array pickled to each task",
        _send_whole,
        rounds=1,
        left_out=_too_large_to_send,
    ),
)
