"""Tasks of multiprocessing.Pool: whatever becomes of its workers, there is an end."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slices_support import (
    LIMIT,
    OFF,
    end_process,
    facts,
    fail_at,
    give_unloadable,
    kill_marked,
    leave,
    marks,
    pool,
    sleep_long,
    slow_but_one,
    told_of_calling_off,
    total,
    wait_for,
)

from sharedvector.arrays import attachments, map_slices, pool_tasks


@pytest.fixture(autouse=True)
def no_block_stays() -> Iterator[None]:
    yield
    assert attachments.made() == []


@contextlib.contextmanager
def soon(queue_patience: float = pool_tasks._QUEUE_PATIENCE) -> Iterator[None]:
    """The decision that tasks are lost after shorter times: of a living pool it may be wrong then.

    Not for calls that should succeed, which have to do so on a slow machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_tasks, "_RESULT_ON_ITS_WAY", 0.3)
        patch.setattr(pool_tasks, "_QUIET", 0.3)
        patch.setattr(pool_tasks, "_QUEUE_PATIENCE", queue_patience)
        yield


def test_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By its exit status, for which the pool has to join it first.
    monkeypatch.setattr(pool_tasks, "_RESULT_ON_ITS_WAY", LIMIT)
    returned = threading.Event()
    too_early = []

    def kill_all() -> None:
        # One after the other: the task of the second one runs until then, and is waited for.
        kill_marked(tmp_path)
        too_early.append(returned.wait(0.5))
        os.kill(int(marks(tmp_path)[1].removeprefix("pid-")), signal.SIGKILL)

    killer = threading.Thread(target=kill_all)
    fn = functools.partial(sleep_long, str(tmp_path))
    with pool() as made:
        killer.start()
        with pytest.raises(BrokenProcessPool, match="ended with exit status -9"):
            map_slices(made, fn, np.arange(2))
        returned.set()
        killer.join()
    assert too_early == [False]


def test_what_runs_on_other_workers_is_waited_for(tmp_path: Path) -> None:
    def kill_the_other() -> None:
        wait_for((tmp_path / "pid").exists)
        slow = int((tmp_path / "pid").read_text())
        os.kill(next(w.pid for w in made._pool if w.pid != slow), signal.SIGKILL)

    fn = functools.partial(tell_and_nap, str(tmp_path))
    with pool() as made:
        killer = threading.Thread(target=kill_the_other)
        killer.start()
        with told_of_calling_off(tmp_path), pytest.raises(BrokenProcessPool):
            map_slices(made, fn, np.arange(1), np.arange(1))
        killer.join()
        assert "ended" in marks(tmp_path)


def tell_and_nap(directory: str, *parts: Any) -> None:
    written = Path(directory, "writing")
    written.write_text(str(os.getpid()))
    written.rename(Path(directory, "pid"))
    wait_for(Path(directory, OFF).exists)
    time.sleep(0.3)
    Path(directory, "ended").touch()


@pytest.mark.parametrize("fn", [functools.partial(end_process, 0), leave])
def test_a_worker_that_ends_without_an_error(fn: Any) -> None:
    with pool() as made:
        with soon(), pytest.raises(BrokenProcessPool, match="in the middle of a task"):
            map_slices(made, fn, np.arange(4))
        assert map_slices(made, total, np.arange(4)) == [1.0, 5.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_leaves() -> None:
    with (
        ThreadPool(2) as made,
        soon(),
        pytest.raises(BrokenProcessPool, match="middle of a task"),
    ):
        map_slices(made, leave, np.arange(4))


def test_workers_that_are_replaced_after_each_task() -> None:
    with pool(maxtasksperchild=1) as made:
        for _ in range(3):
            found = map_slices(made, facts, np.arange(12), n=12)
            assert len({fact[0] for fact in found}) == 12


def test_workers_that_are_replaced_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while none is left, as on a busy machine; no task is lost."""
    replace = Pool._repopulate_pool_static  # type: ignore[attr-defined]

    def replace_late(*pool: Any) -> None:
        time.sleep(2.5)
        replace(*pool)

    monkeypatch.setattr(pool_tasks, "_RESULT_ON_ITS_WAY", 1.0)
    with pool(maxtasksperchild=1) as made:
        monkeypatch.setattr(Pool, "_repopulate_pool_static", replace_late)
        assert map_slices(made, total, np.arange(3), n=3) == [0.0, 1.0, 2.0]


def test_a_worker_that_died_with_the_queue_before_the_call() -> None:
    with pool() as made:
        map_slices(made, total, np.arange(4))
        # Its result may be here before a worker waits for the next task, with the queue's lock.
        wait_for(lambda: is_held(made._inqueue._rlock))
        old = list(made._pool)
        for worker in old:
            os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: len(made._pool) == 2 and not set(old) & set(made._pool))
        began = time.monotonic()
        with (
            soon(queue_patience=0.5),
            pytest.raises(BrokenProcessPool, match="killed earlier held one of its queues"),
        ):
            map_slices(made, total, np.arange(4))
        assert time.monotonic() - began < 30  # the times of soon(), not the usual ones


def is_held(lock: Any) -> bool:
    if lock.acquire(block=False):
        lock.release()
        return False
    return True


def test_a_busy_pool_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_tasks, "_QUIET", 0.3)  # and its queues are looked at
    with pool() as made:
        held = [made.apply_async(time.sleep, (2,)) for _ in range(2)]
        assert map_slices(made, total, np.arange(4)) == [1.0, 5.0]
        assert any(one.ready() for one in held)  # one worker may run both tasks


def test_called_off_tasks_of_a_busy_pool_are_not_waited_for(tmp_path: Path) -> None:
    with pool() as made:
        for _ in range(6):
            made.apply_async(time.sleep, (0.2,))
        fn = functools.partial(fail_at, (0,), str(tmp_path))
        with told_of_calling_off(tmp_path), pytest.raises(ValueError, match="slice at 0"):
            map_slices(made, fn, np.arange(50), n=50)
        made.apply(time.sleep, (0,))  # comes after all tasks of the call
        assert len(marks(tmp_path)) < 4  # the one that failed, and one on each worker


def test_a_pool_that_is_terminated_meanwhile(tmp_path: Path) -> None:
    def end() -> None:
        wait_for(lambda: len(marks(tmp_path)) == 2)  # or the pool may refuse the second task
        made.terminate()

    fn = functools.partial(sleep_long, str(tmp_path))
    with pool() as made:
        ender = threading.Thread(target=end)
        ender.start()
        with pytest.raises(BrokenProcessPool, match=r"terminated|exit status -15"):
            map_slices(made, fn, np.arange(2))
        ender.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_whose_results_nobody_takes() -> None:
    with pool() as made:
        made.apply_async(give_unloadable, (np.arange(2),))
        # Before that, the results of the call may overtake the one that ends the thread.
        wait_for(lambda: not made._result_handler.is_alive())
        with soon(), pytest.raises(BrokenProcessPool, match="thread for results ended"):
            map_slices(made, total, np.arange(2))
        made._cache.clear()  # or it refuses to be terminated


def test_a_closed_pool_refuses(tmp_path: Path) -> None:
    with pool() as made:
        made.close()
        with pytest.raises(ValueError, match="not running"):
            map_slices(made, total, np.arange(2))


def test_an_error_waits_for_the_outcome_of_what_runs(tmp_path: Path) -> None:
    with (
        ThreadPool(2) as made,
        told_of_calling_off(tmp_path),
        pytest.raises(ValueError, match="the first slice"),
    ):
        map_slices(made, functools.partial(slow_but_one, str(tmp_path)), np.arange(2))
    assert marks(tmp_path) == ["begun-1", "ended-1"]
