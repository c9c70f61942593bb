"""Chunks on their way into the pool: in place, by copy, few buffers, stopped and failed sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pool_support import Constant, Into, Running, claims, counter, unique, wait_for

from sharedvector import Chunk, SharedVector, _core, no_meta, remove_shared_memory
from sharedvector._producer.writer import Landing, Stopped, Store


def make(slots: int = 8, spares: int = 4) -> SharedVector:
    return SharedVector(unique("st"), chunk_size=4096, slot_count=slots, spare_buffers=spares)


@pytest.fixture
def vector() -> Iterator[SharedVector]:
    made = make()
    yield made
    assert claims(made) == 0
    remove_shared_memory(made.name)


@pytest.fixture
def scarce() -> Iterator[SharedVector]:
    """A pool with one spare buffer."""
    made = make(8, 1)
    yield made
    assert claims(made) == 0
    remove_shared_memory(made.name)


class Told:
    """A store, what it is told to do, and one source's landing."""

    def __init__(self, vector: SharedVector) -> None:
        self.vector = vector
        self.stop = False
        self.stored = 0
        self.store = Store(vector, lambda: self.stop, 0.0, vector.capacity)
        self.landing = Landing(self.store, 3, 5, self.count)

    def count(self) -> None:
        self.stored += 1


def fill(vector: SharedVector) -> None:
    while len(vector) < vector.capacity:
        vector.append(np.zeros((4, 8), np.float32))


# ---- in place ----------------------------------------------------------------------------------


def test_what_was_allocated_is_published_where_it_lies(
    vector: SharedVector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> bool:
        raise AssertionError("copied")

    monkeypatch.setattr(Store, "copy", refuse)
    with Running(vector, Into()) as running:
        wait_for(lambda: bool((vector.write_counts() >= 3).all()) and len(vector) == 8)
    assert running.events == [{"event": "stored"}] * len(running.events)
    for slot in range(8):
        array, meta = vector.get_with_meta(slot)
        view: Any = array.base
        assert (array == view.source_index + 1).all() and array.shape == (4, 8)
        assert meta.tolist() in [[place, 0] for place in range(4)]
    assert counter(vector, _core.COUNTER_ERRORS) == 0
    assert counter(vector, _core.COUNTER_LOADS) > 0


def test_an_array_looks_as_promised(vector: SharedVector) -> None:
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    assert array.shape == (4, 8) and array.dtype == np.float32
    assert array.flags.c_contiguous and array.flags.writeable and not array.flags.owndata
    others = told.landing.allocate(5), told.landing.allocate(())
    assert (others[0].shape, others[1].shape) == ((5,), ())
    assert claims(vector) == 3
    assert told.landing.take(Chunk(array, np.array([1.0, 2.0])))
    assert not array.flags.writeable
    got, meta = vector.get_with_meta(0)
    view: Any = got.base
    assert (view.source_index, view.source_epoch, meta.tolist()) == (3, 5, [1, 2])
    told.landing.close()
    assert (claims(vector), told.stored, len(vector)) == (0, 1, 1)
    with pytest.raises(RuntimeError, match="is over"):
        told.landing.allocate(3)


def test_a_view_of_the_same_shape_is_the_array(
    vector: SharedVector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "copy", lambda *arguments, **settings: pytest.fail("copied"))
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    array[...] = 7
    assert told.landing.take((array[:], no_meta()))
    assert (vector.get(0) == 7).all()
    told.landing.close()


@pytest.mark.parametrize(
    "view", [lambda a: a.reshape(8, 4), lambda a: a[:2], lambda a: a.T, lambda a: a[1:, ::2]]
)
def test_a_part_or_another_shape_of_it_is_copied(
    vector: SharedVector, view: Callable[[Any], Any]
) -> None:
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    array[...] = np.arange(32).reshape(4, 8)
    wanted = view(array).copy()
    assert told.landing.take((view(array), no_meta()))
    told.landing.close()  # the buffer itself was not given, and goes back
    told.landing.drain()
    assert vector.get(0).tolist() == wanted.tolist()
    assert told.stored == 1


def test_whoever_loses_the_last_empty_slot_takes_a_filled_one(vector: SharedVector) -> None:
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    array[...] = 9
    fill(vector)
    looks = iter([True])  # as it was just before the other worker's append
    real = told.store._filling
    told.store._filling = lambda: next(looks, None) or real()  # type: ignore[method-assign]
    assert told.landing.take((array, no_meta()))
    told.landing.close()
    assert int(vector.write_counts().sum()) == 9
    assert any((chunk == 9).all() for chunk in vector)


# ---- few buffers -------------------------------------------------------------------------------


def test_the_second_array_is_on_the_heap_when_no_buffer_is_free(scarce: SharedVector) -> None:
    fill(scarce)
    told = Told(scarce)
    first, second = told.landing.allocate((4, 8)), told.landing.allocate((4, 8))
    assert (first.flags.owndata, second.flags.owndata) == (False, True)
    assert second.flags.c_contiguous and second.dtype == np.float32
    first[...], second[...] = 1, 2
    # The only free buffer is the first array: the second can be stored only after it.
    assert told.landing.take((second, np.array([2.0])))
    assert told.stored == 0
    assert told.landing.take((first, np.array([1.0])))
    assert told.stored == 2
    told.landing.close()
    metas = [float(scarce.get_meta(slot)[0]) for slot in range(8) if scarce.get_meta(slot).size]
    assert sorted(metas) == [1, 2]


def test_memory_that_a_loader_uses_again_is_kept_while_it_waits(scarce: SharedVector) -> None:
    fill(scarce)
    told = Told(scarce)
    held = told.landing.allocate((4, 8))
    scratch = np.empty((4, 8), np.float32)
    for value in (1, 2, 3):
        scratch[...] = value
        assert told.landing.take((scratch, no_meta()))
    held[...] = 8
    assert told.landing.take((held.reshape(8, 4), no_meta()))
    assert told.stored == 0
    told.landing.close()
    assert told.landing.drain()
    assert sorted(float(chunk.flat[0]) for chunk in scarce) == [0, 0, 0, 0, 1, 2, 3, 8]


def test_metadata_that_a_loader_uses_again_are_kept_while_they_wait(scarce: SharedVector) -> None:
    fill(scarce)
    told = Told(scarce)
    held, heap = told.landing.allocate((4, 8)), told.landing.allocate((4, 8))
    meta, foreign = np.zeros(1), np.zeros((4, 8), np.float32)
    for value, array in ((1, heap), (2, foreign), (3, held)):
        array[...] = meta[0] = value
        assert told.landing.take((array, meta))
    assert told.stored == 3
    told.landing.close()
    found = [(float(chunk.flat[0]), scarce.get_meta(i).tolist()) for i, chunk in enumerate(scarce)]
    assert sorted(found) == [(0, [])] * 5 + [(1, [1]), (2, [2]), (3, [3])]


def test_an_array_that_a_loader_drops_makes_room(scarce: SharedVector) -> None:
    fill(scarce)
    told = Told(scarce)
    for _ in range(3):
        assert not told.landing.allocate((4, 8)).flags.owndata
    part: Any = told.landing.allocate((4, 8))[1:][::2]  # is enough to write into it
    assert told.landing.allocate((4, 8)).flags.owndata
    del part
    assert told.landing.take((np.ones((4, 8), np.float32), no_meta()))
    assert (told.stored, claims(scarce)) == (1, 0)


def test_threads_of_a_loader_do_not_wait_for_each_other(scarce: SharedVector) -> None:
    fill(scarce)
    told = Told(scarce)
    arrays: list[Any] = []
    threads = [
        threading.Thread(target=lambda: arrays.append(told.landing.allocate((4, 8))), daemon=True)
        for _ in range(4)
    ]
    with scarce.reserve((1,)):  # all four find none
        for thread in threads:
            thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(60)
    told.stop = True
    assert sorted(array.flags.owndata for array in arrays) == [False, True, True, True]
    told.landing.close()


def test_who_holds_a_buffer_does_not_wait_for_another_while_the_pool_is_filled(
    scarce: SharedVector,
) -> None:
    told = Told(scarce)
    held = [told.landing.allocate((4, 8)) for _ in range(9)]
    stop = threading.Timer(30, setattr, (told, "stop", True))
    stop.start()
    assert told.landing.take((np.ones((4, 8), np.float32), no_meta()))  # not only when stopped
    stop.cancel()
    assert (told.stored, len(held)) == (0, 9)
    told.landing.close()
    assert told.landing.drain() and told.stored == 1


@pytest.mark.parametrize("at_once", [2, 7])
def test_workers_with_many_buffers_share_one_spare(
    scarce: SharedVector, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than one has to wait for its turn, on a slow machine too.
    monkeypatch.setattr("sharedvector._producer.writer._WRITE_TIMEOUT", 60.0)
    loaders = [Into(40, 2 * at_once, at_once, delay=0.001) for _ in range(4)]
    runs = [Running(scarce, loader, source_size=40, workers=4) for loader in loaders]
    for run in runs:
        run.__enter__()
    try:
        wait_for(lambda: len(scarce) == 8, 60)
        # Buffers were short, everybody stores chunks all the same, and every slot gets new ones.
        wait_for(lambda: any(scarce.get_meta(slot)[1] for slot in range(8)), 60)
        wait_for(lambda: all(len(run.events) >= 40 for run in runs), 60)
        wait_for(lambda: bool((scarce.write_counts() >= 5).all()), 60)
    finally:
        for run in runs:
            run.__exit__()
    assert counter(scarce, _core.COUNTER_ERRORS) == 0
    assert (
        int(scarce.stats["blocked_replaces"]) == 0
    )  # workers wait for each other, not for readers


def test_a_first_array_waits_and_counts_as_blocked_only_by_readers(
    scarce: SharedVector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharedvector._producer.writer._WRITE_TIMEOUT", 0.1)
    fill(scarce)
    told = Told(scarce)
    with scarce.reserve(1):
        threading.Timer(0.5, setattr, (told, "stop", True)).start()
        with pytest.raises(Stopped):
            told.landing.allocate((4, 8))
    assert scarce.stats["blocked_replaces"] == 0
    told.stop = False
    view = scarce.get(0)
    scarce.replace(0, np.zeros(3, np.float32), refuse=False)  # its old buffer is the view's now

    def stop_when_counted() -> None:
        try:
            wait_for(lambda: scarce.stats["blocked_replaces"] >= 2, 30)
        finally:
            told.stop = True

    threading.Thread(target=stop_when_counted).start()
    with pytest.raises(Stopped):
        told.landing.allocate((4, 8))
    assert scarce.stats["blocked_replaces"] >= 2
    del view


# ---- what goes wrong ---------------------------------------------------------------------------


class Breaks(Into):
    """Gives two chunks, takes two more buffers, and raises."""

    closed = 0

    def load_into(self, source_index: int, allocate: Any) -> Iterator[Chunk]:
        try:
            for _ in range(2):
                array = allocate(self.shape)
                array.fill(source_index + 1)
                yield Chunk(array, no_meta())
            arrays = [allocate(self.shape) for _ in range(2)]
            raise OSError(f"slice {len(arrays)} is damaged")
        finally:
            self.closed += 1


def test_a_source_that_breaks_halfway_keeps_its_chunks_and_no_buffers(
    vector: SharedVector,
) -> None:
    loader = Breaks()
    with Running(vector, loader) as running:
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 6)
        assert claims(vector) <= 4
    assert len(vector) == 8
    told = [event for event in running.events if event["event"] == "failed"]
    assert told[0]["error"] == "OSError: slice 2 is damaged" and not told[0]["refused"]
    assert counter(vector, _core.COUNTER_LOADS) == 0
    assert loader.closed >= 6


class Asks(Into):
    """Asks for a certain array, and gives another one of ones."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.wanted = shape

    def load_into(self, source_index: int, allocate: Any) -> Any:
        return [Chunk(allocate(self.wanted), no_meta())]


@pytest.mark.parametrize(
    ("shape", "words", "refused"),
    [
        ((5, 1024), "ChunkRefusedError: shape (5, 1024) of float32 does not fit", True),
        ((-1, 2), "ChunkRefusedError: lengths in shape must be 0 or more", True),
        ((1,) * 17, "ChunkRefusedError: an array may have 16 dimensions", True),
        ("abc", "TypeError: ", False),
        ((2.5,), "TypeError: ", False),
    ],
)
def test_a_shape_that_no_buffer_can_have(
    vector: SharedVector, shape: Any, words: str, refused: bool
) -> None:
    with Running(vector, Asks(shape)) as running:
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 2)
    assert running.events[0]["refused"] is refused
    assert words in running.events[0]["error"]
    assert len(vector) == 0


def test_an_array_cannot_be_given_twice(vector: SharedVector) -> None:
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    assert told.landing.take((array, no_meta()))
    for again in (array, array[2:], array[::-1], array.T):
        with pytest.raises(ValueError, match="given twice"):
            told.landing.take((again, no_meta()))
    told.landing.close()


def test_two_rows_are_no_chunk(vector: SharedVector) -> None:
    with pytest.raises(TypeError, match="got a ndarray"):
        Told(vector).landing.take(np.zeros((2, 4), np.float32))
    assert len(vector) == 0


def test_bad_metadata_leave_the_buffer_to_be_given_back(vector: SharedVector) -> None:
    told = Told(vector)
    array = told.landing.allocate((4, 8))
    with pytest.raises(ValueError):
        told.landing.take((array, np.zeros((2, 2))))
    assert claims(vector) == 1
    told.landing.close()
    assert (claims(vector), len(vector)) == (0, 0)


class Reader(Into):
    """Is told to stop while it holds two buffers, and lets nothing through."""

    def __init__(self, swallow: type[BaseException]) -> None:
        super().__init__()
        self.swallow = swallow
        self.held = threading.Event()

    def load_into(self, source_index: int, allocate: Any) -> Iterator[Chunk]:
        arrays = [allocate(self.shape) for _ in range(2)]
        while True:
            self.held.set()
            time.sleep(0.01)
            try:
                arrays.append(allocate(self.shape))
            except self.swallow:
                yield Chunk(arrays[0], no_meta())


@pytest.mark.parametrize("swallow", [Exception, BaseException])
def test_buffers_go_back_when_a_worker_is_told_to_stop(
    vector: SharedVector, swallow: type[BaseException]
) -> None:
    loader = Reader(swallow)
    with Running(vector, loader):
        assert loader.held.wait(10)
    assert claims(vector) == 0
    assert len(vector) == 0
    assert counter(vector, _core.COUNTER_ERRORS) == 0


# ---- what a loader counts ----------------------------------------------------------------------


class Counting(Constant):
    counters: Any = None

    def __call__(self, source_index: int) -> list[Chunk]:
        self.counters["direct"] += 2
        self.counters["missing_chunks"] += 1
        if source_index == 3:
            self.counters["zarr"] += 1
            raise OSError("no")
        return super().__call__(source_index)


def test_what_a_loader_counts_is_added_up(vector: SharedVector) -> None:
    loaders = [Counting(), Counting()]
    for loader in loaders:
        loader.counters = {"direct": 0, "zarr": 0, "missing_chunks": 0, "else": 3}
    with Running(vector, loaders[0]), Running(vector, loaders[1]):
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 3)
    for name, which in {
        "direct": _core.COUNTER_DIRECT,
        "zarr": _core.COUNTER_ZARR,
        "tensorstore": _core.COUNTER_TENSORSTORE,
        "missing_chunks": _core.COUNTER_MISSING,
    }.items():
        assert counter(vector, which) == sum(one.counters.get(name, 0) for one in loaders), name


@pytest.mark.parametrize("counters", [None, 7, {"direct": "many"}, {}])
def test_something_else_of_that_name_is_not_counted(vector: SharedVector, counters: Any) -> None:
    loader: Any = Constant()
    loader.counters = counters
    with Running(vector, loader):
        wait_for(lambda: len(vector) == 8)
    assert counter(vector, _core.COUNTER_DIRECT) == 0
    assert counter(vector, _core.COUNTER_ERRORS) == 0
