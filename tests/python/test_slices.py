"""split, map_slices and amap_slices."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_support import run
from slices_support import (
    EXECUTORS,
    IN_THIS_PROCESS,
    LIMIT,
    OFF,
    complex_of,
    facts,
    fail_at,
    held,
    marks,
    normalise,
    nothing,
    slow_but_one,
    told_of_calling_off,
    too_wide,
    total,
    turned,
    write_to,
)

from sharedvector.arrays import SharedArray, amap_slices, attachments, map_slices, share, split

SLOW_START = 150.0  # seconds for processes that import much, several times


@pytest.fixture(autouse=True)
def no_block_stays() -> Iterator[None]:
    yield
    assert attachments.made() == []


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Any]]:
    """Executors by name, started at their first use."""

    class Started(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            self[name] = stack.enter_context(EXECUTORS[name]())
            return self[name]

    with contextlib.ExitStack() as stack:
        yield Started()


@pytest.fixture
def workers(executors: dict[str, Any]) -> Any:
    return executors["processes-fork"]


@pytest.fixture
def threads(executors: dict[str, Any]) -> Any:
    return executors["threads"]


def numbers(rows: int = 10, columns: int = 3) -> Any:
    return np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)


# -- split


@pytest.mark.parametrize("n", [1, 2, 3, 10, 13])
def test_split_cuts_as_array_split(n: int) -> None:
    with share(numbers()) as array:
        parts = split(array, n)
        for part, expected in zip(parts, np.array_split(numbers(), n), strict=True):
            np.testing.assert_array_equal(part.array, expected)


def test_split_by_bounds_and_slices() -> None:
    with share(numbers()) as array:
        parts = split(array, [slice(7, None), (0, 2), (3, 3), slice(None, 0), (2, 7)])
        assert [len(part) for part in parts] == [3, 2, 0, 0, 5]
        np.testing.assert_array_equal(parts[0].array, numbers()[7:])


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (0, ValueError, "n should be 1 or more"),
        (2.5, TypeError, "n should be an integer"),
        (True, TypeError, "n should be an integer"),
        ([(0, 11)], ValueError, r"part 0 \[0:11\] is out of range"),
        ([(-1, 2)], ValueError, "out of range"),
        ([(3, 2)], ValueError, "out of range"),
        ([slice(0, 4, 2)], ValueError, "step 2"),
        ([(0, 1), 3], TypeError, "part 1 should be"),
        ([(0, 1.5)], TypeError, "part 0: hi should be an integer"),
        ([(5, 8), (9, 10), (0, 6)], ValueError, r"parts 2 \[0:6\] and 0 \[5:8\] overlap"),
    ],
)
def test_split_refuses(n: Any, error: type[Exception], message: str) -> None:
    with share(numbers()) as array, pytest.raises(error, match=message):
        split(array, n)


def test_split_refuses_what_has_no_axis_or_is_not_shared() -> None:
    with pytest.raises(TypeError, match=r"share\(\) it"):
        split(numbers(), 2)  # type: ignore[arg-type]
    with share(np.float64(1)) as array, pytest.raises(ValueError, match="no axes"):
        split(array, 1)
    with share(numbers()) as array:
        pass
    with pytest.raises(ValueError, match="closed"):
        split(array, 1)


def test_split_refuses_rows_that_share_memory() -> None:
    with share(numbers(12, 1)) as array:
        step = array.dtype.itemsize
        window = SharedArray._make(
            array._block, array.dtype, (5, 4), (2 * step, step), 0, False, array._mode
        )
        with pytest.raises(ValueError, match=r"parts 0 \[0:3\] and 1 \[3:5\] share memory"):
            split(window, 2)
        # One number seen many times is no harm as long as each part has its own.
        repeated = SharedArray._make(
            array._block, array.dtype, (5, 4), (step, 0), 0, False, array._mode
        )
        assert len(split(repeated, 5)) == 5


def test_parts_are_writable_for_those_who_receive_them(workers: Any) -> None:
    with share(numbers(4)) as array:
        for part in split(array, 2):
            workers.submit(set_to, part, 7.0).result()
        assert (array.array == 7).all()
        received = pickle.loads(pickle.dumps(array))
        read_only = workers.submit(split_there, received).result()
        assert read_only == [False, False]


def set_to(part: SharedArray, value: float) -> None:
    part.array[...] = value


def split_there(array: SharedArray) -> list[bool]:
    return [part.writable for part in split(array, 2)]


# -- map_slices


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads", "thread-pool"])
def test_normalise_is_equal_everywhere(executors: dict[str, Any], name: str) -> None:
    check_equal(executors[name])


def check_equal(executor: Any) -> None:
    """Workers make of an array, into another one and in place, what one process makes of it."""
    data = np.random.default_rng(0).random((101, 64))
    fn = functools.partial(normalise, mean=data.mean(), std=data.std())
    with share(data) as array, SharedArray.empty(data.shape) as out:
        assert map_slices(executor, fn, array, n=5, out=out) is out
        np.testing.assert_array_equal(out.array, fn(data))
        parts = map_slices(executor, fn, data, n=5)
        np.testing.assert_array_equal(np.concatenate(parts), fn(data))
        map_slices(executor, fn, array, out=array)
        np.testing.assert_array_equal(array.array, fn(data))


@pytest.mark.parametrize("name", sorted(EXECUTORS.keys() - IN_THIS_PROCESS))
def test_normalise_is_equal_with_workers_that_need_helpers(name: str) -> None:
    code = """
        import sys
        import slices_support
        from test_slices import check_equal
        if __name__ == "__main__":
            with slices_support.EXECUTORS[sys.argv[1]]() as executor:
                check_equal(executor)
    """
    status, out, err = run(code, name, seconds=SLOW_START)
    assert (status, out) == (0, "") and "Traceback" not in err, err


def test_loky() -> None:
    code = """
        import numpy as np
        from slices_support import loky
        from sharedvector.arrays import attachments
        from sharedvector.arrays import map_slices
        def fail(part):
            raise ValueError(f"slice at {part[0]}")
        with loky() as executor:
            print(map_slices(executor, lambda part: int(part.sum()), np.arange(10)))
            try:
                map_slices(executor, fail, np.arange(10))
            except ValueError as error:
                print(error, attachments.made())
    """
    status, out, err = run(code, seconds=SLOW_START)
    assert (status, out) == (0, "[10, 35]\nslice at 0 []\n") and "Traceback" not in err, err


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads", "thread-pool"])
def test_the_first_exception_by_position(
    executors: dict[str, Any], name: str, tmp_path: Path
) -> None:
    fn = functools.partial(fail_at, (2, 3), str(tmp_path))
    with (
        told_of_calling_off(tmp_path),
        pytest.raises(ValueError, match="slice at 2") as caught,
    ):
        map_slices(executors[name], fn, np.arange(100), n=100)
    if name.startswith(("processes", "pool")):
        assert "in fail_at" in str(caught.value.__cause__)
    assert len(marks(tmp_path)) < 20  # the rest was called off
    assert map_slices(executors[name], total, numbers(4), n=2) == [15.0, 51.0]


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads", "thread-pool"])
def test_what_runs_has_ended_when_it_raises(
    executors: dict[str, Any], name: str, tmp_path: Path
) -> None:
    fn = functools.partial(slow_but_one, str(tmp_path))
    with (
        told_of_calling_off(tmp_path),
        SharedArray.empty(2, int) as out,
        pytest.raises(ValueError, match="the first slice"),
    ):
        map_slices(executors[name], fn, np.arange(2), out=out)
    assert marks(tmp_path) == ["begun-1", "ended-1"]


def test_read_only_views_without_a_copy(workers: Any, threads: Any) -> None:
    with share(np.arange(8), writable=True) as array:
        for executor in (workers, threads):
            found = map_slices(executor, facts, array, n=4)
            assert [fact[1:] for fact in found] == [(False, False, 2 * i) for i in range(4)]
            with pytest.raises(ValueError, match="read-only"):
                map_slices(executor, write_to, array)
        # Threads read an array where it is.
        data = np.arange(8)
        assert all(np.shares_memory(part, data) for part in map_slices(threads, same, data))


def same(part: Any) -> Any:
    return part


def test_several_arrays_and_one_twice(workers: Any, threads: Any) -> None:
    data = numbers()
    with share(data) as array:
        for executor in (workers, threads):
            sums = map_slices(executor, total, array, data, data, [[1]] * 10)
            assert sums == [3 * data[:5].sum() + 5, 3 * data[5:].sum() + 5]


def test_one_slice_for_each_worker_and_no_more_than_rows(threads: Any) -> None:
    assert len(map_slices(threads, total, np.zeros(9))) == 2
    assert len(map_slices(threads, total, np.zeros(1))) == 1
    assert len(map_slices(threads, total, np.zeros(3), n=5)) == 3
    assert map_slices(threads, total, np.zeros((0, 4))) == []


def test_results_are_cast_and_broadcast(workers: Any, threads: Any) -> None:
    with share(numbers()) as array, SharedArray.empty((10, 3), np.float32) as out:
        for executor in (workers, threads):
            map_slices(executor, normalise, array, out=out)
            np.testing.assert_array_equal(out.array, normalise(numbers()).astype(np.float32))
            map_slices(executor, total, array, out=out, n=10)
            sums = numbers().sum(1, keepdims=True)
            np.testing.assert_array_equal(out.array, np.broadcast_to(sums, (10, 3)))


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (nothing, TypeError, "fn returned None"),
        (too_wide, ValueError, "could not be broadcast|could not broadcast"),
        (complex_of, TypeError, "Cannot cast"),
    ],
)
def test_results_that_do_not_fit(
    workers: Any, threads: Any, fn: Any, error: type[Exception], message: str
) -> None:
    with SharedArray.empty((10, 3)) as out:
        for executor in (workers, threads):
            with pytest.raises(error, match=message) as caught:
                map_slices(executor, fn, numbers(), out=out)
            notes = " ".join(getattr(caught.value, "__notes__", []))
            assert "shape (5, 3)" in notes or error is TypeError
        assert not out.array.any()


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads"])
def test_in_place(executors: dict[str, Any], name: str) -> None:
    data = numbers()
    with share(data) as array:
        assert map_slices(executors[name], turned, array, out=array) is array
        np.testing.assert_array_equal(array.array, np.concatenate([data[4::-1], data[:4:-1]]))
        # Other columns of the same rows.
        map_slices(executors[name], turned, array[:, 2], out=array[:, 0])
        np.testing.assert_array_equal(array.array[:5, 0], data[:5, 2])


def test_inputs_that_overlap_out_elsewhere(workers: Any, threads: Any) -> None:
    with share(numbers()) as array:
        for executor in (workers, threads):
            for source, out in ((array[1:], array[:-1]), (array[::-1], array)):
                with pytest.raises(ValueError, match="array 1 and out have memory in common"):
                    map_slices(executor, total, np.zeros(len(out)), source, out=out)
        with pytest.raises(ValueError, match="array 0 and out"):
            map_slices(threads, total, array.array[::-1], out=array)
        # Processes get a copy of what is no SharedArray.
        map_slices(workers, turned, array.array[::-1], n=10, out=array)
        np.testing.assert_array_equal(array.array, numbers()[::-1])
        np.testing.assert_array_equal(
            map_slices(threads, turned, array[1:], out=array[:-1], n=1), array[:-1]
        )


def test_out_is_read_only_or_not_shared(threads: Any, workers: Any) -> None:
    with pytest.raises(TypeError, match="out should be a SharedArray"):
        map_slices(threads, total, numbers(), out=numbers())  # type: ignore[arg-type]
    with share(numbers()) as array:
        with pytest.raises(ValueError, match="read-only in this process"):
            workers.submit(map_there, array).result()
        with pytest.raises(ValueError, match="array 0: 5, out: 10"):
            map_slices(threads, total, numbers(5), out=array)


def map_there(array: SharedArray) -> None:
    with ThreadPoolExecutor(1) as executor:
        map_slices(executor, total, array, out=array)


def test_arguments_are_refused_at_once(threads: Any) -> None:
    with pytest.raises(TypeError, match=r"submit\(\).*got list"):
        map_slices([], total, numbers())
    with pytest.raises(TypeError, match="fn should be callable"):
        map_slices(threads, 3, numbers())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one array"):
        map_slices(threads, total)
    with pytest.raises(ValueError, match="array 0: 10, array 1: 3"):
        map_slices(threads, total, numbers(), numbers(3))
    with pytest.raises(ValueError, match=r"has none: \[\(\)\]"):
        map_slices(threads, total, 3.0)
    with pytest.raises(ValueError, match="n should be 1 or more"):
        map_slices(threads, total, numbers(), n=0)


class Recorder:
    """An executor that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def submit(self, *call: Any) -> Future[Any]:
        self.calls.append(call)
        future: Future[Any] = Future()
        future.set_result(None)
        return future


def test_a_task_is_small_whatever_the_size() -> None:
    recorder = Recorder()
    data = np.zeros((1000, 1000))
    with share(data) as array, SharedArray.empty(data.shape, writable=True) as out:
        map_slices(recorder, total, array[::2], out=out[::2], n=8)
    assert len(recorder.calls) == 8
    for work, fn, arguments in recorder.calls:
        assert fn is total
        assert len(pickle.dumps((work, arguments))) < 300


# -- amap_slices


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads"])
def test_async(executors: dict[str, Any], name: str) -> None:
    async def main() -> tuple[Any, Any]:
        with SharedArray.empty((10, 3)) as out:
            both = (
                amap_slices(executors[name], total, numbers()),
                amap_slices(executors[name], normalise, numbers(), out=out),
            )
            sums, same = await asyncio.gather(*both)
            assert same is out
            return sums, out.array.copy()

    sums, normal = asyncio.run(main())
    assert sums == [105.0, 330.0]
    np.testing.assert_array_equal(normal, normalise(numbers()))


def test_async_in_the_default_executor_of_the_loop() -> None:
    async def main() -> Any:
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            return await asyncio.wait_for(amap_slices(executor, total, numbers()), LIMIT)

    assert asyncio.run(main()) == [435.0]


def test_async_raises_what_a_task_raised(workers: Any, tmp_path: Path) -> None:
    fn = functools.partial(fail_at, (1,), str(tmp_path))
    with pytest.raises(ValueError, match="slice at 1"):
        asyncio.run(amap_slices(workers, fn, np.arange(2)))


@pytest.mark.parametrize("name", ["processes-fork", "pool-fork", "threads"])
def test_async_cancelled_waits_for_what_runs(
    executors: dict[str, Any], name: str, tmp_path: Path
) -> None:
    directory = tmp_path / "marks"
    directory.mkdir()
    fn = functools.partial(held, str(directory), str(tmp_path / "go"))

    async def until(true: Callable[[], object]) -> None:
        while not true():
            await asyncio.sleep(0.01)

    async def main() -> None:
        task = asyncio.create_task(amap_slices(executors[name], fn, np.arange(1, 101), n=100))
        await asyncio.wait_for(until(lambda: marks(directory)), LIMIT)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.05)
        await asyncio.wait_for(until((directory / OFF).exists), LIMIT)
        assert not task.done()
        (tmp_path / "go").touch()
        with pytest.raises(asyncio.CancelledError):
            await task

    with told_of_calling_off(directory):
        asyncio.run(main())
    left = marks(directory)
    begun = [name for name in left if name.startswith("begun")]
    assert len(left) == 2 * len(begun) and len(begun) < 20


def test_async_does_not_hold_up_the_loop(threads: Any) -> None:
    turned = threading.Event()

    def wait_for_the_loop(part: Any) -> bool:
        return turned.wait(LIMIT)

    async def main() -> Any:
        task = asyncio.create_task(amap_slices(threads, wait_for_the_loop, np.arange(2)))
        for _ in range(5):
            await asyncio.sleep(0.01)
        turned.set()
        return await task

    assert asyncio.run(main()) == [True, True]


# -- progress, interrupts


def test_progress_says_how_far_it_is() -> None:
    code = """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        from sharedvector.arrays import map_slices
        def told(part): pass
        def silent(part): pass
        with ThreadPoolExecutor(2) as executor:
            map_slices(executor, told, np.arange(9), n=3, progress=True)
            map_slices(executor, silent, np.arange(9), n=3)
    """
    status, out, err = run(code)
    assert (status, out) == (0, ""), err
    # One line, but on a slow machine; of the second call none.
    assert "slices of 'told': 3/3 slices done after" in err.splitlines()[-1]
    assert "silent" not in err


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, threads: Any) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    map_slices(threads, total, numbers(), n=5, progress=True)
    assert "slices of total: 100%" in shown.getvalue() and "5/5" in shown.getvalue()


def test_keyboard_interrupt_does_not_wait_for_ever(tmp_path: Path) -> None:
    code = """
        import functools, os, pathlib, signal, sys, threading, time
        import numpy as np
        from sharedvector.arrays import attachments
        from sharedvector.arrays import executors
        from sharedvector.arrays import map_slices
        from slices_support import kill_marked, marks, processes, sleep_long, wait_for
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        executors._AFTER_INTERRUPT = 0.5
        told = pathlib.Path(sys.argv[1])
        def interrupt():
            wait_for(lambda: marks(told))
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        with processes() as executor:
            try:
                map_slices(executor, functools.partial(sleep_long, str(told)), np.arange(9), n=9)
            except KeyboardInterrupt:
                print("interrupted, blocks:", attachments.made())
            finally:
                for worker in list(executor._processes.values()):
                    worker.kill()
    """
    status, out, err = run(code, str(tmp_path))
    assert (status, out.strip()) == (0, "interrupted, blocks: []"), err


def test_masks_are_refused_wherever_tasks_run() -> None:
    masked = np.ma.masked_greater(np.arange(8.0), 5)
    with ThreadPoolExecutor(2) as executor, pytest.raises(TypeError, match="mask"):
        map_slices(executor, np.sum, masked)


class File:
    """Looks like an array, and is read whole at each conversion."""

    shape = (8,)
    dtype = np.dtype(float)

    def __init__(self) -> None:
        self.reads = 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self.reads += 1
        return np.arange(8.0)


def test_what_looks_like_an_array_is_read_once() -> None:
    file = File()
    with ThreadPoolExecutor(2) as executor:
        assert sum(map_slices(executor, np.sum, file, n=8)) == 28
    assert file.reads == 1
