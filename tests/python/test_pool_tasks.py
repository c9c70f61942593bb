"""Tasks of multiprocessing.Pool: whatever becomes of its workers, there is an end."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slices_support import (
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
    total,
    wait_for,
)

from sharedvector import _blocks, _pool_tasks
from sharedvector._slices import map_slices


@pytest.fixture(autouse=True)
def no_block_stays() -> Iterator[None]:
    yield
    assert _blocks.made() == []


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions after shorter times."""
    monkeypatch.setattr(_pool_tasks, "_RESULT_ON_ITS_WAY", 0.3)
    monkeypatch.setattr(_pool_tasks, "_QUIET", 0.3)
    monkeypatch.setattr(_pool_tasks, "_QUEUE_PATIENCE", 0.5)


def test_a_killed_worker(tmp_path: Path) -> None:
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
        wait_for(lambda: marks(tmp_path))
        slow = int((tmp_path / "pid").read_text())
        os.kill(next(w.pid for w in made._pool if w.pid != slow), signal.SIGKILL)

    fn = functools.partial(tell_and_nap, str(tmp_path))
    with pool() as made:
        killer = threading.Thread(target=kill_the_other)
        killer.start()
        with pytest.raises(BrokenProcessPool):
            map_slices(made, fn, np.arange(1), np.arange(1))
        killer.join()
        assert "ended" in marks(tmp_path)


def tell_and_nap(directory: str, *parts: Any) -> None:
    written = Path(directory, "writing")
    written.write_text(str(os.getpid()))
    written.rename(Path(directory, "pid"))
    time.sleep(1)
    Path(directory, "ended").touch()


@pytest.mark.parametrize("fn", [functools.partial(end_process, 0), leave])
def test_a_worker_that_ends_without_an_error(soon: None, fn: Any) -> None:
    with pool() as made:
        with pytest.raises(BrokenProcessPool, match="in the middle of a task"):
            map_slices(made, fn, np.arange(4))
        assert map_slices(made, total, np.arange(4)) == [1.0, 5.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_leaves(soon: None) -> None:
    with ThreadPool(2) as made, pytest.raises(BrokenProcessPool, match="middle of a task"):
        map_slices(made, leave, np.arange(4))


def test_workers_that_are_replaced_after_each_task(soon: None) -> None:
    with pool(maxtasksperchild=1) as made:
        for _ in range(3):
            found = map_slices(made, facts, np.arange(12), n=12)
            assert len({fact[0] for fact in found}) == 12


def test_a_worker_that_died_with_the_queue_before_the_call(soon: None) -> None:
    with pool() as made:
        map_slices(made, total, np.arange(4))
        old = list(made._pool)
        for worker in old:  # the one that waits for a task holds the lock of the queue
            os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: len(made._pool) == 2 and not set(old) & set(made._pool))
        began = time.monotonic()
        with pytest.raises(BrokenProcessPool, match="killed earlier held one of its queues"):
            map_slices(made, total, np.arange(4))
        assert time.monotonic() - began < 10


def test_a_busy_pool_is_waited_for(soon: None) -> None:
    with pool() as made:
        held = [made.apply_async(time.sleep, (2,)) for _ in range(2)]
        assert map_slices(made, total, np.arange(4)) == [1.0, 5.0]
        assert any(one.ready() for one in held)  # one worker may run both tasks


def test_called_off_tasks_of_a_busy_pool_are_not_waited_for(tmp_path: Path) -> None:
    with pool() as made:
        for _ in range(6):
            made.apply_async(time.sleep, (0.2,))
        fn = functools.partial(fail_at, (0,), str(tmp_path))
        with pytest.raises(ValueError, match="slice at 0"):
            map_slices(made, fn, np.arange(50), n=50)
        made.apply(time.sleep, (0,))  # comes after all tasks of the call
        assert len(marks(tmp_path)) < 25


def test_a_pool_that_is_terminated_meanwhile(tmp_path: Path) -> None:
    def end() -> None:
        wait_for(lambda: marks(tmp_path))
        made.terminate()

    fn = functools.partial(sleep_long, str(tmp_path))
    with pool() as made:
        ender = threading.Thread(target=end)
        ender.start()
        with pytest.raises(BrokenProcessPool, match=r"terminated|exit status -15"):
            map_slices(made, fn, np.arange(2))
        ender.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_whose_results_nobody_takes(soon: None) -> None:
    with pool() as made:
        made.apply_async(give_unloadable, (np.arange(2),))
        # Before that, the results of the call may overtake the one that ends the thread.
        wait_for(lambda: not made._result_handler.is_alive())
        with pytest.raises(BrokenProcessPool, match="thread for results ended"):
            map_slices(made, total, np.arange(2))
        made._cache.clear()  # or it refuses to be terminated


def test_a_closed_pool_refuses(tmp_path: Path) -> None:
    with pool() as made:
        made.close()
        with pytest.raises(ValueError, match="not running"):
            map_slices(made, total, np.arange(2))


def test_an_error_waits_for_the_outcome_of_what_runs(tmp_path: Path) -> None:
    with ThreadPool(2) as made, pytest.raises(ValueError, match="the first slice"):
        map_slices(made, functools.partial(slow_but_one, str(tmp_path)), np.arange(2))
    assert marks(tmp_path) == ["begun-1", "ended-1"]
