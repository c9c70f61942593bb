"""Shared arrays cut along axis 0, and one function run over all slices at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike

from sharedvector._common import Mailbox, integer
from sharedvector.arrays.executors import check_executor, run_tasks, worker_count
from sharedvector.arrays.layout import plain_array
from sharedvector.arrays.partition import (
    Bounds,
    bounds_of,
    check_rows_apart,
    even_bounds,
    slice_by_slice,
)
from sharedvector.arrays.shared_array import SharedArray, share
from sharedvector.arrays.task import Events, Job, in_this_process
from sharedvector.monitoring import Progress

__all__ = ["amap_slices", "map_slices", "split"]


def split(
    array: SharedArray, n: SupportsIndex | Sequence[slice | tuple[SupportsIndex, SupportsIndex]]
) -> list[SharedArray]:
    """Cut a shared array along axis 0 into parts that have no element in common.

    Parts of an array that this process may write are writable for whoever receives them, so that
    several workers can fill one array. Parts of a read-only one are read-only.

    Args:
        array: at least one axis; nothing is copied.
        n: number of parts, 1 or more; lengths as those of ``numpy.array_split``, the first ones
            longer by one and, with more parts than rows, the last ones of length 0. Or the bounds
            of each part, as ``(lo, hi)`` or ``slice(lo, hi)``, in any order, with gaps if need be.

    Returns:
        A handle for each part, in the order of ``n``.

    Raises:
        TypeError: `array` is no SharedArray, or `n` neither an integer nor bounds.
        ValueError: no axis; fewer than one part; bounds that are out of range or overlap; rows of
            a writable array that share memory; the handle is closed.
    """
    if not _is_shared(array):
        raise TypeError(f"split() takes a SharedArray, got {type(array).__name__}: share() it")
    if array.ndim == 0:
        raise ValueError("split() cuts axis 0, and this array has no axes")
    bounds = bounds_of(len(array), n)
    if array.writable:
        check_rows_apart(array.array, bounds)
    return [array._part(low, high, array.writable) for low, high in bounds]


def map_slices(
    executor: Any,
    fn: Callable[..., Any],
    *arrays: SharedArray | ArrayLike,
    n: SupportsIndex | None = None,
    out: SharedArray | None = None,
    progress: bool = False,
) -> Any:
    """Run ``fn`` over slices of arrays along axis 0, in the workers of an executor.

    ``fn`` gets one read-only NumPy array for each of ``arrays``, a view of the shared memory. When
    this returns or raises, no task of it runs and its own blocks are removed. The exceptions are a
    KeyboardInterrupt, after which tasks get 5 s to end, and workers that outlive a broken executor
    by more than 5 s.

    Args:
        executor: anything with ``submit()`` that gives futures (``concurrent.futures``, loky), or a
            ``multiprocessing.Pool`` or ``ThreadPool``, torch's too; workers on this machine.
        fn: for processes a function at the top level of a module, as for any use of pickle.
        arrays: all of one length on axis 0. What is no SharedArray is shared for the call, which
            copies it, or read in its place by threads of this process.
        n: number of slices, at most the length; by default one for each worker.
        out: results are written to its slices in the workers: they broadcast to the shape of the
            slice and are cast by NumPy's rule "same_kind". It may be one of ``arrays``.
        progress: show a bar where standard error is a terminal, else lines through the logger
            "sharedvector".

    Returns:
        The results in the order of the slices, or `out` if it was given.

    Raises:
        TypeError: no executor, no function, no array; `fn` returned None, or a dtype that cannot be
            cast, for `out`.
        ValueError: lengths differ; no axis; `out` is read-only here, or shares memory with an input
            other than slice by slice; a result does not fit its slice.
        Exception: what a task raised, the first by position, with its traceback in the worker.
            Tasks that had not begun were called off; `out` is written in part. One that cannot be
            pickled comes as a RuntimeError with its traceback as text.
        BrokenProcessPool: a worker was killed. Pools of ``multiprocessing`` notice by themselves
            neither that nor that a worker died with one of their queues; here it is found within
            seconds, or 40 s if it died before the call, from the pool's list of workers, a board
            where tasks tell their begin and end, and the locks of the queues. Not found is a worker
            that is stopped, not killed, or a task that never returns.
        OSError: no memory for what has to be shared.
    """
    return _map(executor, fn, arrays, n, out, progress, None)


async def amap_slices(
    executor: Any,
    fn: Callable[..., Any],
    *arrays: SharedArray | ArrayLike,
    n: SupportsIndex | None = None,
    out: SharedArray | None = None,
    progress: bool = False,
) -> Any:
    """Do as :func:`map_slices` without holding up the event loop, neither to copy nor to wait.

    Cancelling the task that awaits this calls off what has not begun, waits for what runs, however
    often it is cancelled, removes the blocks of the call and then raises CancelledError. Arguments,
    result and errors as of :func:`map_slices`.
    """
    loop = asyncio.get_running_loop()
    events: Events = Mailbox()
    ended: asyncio.Future[None] = loop.create_future()
    outcome: list[tuple[Any, BaseException | None]] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(_map, executor, fn, arrays, n, out, progress, events)
            outcome.append((result, None))
        except BaseException as error:
            outcome.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(ended.set_result, None)

    # A thread of its own: the loop's default executor may be the very one that runs the tasks.
    threading.Thread(target=work, name="amap_slices").start()
    await _uncancelled(ended, lambda: events.put(None))
    result, error = outcome.pop()
    try:
        if error is not None:
            raise error
        return result
    finally:
        del error  # it refers to this frame


async def _uncancelled(future: asyncio.Future[None], cancel: Callable[[], None]) -> None:
    """Await the future to its end, also when cancelled; then raise CancelledError."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as caught:
            if cancelled is None:
                cancel()
            cancelled = caught
            continue
        if cancelled is not None:
            raise cancelled
        return


# -- one call


def _map(
    executor: Any,
    fn: Callable[..., Any],
    arrays: tuple[Any, ...],
    n: SupportsIndex | None,
    out: SharedArray | None,
    progress: bool,
    events: Events | None,
) -> Any:
    check_executor(executor)
    if not callable(fn):
        raise TypeError(f"fn should be callable, got {type(fn).__name__}")
    # Once, whatever it is: a file that looks like an array would be read for each slice.
    sources = [source if _is_shared(source) else plain_array(source) for source in arrays]
    length = _common_length(sources, out)
    count = worker_count(executor) if n is None else integer("n", n, least=1)
    bounds = even_bounds(length, min(count, length))
    if out is not None:
        _check_out(out, sources, bounds, in_this_process(executor))
    with contextlib.ExitStack() as stack:
        if in_this_process(executor):
            jobs = [_views(sources, out, *bound) for bound in bounds]
        else:
            shared = _shared(sources, stack)
            jobs = [_parts(shared, out, *bound) for bound in bounds]
        show = stack.enter_context(_progress(fn, len(jobs), progress))
        results = run_tasks(executor, fn, jobs, show=show, events=events)
    return results if out is None else out


def _common_length(sources: list[Any], out: SharedArray | None) -> int:
    """The length of axis 0 of all arrays."""
    if not sources:
        raise TypeError("map_slices needs at least one array to cut")
    if out is not None and not _is_shared(out):
        raise TypeError(
            f"out should be a SharedArray, got {type(out).__name__}: use SharedArray.empty()"
        )
    shapes = [tuple(source.shape) for source in sources] + ([] if out is None else [out.shape])
    if not all(shapes):
        raise ValueError(
            f"arrays are cut along axis 0, and one of these shapes has none: {shapes}; give fn "
            "further arguments with functools.partial"
        )
    lengths = [shape[0] for shape in shapes]
    if len(set(lengths)) > 1:
        names = [f"array {index}" for index in range(len(sources))] + ["out"]
        found = ", ".join(f"{name}: {length}" for name, length in zip(names, lengths, strict=False))
        raise ValueError(f"all arrays should have the same length on axis 0; found {found}")
    return int(lengths[0])


def _views(sources: list[Any], out: SharedArray | None, low: int, high: int) -> Job:
    """The arguments of a task in this process."""
    parts = tuple(
        _part(source, out, low, high).array if _is_shared(source) else source[low:high]
        for source in sources
    )
    return Job(parts, None if out is None else out.array[low:high])


def _parts(sources: list[SharedArray], out: SharedArray | None, low: int, high: int) -> Job:
    """The arguments of a task in another process."""
    parts = tuple(_part(source, out, low, high) for source in sources)
    return Job(parts, None if out is None else out._part(low, high, True))


def _part(source: SharedArray, out: SharedArray | None, low: int, high: int) -> SharedArray:
    # A process maps a block once to read it and once to write it. In place both have to be at one
    # address, or NumPy would not see that a result overlaps the slice that it is copied to.
    return source._part(low, high, out is not None and _same_block(source, out))


def _shared(sources: list[Any], stack: contextlib.ExitStack) -> list[SharedArray]:
    """Handles of all arrays; those that are made here are closed with the stack."""
    made: dict[int, SharedArray] = {}
    for source in sources:
        if not _is_shared(source) and id(source) not in made:
            made[id(source)] = stack.enter_context(share(source))
    return [made.get(id(source), source) for source in sources]


def _is_shared(array: Any) -> bool:
    return isinstance(array, SharedArray)


@contextlib.contextmanager
def _progress(
    fn: Callable[..., Any], total: int, wanted: bool
) -> Iterator[Callable[[int], object]]:
    if not wanted:
        yield lambda ended: None
        return
    name = getattr(fn, "__name__", type(fn).__name__)
    bar = Progress(name, total, subject="slices of", unit="slice", done="done", patience=0.0)
    shown = 0

    def update(ended: int) -> None:
        nonlocal shown
        shown = ended
        bar.update(ended)

    try:
        yield update
    finally:
        bar.close(shown)


# -- memory in common


def _same_block(one: SharedArray, other: SharedArray) -> bool:
    return bool(one._block.key == other._block.key)


def _check_out(
    out: SharedArray, sources: list[Any], bounds: list[Bounds], in_place_of_all: bool
) -> None:
    """ValueError unless each task writes what no other task reads or writes.

    Args:
        in_place_of_all: inputs that are no SharedArray are read where they are.
    """
    if not out.writable:
        raise ValueError(
            f"out, on block {out.name!r}, is read-only in this process: make it here, or with "
            "writable=True"
        )
    target = out.array
    check_rows_apart(target, bounds)
    for index, source in enumerate(sources):
        if not _is_shared(source):
            if not in_place_of_all:
                continue
            array = source
        elif _same_block(source, out):
            array = _part(source, out, 0, len(source)).array
        else:
            continue
        if len(bounds) > 1 and not slice_by_slice(array, target):
            raise ValueError(
                f"array {index} and out have memory in common, and not slice by slice: a task "
                "would write what another one reads; use another out"
            )
