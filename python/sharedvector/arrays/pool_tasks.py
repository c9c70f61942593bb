"""Tasks of a ``multiprocessing.Pool``, which does not promise an end for each of them.

The task of a killed worker never ends, and a worker killed while it held one of the pool's queues
stops all others. So each task writes to a **board**, a small block of the call: who runs it, and
whether it has ended. From that, the pool's list of workers and its queues one can tell which tasks
are lost, and which still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any

import numpy as np

from sharedvector._common import here_or_aside
from sharedvector.arrays.shared_array import SharedArray
from sharedvector.arrays.task import (
    Events,
    Job,
    Packer,
    array_of,
    in_this_process,
    raise_first,
    work,
)

__all__ = ["PoolTasks", "has_ended", "is_pool"]

_RESULT_ON_ITS_WAY = 2.0  # seconds after which the outcome of an ended task counts as lost
_QUIET = 30.0  # seconds without news before the queues of a pool are looked at
_QUEUE_PATIENCE = 5.0  # seconds for which a living worker never holds a queue
_SEEN = 0.001  # seconds; by then a store is visible to every other core


def is_pool(executor: Any) -> bool:
    """Whether tasks go to it by ``apply_async``, and it lists its workers."""
    return callable(getattr(executor, "apply_async", None)) and hasattr(executor, "_pool")


class PoolTasks:
    """Tasks of a ``multiprocessing.Pool`` or ``ThreadPool``, with a board.

    The board has a row for each task (who runs it, by the system's number of the thread, and
    whether it has ended; zeros before it begins) and a last one, whose first number tells all tasks
    that they are called off.
    """

    def __init__(self, pool: Any, fn: Callable[..., Any], count: int, events: Events) -> None:
        self._pool = pool
        self._packer = Packer(pool, fn)
        self._events = events
        self._submitted = 0
        self._outcomes: dict[int, tuple[bool, Any]] = {}
        self._seen: set[Any] = set(pool._pool)
        self._since: dict[str, float] = {}
        self._quit_at: float | None = None
        self._news = time.monotonic()
        self._board = _make_board(in_this_process(pool), count + 1)
        self._state: Any = array_of(self._board)

    def submit(self, job: Job) -> None:
        index = self._submitted
        self._pool.apply_async(
            work,
            self._packer.pack(job, self._board, index),
            callback=lambda value: self._ended(index, True, value),
            error_callback=lambda error: self._ended(index, False, error),
        )
        self._submitted += 1

    def _ended(self, index: int, good: bool, value: Any) -> None:
        self._outcomes[index] = good, value
        self._news = time.monotonic()
        self._events.put(index)

    def failed(self, index: int) -> bool:
        return not self._outcomes[index][0]

    def look(self) -> None:
        pool, now = self._pool, time.monotonic()
        current = list(pool._pool)
        # The pool joins a worker before it forgets it: to ask for the exit status waits for nobody.
        dead = [worker for worker in self._seen.difference(current) if worker.exitcode]
        self._seen.update(current)
        if dead:
            self._break(f"its worker {dead[0].ident} ended with exit status {dead[0].exitcode}")
        if getattr(pool, "_state", None) == "TERMINATE":
            self._break("it was terminated")
        handler = getattr(pool, "_result_handler", None)
        if handler is not None and not handler.is_alive():
            self._break("its thread for results ended: a result could not be unpickled")
        living = _numbers(current)
        gone = [ended for runner, ended in self._begun() if runner not in living]
        # A worker may begin a task before the pool lists it.
        lost = self._lasts("lost", not all(gone), _RESULT_ON_ITS_WAY)
        # One may end behind its task, and callbacks of others hold up the thread for results. It
        # may take as long to replace all workers at once, on a busy machine.
        late = self._lasts("late", bool(gone) or not living, _QUIET)
        if lost or late:
            self._break("a worker ended in the middle of a task" if living else "no worker is left")
        if now > self._news + _QUIET:
            self._news = now
            # Aside: an interrupt must not keep a lock of the queues, which are not ours.
            if here_or_aside(lambda: _stands_still(pool)):
                self._break("a worker that was killed earlier held one of its queues")

    def _lasts(self, what: str, true: bool, seconds: float) -> bool:
        """Whether it was true at each look for so long."""
        if not true:
            self._since.pop(what, None)
            return False
        now = time.monotonic()
        return now > self._since.setdefault(what, now) + seconds

    @staticmethod
    def _break(why: str) -> None:
        raise BrokenProcessPool(
            f"tasks of the pool are lost, {why}; it may stand still from now on: terminate it and "
            "make another"
        )

    def _begun(self) -> Iterator[tuple[int, bool]]:
        """Of each task that has begun and has no outcome: who runs it, and whether it has ended."""
        for index in range(self._submitted):
            runner, ended = self._state[index].tolist()
            if runner and index not in self._outcomes:
                yield runner, bool(ended)

    def call_off(self) -> None:
        if len(self._outcomes) < self._submitted:
            self._state[-1, 0] = 1
            # Who read the old value has told of its beginning before.
            time.sleep(_SEEN)

    def running(self) -> bool:
        living = _numbers(list(self._pool._pool))
        begun = list(self._begun())
        if any(runner in living and not ended for runner, ended in begun):
            return True
        # An outcome of a task that has ended comes at once, or never in a pool that stands still.
        now = time.monotonic()
        if self._quit_at is None:
            self._quit_at = now + _RESULT_ON_ITS_WAY
        return now < self._quit_at and any(runner in living for runner, _ in begun)

    def results(self) -> list[Any]:
        outcomes = [self._outcomes[index] for index in sorted(self._outcomes)]
        errors = [value for good, value in outcomes if not good]
        if errors:
            raise_first(errors)
        return [self._packer.unpack(value) for _, value in outcomes]

    def close(self) -> None:
        self._state = None
        self._outcomes.clear()
        self._seen.clear()
        if not isinstance(self._board, np.ndarray):
            self._board.close()


def _make_board(here: bool, rows: int) -> Any:
    if here:
        return np.zeros((rows, 2), np.int64)
    return SharedArray.zeros((rows, 2), np.int64, writable=True)


def _numbers(workers: list[Any]) -> set[int]:
    """The system's numbers of living workers: a thread has one of its own, a process its id."""
    living = [worker for worker in workers if not has_ended(worker)]
    return {getattr(worker, "native_id", worker.ident) for worker in living}


def has_ended(worker: Any) -> bool:
    """Whether a process or thread has ended, without asking for the exit status (others wait)."""
    sentinel = getattr(worker, "sentinel", None)
    if sentinel is None:
        return not worker.is_alive()
    return bool(connection.wait([sentinel], 0))


def _stands_still(pool: Any) -> bool:
    """Whether the lock of a queue between a pool and its workers died with its holder."""
    tasks: Any = getattr(pool, "_inqueue", None)
    results: Any = getattr(pool, "_outqueue", None)
    if not hasattr(tasks, "_rlock") or not hasattr(results, "_wlock"):
        return False  # queues within one process
    # Idle workers wait for a task in turn, one with the lock; it reads what comes at once.
    if tasks._reader.poll() and _is_kept(tasks._rlock) and tasks._reader.poll():
        return True
    return _is_kept(results._wlock)


def _is_kept(lock: Any) -> bool:
    if lock.acquire(timeout=_QUEUE_PATIENCE):
        lock.release()
        return False
    return True
