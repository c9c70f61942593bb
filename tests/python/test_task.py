"""What a task is sent, and what becomes of it."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from slices_support import (
    UnloadableTask,
    fail_badly,
    give_a_function,
    give_unloadable,
    normalise,
    pool,
    processes,
    total,
)

from sharedvector.arrays import map_slices
from sharedvector.arrays.task import Job, Packer, in_this_process, work


def test_threads_are_in_this_process() -> None:
    with ThreadPoolExecutor(1) as threads, ThreadPool(1) as more_threads:
        assert in_this_process(threads) and in_this_process(more_threads)
    with ProcessPoolExecutor(1) as executor, pool() as made:
        assert not in_this_process(executor) and not in_this_process(made)

    class InterpreterPoolExecutor(ThreadPoolExecutor):
        """Of that name in Python 3.14: it pickles."""

    with InterpreterPoolExecutor(1) as interpreters:
        assert not in_this_process(interpreters)


def test_pools_of_processes_get_bytes_and_other_executors_the_function() -> None:
    job = Job((3,), None)
    with processes() as executor:
        fn, arguments = Packer(executor, total).pack(job)
    assert pickle.loads(fn) is total and pickle.loads(arguments) == ((3,), None, None, 0)
    fn, arguments = Packer(SimpleNamespace(submit=None), total).pack(job)
    assert fn is total and isinstance(arguments, bytes)
    with ThreadPoolExecutor(1) as threads:
        assert Packer(threads, total).pack(job) == (total, ((3,), None, None, 0))


def test_the_board_tells_of_a_task() -> None:
    board = np.zeros((3, 2), np.int64)
    data = np.arange(4.0)
    assert work(total, ((data,), None, board, 1)) == 6
    assert board[1].all() and board[1, 1] == 1 and not board[[0, 2]].any()
    assert data.flags.writeable  # the task's view is read-only, not the array
    with pytest.raises(TypeError):
        work(normalise, ((data, data, data, data), None, board, 0))
    assert board[0, 1] == 1


def test_a_task_that_is_called_off_does_nothing() -> None:
    board = np.zeros((2, 2), np.int64)
    board[-1, 0] = 1
    assert work(fail_badly, ((np.arange(4),), None, board, 0)) is None
    assert board[0].all()


@pytest.mark.parametrize("make", [processes, pool])
def test_what_cannot_be_pickled_ends_no_worker(make: Any) -> None:
    data = np.arange(4)
    with make() as executor:
        with pytest.raises(Exception, match="pickle") as caught:
            map_slices(executor, lambda part: part, data)
        assert "top level of a module" in caught.value.__notes__[0]
        with pytest.raises(ModuleNotFoundError, match="left_at_home") as loading:
            map_slices(executor, UnloadableTask(), data)
        assert "a module that workers can import" in loading.value.__notes__[0]
        with pytest.raises(RuntimeError, match=r"fn raised TwoArguments.*\n[^$]*in fail_badly"):
            map_slices(executor, fail_badly, data)
        with pytest.raises(ModuleNotFoundError, match="left_at_home") as loading:
            map_slices(executor, give_unloadable, data)
        assert "result of fn could not be loaded" in loading.value.__notes__[0]
        with pytest.raises(Exception, match="pickle"):
            map_slices(executor, give_a_function, data)
        assert map_slices(executor, total, data) == [1.0, 5.0]
