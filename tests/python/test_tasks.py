"""Tasks on executors: cancelled, failed, and with workers that are lost."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import queue
import signal
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slices_support import (
    LIMIT,
    OFF,
    end_process,
    fail_at,
    kill_marked,
    marks,
    pool,
    processes,
    sleep_long,
    told_of_calling_off,
    total,
    wait_for,
)

from sharedvector.arrays import SharedArray, amap_slices, attachments, executors, map_slices
from sharedvector.arrays.executors import check_executor, run_tasks, worker_count
from sharedvector.arrays.pool_tasks import has_ended
from sharedvector.arrays.task import Job


def jobs(count: int) -> list[Job]:
    return [Job((np.array([index]),), None) for index in range(count)]


def test_who_runs_tasks() -> None:
    with ThreadPoolExecutor(3) as threads, processes(workers=4) as executor, pool() as made:
        for one, count in ((threads, 3), (executor, 4), (made, 2)):
            check_executor(one)
            assert worker_count(one) == count
    assert worker_count(object()) >= 1
    for no_executor in (None, len, []):
        with pytest.raises(TypeError, match=r"should have submit\(\)"):
            check_executor(no_executor)


def test_results_in_order_and_ends_told() -> None:
    shown: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        results = run_tasks(threads, total, jobs(50), show=shown.append)
    assert results == list(range(50))
    # It is told again when nothing has ended for a while.
    assert [ended for ended, _ in itertools.groupby(shown) if ended] == list(range(1, 51))


def test_cancelled_before_anything_began() -> None:
    events: Any = queue.SimpleQueue()
    events.put(None)
    busy, held = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        held.wait(LIMIT)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        assert busy.wait(LIMIT)
        with pytest.raises(CancelledError):
            run_tasks(threads, total, jobs(5), show=print, events=events)
        assert threads._work_queue.qsize() == 5  # cancelled, and not waited for
        held.set()


def test_a_task_that_others_cancel() -> None:
    class Cancels(ThreadPoolExecutor):
        def submit(self, *call: Any, **more: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            return future

    with Cancels(1) as executor, pytest.raises(CancelledError):
        run_tasks(executor, total, jobs(2), show=print)


def test_an_executor_that_refuses_a_task(tmp_path: Path) -> None:
    class Refuses(ThreadPoolExecutor):
        left = 3

        def submit(self, *call: Any, **more: Any) -> Future[Any]:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("no more tasks")
            return super().submit(*call, **more)

    fn = functools.partial(fail_at, (), str(tmp_path))
    with (
        told_of_calling_off(tmp_path),
        Refuses(1) as executor,
        pytest.raises(RuntimeError, match="no more tasks"),
    ):
        run_tasks(executor, fn, jobs(5), show=print)
    assert len(marks(tmp_path)) < 2


def test_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_AFTER_BREAK", LIMIT)
    killer = threading.Thread(target=kill_marked, args=(tmp_path,))
    fn = functools.partial(sleep_long, str(tmp_path))
    with processes() as executor, SharedArray.empty(4, int) as out:
        killer.start()
        with pytest.raises(BrokenProcessPool):
            map_slices(executor, fn, np.arange(4), out=out)
        killer.join()
        # No other worker is left that could write to `out`.
        assert not any(has_memory(mark.removeprefix("pid-")) for mark in marks(tmp_path))
    assert attachments.made() == []


def has_memory(pid: str) -> bool:
    """Whether a process can still write to a map; one that has ended may be there as a zombie."""
    try:
        return bool(Path("/proc", pid, "maps").read_text())
    except OSError:
        return False


def test_a_worker_that_ends_itself() -> None:
    with processes() as executor, pytest.raises(BrokenProcessPool):
        map_slices(executor, functools.partial(end_process, 0), np.arange(4))
    assert attachments.made() == []


def kill_with_its_executors_thread(executor: Any, pid: int) -> None:
    """CPython 3.11.7 dies so by itself when futures of the executor were cancelled before."""

    def die(cause: Any) -> None:
        raise InvalidStateError("a future was cancelled")

    executor._executor_manager_thread.terminate_broken = die
    os.kill(pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("wait", [map_slices, amap_slices])
def test_an_executor_whose_own_thread_dies(tmp_path: Path, wait: Any) -> None:
    def kill_one() -> None:
        wait_for(lambda: len(marks(tmp_path)) == 2)
        kill_with_its_executors_thread(made, next(iter(made._processes)))

    killer = threading.Thread(target=kill_one)
    fn = functools.partial(sleep_long, str(tmp_path))
    with processes() as made:
        killer.start()
        with pytest.raises(BrokenProcessPool, match="make another executor"):
            result = wait(made, fn, np.arange(8), n=8)
            asyncio.run(asyncio.wait_for(result, LIMIT))
        killer.join()
        # Or this process would wait for them at its end.
        wait_for(lambda: all(map(has_ended, made._processes.values())))
    assert attachments.made() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_executor_whose_own_thread_dies_while_the_last_tasks_run(tmp_path: Path) -> None:
    def kill_the_other() -> None:
        wait_for((tmp_path / OFF).exists)
        sleeping = next(mark for mark in marks(tmp_path) if mark.startswith("pid-"))
        kill_with_its_executors_thread(made, int(sleeping.removeprefix("pid-")))

    killer = threading.Thread(target=kill_the_other)
    with processes() as made, told_of_calling_off(tmp_path):
        killer.start()
        with pytest.raises(ValueError, match="the first slice"):
            map_slices(made, functools.partial(sleep_but_one, str(tmp_path)), np.arange(2))
        killer.join()
    assert attachments.made() == []


def sleep_but_one(directory: str, part: Any) -> None:
    if int(part[0]) != 0:
        sleep_long(directory, part)
    wait_for(lambda: marks(Path(directory)))
    raise ValueError("the first slice")
