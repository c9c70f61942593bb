"""What one producer does: order of sources, filling, refreshing, the brake, bad sources."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pool_support import (
    AllBad,
    Constant,
    Empty,
    Noisy,
    OneBad,
    Running,
    counter,
    unique,
    wait_for,
)

from sharedvector import Chunk, SharedVector, _core, no_meta, remove_shared_memory
from sharedvector._producer.producer import number_loader
from sharedvector.producer import producer_worker


@pytest.fixture
def vector() -> Iterator[SharedVector]:
    made = SharedVector(unique("pr"), chunk_size=4096, slot_count=8, spare_buffers=1)
    yield made
    remove_shared_memory(made.name)


# ---- order of sources --------------------------------------------------------------------------


def test_workers_share_the_sources(vector: SharedVector) -> None:
    drawn: list[int] = []

    class Recording(Constant):
        def __call__(self, source_index: int) -> list[Chunk]:
            drawn.append(source_index)
            return super().__call__(source_index)

    with Running(vector, Recording(40), source_size=40) as one:
        second = Running(vector, Recording(40), source_size=40)
        with second:
            wait_for(lambda: len(drawn) >= 80)
    assert one.events and second.events
    assert sorted(drawn[:38]) == sorted(set(drawn[:38]))  # two may be late by one each


# ---- filling and refreshing --------------------------------------------------------------------


def test_fills_then_refreshes_and_says_from_where(vector: SharedVector) -> None:
    with Running(vector, Constant()):
        wait_for(lambda: len(vector) == 8)
        wait_for(lambda: counter(vector, _core.COUNTER_LOADS) > 20)
    array = vector.get(0)
    view: Any = array.base
    assert view.source_index + 1 == array[0, 0]
    assert view.source_epoch > 0
    assert int(vector.stats["replace_events"]) > 8


def test_every_slot_gets_its_turn_when_nobody_reads(vector: SharedVector) -> None:
    with Running(vector, Constant()):
        wait_for(lambda: bool((vector.write_counts() >= 3).all()) and len(vector) == 8)
    counts = vector.write_counts()
    assert counts.max() - counts.min() <= 1


def test_no_slot_is_left_out_while_the_brake_looks_around(vector: SharedVector) -> None:
    # It looks for what was read twice for each chunk that it replaces, and there are eight slots.
    with Running(vector, Constant(), sleep_seconds=0.002):
        wait_for(lambda: len(vector) == 8)
        wait_for(lambda: bool((vector.write_counts() >= 4).all()))
    counts = vector.write_counts()
    assert counts.max() - counts.min() <= 1


def test_read_slots_are_refreshed_first(vector: SharedVector) -> None:
    # Until it would replace one that nobody has read, the brake waits for 100 s.
    with Running(vector, Constant(), sleep_seconds=10):
        wait_for(lambda: len(vector) == 8)
        before = vector.write_counts()
        for _ in range(10):
            writes = vector.get_chunk_write_count(5)
            vector.get(5)
            wait_for(lambda: vector.get_chunk_write_count(5) > writes)  # noqa: B023
        after = vector.write_counts()
    assert (after - before).tolist() == [0, 0, 0, 0, 0, 10, 0, 0]


def braked(vector: SharedVector, pause: float, workers: int) -> None:
    """Nobody reads: one replacement every ten pauses, and each worker may have one ready."""
    wait_for(lambda: len(vector) == 8)
    writes, began = int(vector.write_counts().sum()), time.monotonic()
    wait_for(lambda: int(vector.write_counts().sum()) >= writes + 12)
    count = int(vector.write_counts().sum()) - writes
    assert count <= (time.monotonic() - began) / (10 * pause) + workers


def test_the_brake_holds_while_nobody_reads(vector: SharedVector) -> None:
    with Running(vector, Constant(), sleep_seconds=0.01):
        braked(vector, 0.01, 1)


def test_the_brake_lets_go_of_what_was_read(vector: SharedVector) -> None:
    with Running(vector, Constant(), sleep_seconds=10):  # and without readers once in 100 s
        wait_for(lambda: len(vector) == 8)
        for turn in range(2, 5):
            for slot in range(8):
                vector.get(slot)
            wait_for(lambda: vector.write_counts().tolist() == [turn] * 8)  # noqa: B023


def test_the_brake_is_shared_by_the_workers(vector: SharedVector) -> None:
    with (
        Running(vector, Constant(), sleep_seconds=0.01, workers=2),
        Running(vector, Constant(), sleep_seconds=0.01, workers=2),
    ):
        braked(vector, 0.01, 2)


def test_waits_with_its_chunk_while_readers_hold_every_spare_buffer(vector: SharedVector) -> None:
    with Running(vector, Constant()):
        wait_for(lambda: len(vector) == 8)
        held = [vector.get(slot) for slot in range(8)]
        # The held buffers are displaced one by one until none is free.
        wait_for(lambda: vector.stats["blocked_replaces"] > 0)
        values = [float(array[0, 0]) for array in held]
        writes = int(vector.write_counts().sum())
        time.sleep(0.3)
        assert int(vector.write_counts().sum()) == writes
        assert [float(array[0, 0]) for array in held] == values
        del held
        wait_for(lambda: int(vector.write_counts().sum()) > writes + 8)


def test_a_layout_that_is_not_contiguous_is_copied(vector: SharedVector) -> None:
    class Turned(Constant):
        def __call__(self, source_index: int) -> list[Chunk]:
            return [Chunk(np.arange(6, dtype="f4").reshape(2, 3).T, np.array([1.0, 2.0]))]

    with Running(vector, Turned()):
        wait_for(lambda: len(vector) == 8)
        array, meta = vector.get_with_meta(0)
        assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert meta.tolist() == [1, 2]


# ---- bad sources -------------------------------------------------------------------------------


def give(result: Any) -> Callable[[int], Any]:
    return lambda source_index: result() if callable(result) else result


def leave() -> None:
    sys.exit("gives up")


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (AllBad(), "OSError: volume-"),
        (give(leave), "SystemExit: gives up"),
        (give([Chunk(np.zeros(3), no_meta())]), "dtype float64"),
        (give([Chunk(np.zeros(3, ">f4"), no_meta())]), "dtype >f4"),
        (give([Chunk(np.zeros(1025, "f4"), no_meta())]), "4100 bytes"),
        (give([Chunk([1.0], no_meta())]), "should be an array"),  # type: ignore[arg-type]
        (give([Chunk(np.zeros(3, "f4"), np.zeros((2, 2)))]), "ValueError"),
        (give([np.zeros((3, 2, 2), "f4")]), "list of Chunk"),
        (give([7]), "list of Chunk"),
        (give(None), "TypeError"),
    ],
)
def test_what_cannot_be_loaded_or_stored_is_told_and_counted(
    vector: SharedVector, loader: Any, words: str
) -> None:
    with Running(vector, loader) as running:
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 3)
    event = running.events[0]
    assert event["event"] == "failed" and not event["empty"]
    assert 0 <= event["source"] < 8
    assert words in event["error"]
    assert len(vector) == 0


def test_an_empty_source_is_counted_by_itself(vector: SharedVector) -> None:
    with Running(vector, Empty()) as running:
        wait_for(lambda: counter(vector, _core.COUNTER_EMPTY) >= 3)
    assert counter(vector, _core.COUNTER_ERRORS) == 0
    assert running.events[0]["empty"]


def test_one_bad_source_of_eight_is_skipped(
    vector: SharedVector, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sharedvector"), Running(vector, OneBad()):
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 3)
    assert len(vector) == 8
    told = [record.getMessage() for record in caplog.records]
    (line,) = told
    assert line.startswith("source 3 could not be loaded: OSError: volume-003 is truncated\nTrace")
    assert 'pool_support.py", line' in line and "in __call__" in line
    assert "_producer" not in line  # the person who reads it looks for their own line


def test_the_chunks_before_a_bad_one_are_kept(vector: SharedVector) -> None:
    class Half(Constant):
        def __call__(self, source_index: int) -> list[Chunk]:
            good = super().__call__(source_index)[0]
            return [good, good, Chunk(np.zeros(3), no_meta())]

    with Running(vector, Half()):
        wait_for(lambda: len(vector) == 8)


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_without_a_text_is_told_like_any_other(vector: SharedVector) -> None:
    def load(source_index: int) -> list[Chunk]:
        raise Speechless

    with Running(vector, load) as running:
        wait_for(lambda: counter(vector, _core.COUNTER_ERRORS) >= 3)
    assert running.events[0]["error"].startswith("Speechless")


class Counting(Constant):
    """Counts as a loader may, with NumPy's integers, and counts nonsense too."""

    def __init__(self) -> None:
        super().__init__()
        self.counters: dict[str, Any] = {"direct": np.int64(0), "missing_chunks": "many"}

    def __call__(self, source_index: int) -> list[Chunk]:
        self.counters["direct"] += np.int64(2)
        return super().__call__(source_index)


def test_what_a_loader_counts_is_counted(vector: SharedVector) -> None:
    loader = Counting()
    with Running(vector, loader):
        wait_for(lambda: counter(vector, _core.COUNTER_DIRECT) >= 8)
    assert counter(vector, _core.COUNTER_DIRECT) == loader.counters["direct"]
    assert counter(vector, _core.COUNTER_MISSING) == 0


# ---- the number of the worker ------------------------------------------------------------------


class OwnNumber(Constant):
    @property
    def worker_id(self) -> int:
        return 7


class NoNumber(Constant):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_a_loader_is_numbered_where_it_can_be() -> None:
    loader = Noisy()
    number_loader(loader, 3)
    assert loader.worker_id == 3
    own = OwnNumber()
    number_loader(own, 3)
    assert own.worker_id == 7
    number_loader(NoNumber(), 3)  # which goes on without
    plain = Constant()
    number_loader(plain, 3)
    assert not hasattr(plain, "worker_id")


# ---- as a plain function -----------------------------------------------------------------------


def test_producer_worker_makes_and_feeds_its_slots() -> None:
    name = unique("pw")
    stop = threading.Event()
    # NumPy's small integers are numbers like others.
    slots = (np.uint8(2), np.uint8(6))
    pause = np.float32(0.001)
    arguments = (name, 4096, 0, slots, np.uint8(200), np.int16(8), Noisy(200), stop, pause)
    level = logging.getLogger("sharedvector").level
    thread = threading.Thread(
        target=producer_worker, args=arguments, kwargs={"worker_id": 3}, daemon=True
    )
    thread.start()
    try:
        vector = wait_for(lambda: _attach_or_none(name))
        wait_for(lambda: len(vector) == 8)
        wait_for(lambda: bool((vector.write_counts()[2:6] > 2).all()))
        assert vector.write_counts()[[0, 1, 6, 7]].tolist() == [1, 1, 1, 1]
        assert vector.get(2).flat[0] == 3  # the loader knows its worker
    finally:
        stop.set()
        thread.join(60)
        logging.getLogger("sharedvector").setLevel(level)
        remove_shared_memory(name)
    assert not thread.is_alive()


def _attach_or_none(name: str) -> SharedVector | None:
    try:
        return SharedVector(name, create=False)
    except FileNotFoundError:
        return None


def test_producer_worker_refuses_what_cannot_be(
    vector: SharedVector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sharedvector")  # and at the end back to what it was
    stop = threading.Event()
    stop.set()

    def work(
        slots: tuple[int, int] = (0, 8),
        sources: int = 8,
        count: int = 8,
        dtype: str = "float32",
        level: int | str = 20,
    ) -> None:
        given = (vector.name, 4096, 0, slots, sources, count, Constant(), stop, 0.0, 0, dtype)
        producer_worker(*given, level)

    work()
    for level in ("info", np.int64(20)):
        work(level=level)  # type: ignore[arg-type]
    for arguments in (
        {"slots": (0, 9)},
        {"slots": (3, 3)},
        {"sources": 0},
        {"count": 9},
        {"count": 7},
        {"dtype": "int16"},
        {"level": "LOUD"},
    ):
        with pytest.raises(ValueError):
            work(**arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source_size should be an integer, got '8'"):
        work(sources="8")  # type: ignore[arg-type]
    assert len(vector) == 0
