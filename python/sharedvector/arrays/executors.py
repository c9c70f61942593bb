"""The tasks of one call, run by any executor or pool: none is left running when the call ends.

A task that fails calls off those that have not begun; those that run are waited for, because they
may be writing to a part of a shared array.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from sharedvector._common import Mailbox
from sharedvector.arrays.pool_tasks import PoolTasks, has_ended, is_pool
from sharedvector.arrays.task import Events, Job, Packer, raise_first, work

__all__ = ["check_executor", "run_tasks", "worker_count"]

_TICK = 0.1  # seconds between two looks at the workers of a pool
_AFTER_INTERRUPT = 5.0  # seconds that running tasks get to end after a KeyboardInterrupt
_AFTER_BREAK = 5.0  # seconds that the workers of a broken executor get to end


class _Lane(Protocol):
    """How the tasks of one call get to their workers and back."""

    def submit(self, job: Job) -> None: ...

    def look(self) -> None:
        """BrokenProcessPool if a task can no longer end."""

    def failed(self, index: int) -> bool: ...

    def call_off(self) -> None:
        """Keep the tasks from running that have not begun."""

    def running(self) -> bool: ...

    def results(self) -> list[Any]:
        """All results, or the first exception by position."""

    def close(self) -> None: ...


def check_executor(executor: Any) -> None:
    """TypeError unless tasks can be run by it."""
    if not (_has_submit(executor) or is_pool(executor)):
        raise TypeError(
            "executor should have submit(), as those of concurrent.futures, or be a "
            f"multiprocessing.Pool; got {type(executor).__name__}"
        )


def _has_submit(executor: Any) -> bool:
    return callable(getattr(executor, "submit", None))


def worker_count(executor: Any) -> int:
    """How many tasks the executor runs at a time, the number of processors if it does not say."""
    for name in ("_max_workers", "_processes"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    return os.cpu_count() or 1


def run_tasks(
    executor: Any,
    fn: Callable[..., Any],
    jobs: Sequence[Job],
    *,
    show: Callable[[int], object],
    events: Events | None = None,
) -> list[Any]:
    """Run ``fn`` over every job and return its results in the order of the jobs.

    Args:
        executor: anything with ``submit``, or a ``multiprocessing.Pool``.
        fn: gets a job's parts as read-only arrays.
        jobs: one for each task.
        show: told how many tasks have ended.
        events: where the ends of tasks are told; None from outside cancels the call.

    Raises:
        TypeError, AttributeError, PicklingError: `fn` cannot be sent to the workers.
        CancelledError: cancelled from outside, or the executor cancelled a task.
        BrokenExecutor: a worker was lost.
        Exception: the first one by position that a task raised.
    """
    events = Mailbox() if events is None else events
    # Exceptions of tasks refer to this frame, and the lane to them: its close() breaks the circle.
    with contextlib.closing(_lane(executor, fn, len(jobs), events)) as lane:
        patience = math.inf
        try:
            _complete(lane, jobs, events, show)
        except KeyboardInterrupt:
            patience = _AFTER_INTERRUPT
            raise
        finally:
            lane.call_off()
            _settle(lane, events, patience)
        return lane.results()


def _lane(executor: Any, fn: Callable[..., Any], count: int, events: Events) -> _Lane:
    if _has_submit(executor):
        return _Futures(executor, fn, events)
    return PoolTasks(executor, fn, count, events)


def _complete(
    lane: _Lane, jobs: Sequence[Job], events: Events, show: Callable[[int], object]
) -> None:
    """Submit every job, and wait until all tasks have ended or one has failed."""
    for job in jobs:
        lane.submit(job)
    ended = 0
    next_look = time.monotonic() + _TICK
    while ended < len(jobs):
        with contextlib.suppress(queue.Empty):
            index = events.get(timeout=_TICK)
            if index is None:
                raise CancelledError
            if lane.failed(index):
                return
            ended += 1
        if ended < len(jobs) and time.monotonic() >= next_look:
            lane.look()
            next_look = time.monotonic() + _TICK
        show(ended)


def _settle(lane: _Lane, events: Events, patience: float) -> None:
    """Wait for the tasks that run."""
    deadline = time.monotonic() + patience
    while lane.running() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            events.get(timeout=_TICK)


class _Futures:
    """Tasks of an executor that gives futures."""

    def __init__(self, executor: Any, fn: Callable[..., Any], events: Events) -> None:
        self._executor = executor
        self._packer = Packer(executor, fn)
        self._events = events
        self._futures: list[Any] = []
        self._workers: set[Any] = set()
        self._manager: Any = None  # the thread that ends the futures of a pool of processes
        self._broken_until: float | None = None

    def submit(self, job: Job) -> None:
        future = self._executor.submit(work, *self._packer.pack(job))
        index = len(self._futures)
        self._futures.append(future)
        future.add_done_callback(lambda _: self._events.put(index))
        workers = getattr(self._executor, "_processes", None)
        if isinstance(workers, dict):
            self._workers.update(dict(workers).values())
        # A shutdown makes the executor forget the thread, which still ends the futures.
        self._manager = getattr(self._executor, "_executor_manager_thread", None) or self._manager

    def look(self) -> None:
        """Executors watch their workers and end every future, as long as their own thread lives."""
        if self._abandoned():
            # The thread would have done so. Left alone they wait for tasks that nobody sends, and
            # this process waits for them when it ends.
            for worker in self._workers:
                worker.terminate()
            raise BrokenProcessPool(
                "tasks of the executor are lost: its thread that gives out tasks and takes results "
                "has ended by an error, which was printed; make another executor"
            )

    def _abandoned(self) -> bool:
        """Whether nobody is left who could end the futures."""
        if self._manager is None or self._manager.is_alive():
            return False  # asked before the futures are: a thread that ends well ends them first
        return not all(future.done() for future in self._futures)

    def failed(self, index: int) -> bool:
        future = self._futures[index]
        return bool(future.cancelled() or future.exception() is not None)

    def call_off(self) -> None:
        for future in reversed(self._futures):
            future.cancel()

    def running(self) -> bool:
        with contextlib.suppress(BrokenProcessPool):
            self.look()
        abandoned = self._abandoned()
        if not abandoned and not all(future.done() for future in self._futures):
            return True
        # A broken executor ends its futures before its workers, and these still write to `out`.
        if not abandoned and not any(isinstance(error, BrokenExecutor) for error in self._errors()):
            return False
        now = time.monotonic()
        if self._broken_until is None:
            self._broken_until = now + _AFTER_BREAK
        return now < self._broken_until and not all(map(has_ended, self._workers))

    def results(self) -> list[Any]:
        errors = self._errors()
        if errors:
            raise_first(errors)
        return [self._packer.unpack(future.result()) for future in self._futures]

    def _errors(self) -> list[BaseException]:
        done = [future for future in self._futures if future.done() and not future.cancelled()]
        return [error for future in done if (error := future.exception()) is not None]

    def close(self) -> None:
        self._futures.clear()
        self._workers.clear()
