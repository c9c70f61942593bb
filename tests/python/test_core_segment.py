"""Segment: life, facts, errors, gather, counters, processes."""

from __future__ import annotations

import builtins
import errno
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, filled, fresh_name

import sharedvector
from sharedvector import SharedVector, _core

FLOAT32 = np.dtype(np.float32)


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def shm(name: str) -> Path:
    return Path(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm")) / name


# ---- errors ------------------------------------------------------------------------------------


def test_exceptions_derive_from_what_callers_expect() -> None:
    assert sharedvector.MemoryError.__mro__[1] is builtins.MemoryError
    assert sharedvector.OutOfMemoryError.__mro__[1] is builtins.MemoryError
    assert not issubclass(sharedvector.OutOfMemoryError, sharedvector.MemoryError)
    assert issubclass(sharedvector.ArraySizeError, ValueError)
    assert issubclass(sharedvector.ArraySizeError, RuntimeError)
    for each in ("InUseError", "DataModifiedError", "FormatError", "PoolStalledError"):
        found = getattr(sharedvector, each)
        assert issubclass(found, RuntimeError)
        assert found.__module__ == "sharedvector"
    assert issubclass(_core.PoolBusyError, RuntimeError)


@pytest.mark.parametrize(
    "bad",
    ["", "a/b", "/a", ".hidden", "..", "x.lock", "x.ready", "nul\0tail", "\udc80", "b" * 241],
    ids=ascii,
)
def test_bad_names_are_value_errors_everywhere(bad: str) -> None:
    for call in (
        lambda: _core.check_name(bad),
        lambda: _core.Segment(bad, create=False),
        lambda: _core.remove(bad),
        lambda: _core.Owner(bad),
        lambda: _core.read_ready(bad),
        lambda: _core.probe_owner(bad),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("good", ["run:42", "run 42", "run.v2.1", "Lauf-ü-数据"])
def test_odd_names_are_used_as_they_are(name: str, good: str) -> None:
    odd = f"{name} {good}"
    segment = _core.Segment(odd, slot_count=1, chunk_size=64)
    try:
        assert segment.name == odd
        assert shm(odd).exists()
        segment.close()
    finally:
        _core.remove(odd)
    assert not shm(odd).exists()


def test_names_must_be_text() -> None:
    with pytest.raises(TypeError, match="str"):
        _core.Segment(b"bytes")  # type: ignore[arg-type]


# ---- opening -----------------------------------------------------------------------------------


def test_a_missing_segment_is_file_not_found(name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        _core.Segment(name, create=False)
    assert caught.value.errno == errno.ENOENT
    assert name in str(caught.value)


def test_exclusive_refuses_what_exists(name: str) -> None:
    with _core.Segment(name, exclusive=True, slot_count=2, chunk_size=64):
        with pytest.raises(FileExistsError) as caught:
            _core.Segment(name, exclusive=True)
        assert caught.value.errno == errno.EEXIST


def test_replace_makes_a_new_segment_and_leaves_the_old_to_its_users(name: str) -> None:
    old = filled(name, 1)
    view = old.get(0)
    with SharedVector(name, slot_count=4, chunk_size=64, replace=True) as new:
        assert new.inode != old.inode
        assert new.generation != old.generation
        assert len(new) == 0
        assert (view == FLOATS).all()
    old.close()


@pytest.mark.parametrize("content", [b"", bytes(1 << 16), bytes(range(256)) * 256], ids=len)
def test_a_foreign_file_is_refused_at_once_and_can_be_replaced(name: str, content: bytes) -> None:
    shm(name).write_bytes(content)
    shm(name).chmod(0o600)
    started = time.monotonic()
    for create in (False, True):
        with pytest.raises(sharedvector.FormatError, match=name):
            SharedVector(name, create=create, timeout=120)
    assert time.monotonic() - started < 60  # nobody waits for its maker
    with SharedVector(name, replace=True, slot_count=1, chunk_size=64) as vector:
        assert vector.capacity == 1


def test_a_full_file_system_is_an_oserror_with_enospc(name: str) -> None:
    there = os.statvfs(shm(name).parent)
    wanted = there.f_frsize * there.f_blocks * 2
    with pytest.raises(OSError) as caught:
        SharedVector(name, chunk_size=1 << 20, slot_count=wanted >> 20)
    assert caught.value.errno == errno.ENOSPC
    assert not shm(name).exists()


@pytest.mark.parametrize(
    "options",
    [
        {"slot_count": 0},
        {"chunk_size": 0},
        {"chunk_size": 1 << 20, "max_memory_size": 1 << 19},
        {"spare_buffers": 0},
        {"spare_buffers": 1 << 32},
        {"mode": 0o7777},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"generation": "a\0b"},
    ],
    ids=str,
)
def test_bad_options_are_value_errors(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        _core.Segment(name, **options)
    assert not shm(name).exists()


@pytest.mark.parametrize(
    "options", [{"slot_count": -1}, {"chunk_size": -1}, {"chunk_size": 1 << 64}], ids=str
)
def test_numbers_that_no_unsigned_type_holds_are_type_errors(
    name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="from 0 to"):
        _core.Segment(name, **options)
    assert not shm(name).exists()


def test_attach_refuses_another_inode_or_generation(name: str) -> None:
    with _core.Segment(name, slot_count=2, chunk_size=64) as first:
        with pytest.raises(ValueError, match=name):
            _core.Segment(name, create=False, expect_inode=first.inode + 1)
        with pytest.raises(ValueError, match="generation"):
            _core.Segment(name, create=False, generation="another")
        with _core.Segment(
            name, create=False, expect_inode=first.inode, generation=first.generation
        ) as second:
            assert second.generation == first.generation


def test_a_handle_cannot_be_opened_twice(name: str) -> None:
    with _core.Segment(name, slot_count=2, chunk_size=64) as segment:
        with pytest.raises(ValueError, match="open already"):
            segment.__init__(name)  # type: ignore[misc]
        assert segment.capacity == 2


def test_a_handle_that_was_never_opened_says_so() -> None:
    segment = _core.Segment.__new__(_core.Segment)
    for call in (segment.size, segment.rows, lambda: segment.get(0), segment.recover):
        with pytest.raises(ValueError, match="never opened"):
            call()
    segment.close()


def test_views_and_reservations_are_made_by_segments_alone() -> None:
    for kind in (_core.View, _core.Reservation):
        with pytest.raises(TypeError):
            kind()


# ---- facts -------------------------------------------------------------------------------------


def test_facts(name: str) -> None:
    with _core.Segment(
        name,
        slot_count=5,
        spare_buffers=3,
        chunk_size=4096,
        stats_capacity=7,
        dtype="int16",
        itemsize=2,
    ) as segment:
        assert segment.name == name
        assert segment.directory == str(shm(name).parent)
        assert segment.inode == shm(name).stat().st_ino
        assert (segment.dtype_text, segment.itemsize) == ("int16", 2)
        assert (segment.capacity, segment.spare_buffers, segment.chunk_size) == (5, 3, 4096)
        assert segment.stats_capacity == 7
        assert segment.free_memory == 5 * 4096
        assert segment.segment_bytes > 8 * 4096
        assert segment.row_bytes > 0
        assert segment.processes == 63
        assert segment.owned is False
        assert segment.ref_count == 1
        assert segment.closed is False
        segment.check()


def test_a_closed_handle_keeps_its_facts_and_refuses_the_rest(name: str) -> None:
    vector = filled(name)
    vector.close()
    vector.close()
    assert vector.closed
    assert (vector.name, vector.capacity, vector.dtype) == (name, 235, "float32")
    calls: list[Any] = [
        lambda: vector.get(0),
        lambda: vector[0],
        lambda: vector.get_meta(0),
        lambda: vector.get_with_meta(0),
        lambda: vector.gather([0]),
        lambda: vector.append(FLOATS),
        lambda: vector.replace(0, FLOATS),
        lambda: vector.reserve(3),
        lambda: vector.get_chunk_shape(0),
        lambda: vector.get_chunk_ref_count(0),
        lambda: vector.counter_add(0),
        lambda: vector.stats,
        lambda: vector.free_memory,
        lambda: vector.ref_count,
        lambda: len(vector),
        vector.size,
        vector.read_counts,
        vector.read_samples,
        vector.reset_stats,
        vector.rows,
        vector.recover,
        vector.check,
        vector.refresh_next,
        vector.retired_get,
        vector.count_blocked,
        vector.__enter__,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()


def test_views_survive_close_and_removal(name: str) -> None:
    vector = filled(name)
    view = vector.get(2)
    vector.close()
    sharedvector.remove_shared_memory(name)
    gc.collect()
    assert (view == FLOATS + 2).all()


def test_dtype_is_bound_once_and_must_fit(name: str) -> None:
    with _core.Segment(name, slot_count=2, chunk_size=4096) as segment:
        for call in (lambda: segment.get(0), lambda: segment.append(FLOATS)):
            with pytest.raises(RuntimeError, match="bind_dtype"):
                call()
        with pytest.raises(RuntimeError, match="bind_dtype"):
            _ = segment.numpy_dtype
        with pytest.raises(TypeError):
            segment.bind_dtype("float32")  # type: ignore[arg-type]
        with pytest.raises(sharedvector.FormatError, match="4 bytes"):
            segment.bind_dtype(np.dtype(np.float64))
        with pytest.raises(ValueError):
            segment.bind_dtype(np.dtype(object))
        segment.bind_dtype(FLOAT32)
        assert segment.numpy_dtype == FLOAT32
        with pytest.raises(ValueError, match="already"):
            segment.bind_dtype(FLOAT32)


# ---- indices -----------------------------------------------------------------------------------


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


@pytest.mark.parametrize("index", [1, -2, True, np.int64(1), np.uint8(1), Index(1), Index(-2)])
def test_indices_that_name_slot_one(name: str, index: Any) -> None:
    with filled(name) as vector:
        assert (vector.get(index) == FLOATS + 1).all()
        assert (vector.get(index=index) == FLOATS + 1).all()
        assert (vector[index] == FLOATS + 1).all()
        assert vector.get_chunk_shape(index) == (3, 4)
        assert vector.get_chunk_write_count(index) == 1
        vector.replace(index, FLOATS)
        assert (vector.get(1) == FLOATS).all()


@pytest.mark.parametrize("index", [3, -4, 1 << 31, 1 << 32, -(1 << 63), 1 << 63, 1 << 80])
def test_indices_out_of_range_name_index_and_size(name: str, index: int) -> None:
    with filled(name) as vector:
        calls: list[Any] = [
            lambda: vector.get(index),
            lambda: vector.get_meta(index),
            lambda: vector.replace(index, FLOATS),
            lambda: vector.gather([0, index]),
            lambda: vector.get_chunk_pointer(index),
            lambda: vector.get_chunk_read_count(index),
        ]
        for call in calls:
            with pytest.raises(IndexError, match=rf"{index}.*3 slots"):
                call()


@pytest.mark.parametrize("index", [1.0, "1", None, slice(0, 1), (0,)], ids=str)
def test_other_indices_are_type_errors(name: str, index: Any) -> None:
    with filled(name) as vector:
        for call in (lambda: vector.get(index), lambda: vector[index]):
            with pytest.raises(TypeError):
                call()


def test_wrong_arguments_are_type_errors(name: str) -> None:
    with filled(name) as vector:
        anything: Any = vector
        calls: list[Any] = [
            lambda: anything.get(),
            lambda: anything.get(0, 1),
            lambda: anything.get(0, index=0),
            lambda: anything.get(other=0),
            lambda: anything.append(),
            lambda: anything.append(FLOATS, None, 1),
            lambda: anything.replace(0),
            lambda: anything.replace(index=0),
            lambda: anything.gather(),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                call()


# ---- gather ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices", [[0, 2, -1, 0], (1,), np.array([2, 0], np.uint16), range(3)], ids=str
)
def test_gather_copies_in_order(name: str, indices: Any) -> None:
    with filled(name) as vector:
        batch = vector.gather(indices)
        assert batch.shape == (len(indices), 3, 4)
        assert batch.dtype == FLOAT32
        assert batch.flags.writeable
        for item, index in zip(batch, indices, strict=True):
            assert (item == FLOATS + index % 3).all()
        assert vector.read_counts().sum() == len(indices)
        assert [vector.get_chunk_ref_count(i) for i in range(3)] == [0, 0, 0]


def test_gather_into_an_array(name: str) -> None:
    with filled(name) as vector:
        out = np.zeros((2, 3, 4), np.float32)
        assert vector.gather([2, 1], out=out) is out
        assert (out == np.stack([FLOATS + 2, FLOATS + 1])).all()


def test_gather_large_chunks_without_the_gil(name: str) -> None:
    with SharedVector(name, chunk_size=1 << 20, slot_count=3) as vector:
        for i in range(3):
            vector.append(np.full((512, 512), i, np.float32))
        batch = vector.gather([2, 0, 1])
        assert [float(item.min()) for item in batch] == [2, 0, 1]
        assert [float(item.max()) for item in batch] == [2, 0, 1]


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros((2, 3, 4)), ValueError),
        (np.zeros((2, 4, 3), np.float32), ValueError),
        (np.zeros((3, 3, 4), np.float32), ValueError),
        (np.zeros((2, 3, 4), ">f4"), ValueError),
        (np.zeros((2, 4, 3), np.float32).transpose(0, 2, 1), sharedvector.ArraySizeError),
        (np.broadcast_to(np.float32(0), (2, 3, 4)), ValueError),
        ([0.0], TypeError),
    ],
)
def test_gather_refuses_a_wrong_out(name: str, out: Any, error: type[Exception]) -> None:
    with filled(name) as vector, pytest.raises(error):
        vector.gather([0, 1], out=out)


def test_gather_refuses_read_only_out(name: str) -> None:
    out = np.zeros((1, 3, 4), np.float32)
    out.flags.writeable = False
    with filled(name) as vector, pytest.raises(ValueError, match="read-only"):
        vector.gather([0], out=out)


def test_gather_of_nothing_and_of_different_shapes(name: str) -> None:
    with filled(name) as vector:
        with pytest.raises(ValueError, match="no indices"):
            vector.gather([])
        empty = np.zeros((0, 3, 4), np.float32)
        assert vector.gather([], out=empty) is empty
        vector.append(FLOATS[0].copy())
        with pytest.raises(ValueError, match="slot 3"):
            vector.gather([0, 3])
        unfit: list[Any] = [[0.5], ["a"], 3, None, np.zeros((1, 1), int)]
        for indices in unfit:
            with pytest.raises(TypeError):
                vector.gather(indices)


# ---- counters ----------------------------------------------------------------------------------


def test_statistics_of_slots_and_pool(name: str) -> None:
    with filled(name) as vector:
        for _ in range(3):
            vector.get(0)
        vector.get_meta(0)
        assert vector.read_counts().tolist() == [3, 0, 0]
        vector.replace(0, FLOATS)
        vector.get(0)
        assert vector.get_chunk_read_count(0) == 1
        assert vector.get_chunk_write_count(0) == 2
        assert vector.get_chunk_last_reads(0) == 3
        assert vector.write_counts().tolist() == [2, 1, 1]
        assert vector.last_reads().tolist() == [3, 0, 0]
        assert vector.read_counts().dtype == np.uint64
        assert vector.read_samples().tolist() == [3]
        assert vector.read_samples().dtype == np.uint32
        view = vector.get(1)
        assert vector.get_chunk_ref_count(1) == 1
        with pytest.raises(sharedvector.InUseError, match=str(os.getpid())):
            vector.replace(1, FLOATS)
        assert (view == FLOATS + 1).all()
        vector.count_blocked(4)
        assert vector.stats == {
            "replace_events": 1,
            "reads_at_replace_total": 3,
            "reads_at_replace_max": 3,
            "blocked_replaces": 5,
            "sample_count": 1,
            "sample_capacity": vector.stats_capacity,
        }
        vector.reset_stats()
        assert vector.stats["blocked_replaces"] == 0
        assert vector.read_samples().tolist() == []
        assert vector.write_counts().tolist() == [2, 1, 1]


def test_shared_counters(name: str) -> None:
    with filled(name) as vector, SharedVector(name) as other:
        assert vector.counter_add(_core.COUNTER_LOADS) == 0
        assert other.counter_add(_core.COUNTER_LOADS, 5) == 1
        assert vector.counter_add(_core.COUNTER_LOADS, amount=0) == 6
        with pytest.raises(ValueError):
            vector.counter_add(16)


def test_refresh_next_prefers_slots_that_were_read(name: str) -> None:
    with SharedVector(name, slot_count=4, chunk_size=4096) as vector:
        with pytest.raises(IndexError):
            vector.refresh_next()
        for _ in range(4):
            vector.append(FLOATS)
        assert vector.refresh_next()[1] is True
        vector.get(2)
        assert vector.refresh_next() == (2, False)


# ---- processes ---------------------------------------------------------------------------------


def test_rows_describe_this_process(name: str) -> None:
    with filled(name) as vector:
        views = [vector.get(0), vector.get(1)]
        (row,) = vector.rows()
        assert sorted(row) == sorted(
            "row live owner pid start_time attached_ns pins claims oldest_ns command".split()
        )
        assert (row["pid"], row["live"], row["pins"]) == (os.getpid(), True, 2)
        assert abs(row["attached_ns"] / 1e9 - time.time()) < 60
        assert row["oldest_ns"] == views[0].base.published_ns
        assert vector.recover() == 0
        del views
        assert vector.rows()[0]["oldest_ns"] == 0


def test_list_segments_tells_what_is_there(name: str) -> None:
    with filled(name) as vector:
        (found,) = [each for each in _core.list_segments() if each["name"] == name]
        assert found["inode"] == vector.inode
        assert found["generation"] == vector.generation
        assert found["bytes"] > 0
        assert found["attached"] is True
        assert found["owned"] is False and found["block"] is False
        assert found["owner_pid"] == 0
    (found,) = [each for each in _core.list_segments() if each["name"] == name]
    assert found["attached"] is False
    with pytest.raises(OSError):
        _core.list_segments("/nonexistent")


def test_remove_exact_spares_another_segment(name: str) -> None:
    with filled(name) as vector:
        for inode, generation in ((vector.inode + 1, vector.generation), (vector.inode, "other")):
            with pytest.raises(FileNotFoundError):
                _core.remove_exact(name, inode, generation)
        assert shm(name).exists()
        _core.remove_exact(name, vector.inode, vector.generation)
        assert not shm(name).exists()


def test_retired_first_reason_stays(name: str) -> None:
    with filled(name) as vector:
        assert (vector.retired, vector.retired_reason) == (False, "")
        with pytest.raises(ValueError):
            vector.retire(_core.RETIRED_NO)
        vector.retire(_core.RETIRED_CLOSED)
        vector.retire(_core.RETIRED_PRODUCER)
        assert vector.retired_get() == _core.RETIRED_CLOSED
        assert vector.retired
        assert "closed" in vector.retired_reason


# ---- copy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20])
def test_copy(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    target = np.zeros_like(source)
    _core.copy(target, source)
    assert (target == source).all()


def test_copy_refuses_what_is_not_plain_bytes() -> None:
    numbers = np.zeros(8)
    locked = numbers.copy()
    locked.flags.writeable = False
    for target, source in (
        (numbers, np.zeros(7)),
        (numbers[:4], numbers[1:5]),
        (locked, numbers),
        (np.zeros((4, 2)).T, np.zeros((2, 4))),
        (np.zeros(4, object), np.zeros(4, object)),
    ):
        with pytest.raises(ValueError):
            _core.copy(target, source)


# ---- threads -----------------------------------------------------------------------------------


def test_many_threads_read_while_one_writes(name: str) -> None:
    vector = SharedVector(name, chunk_size=1 << 17, slot_count=4, spare_buffers=8)
    size = (1 << 17) // 4
    for i in range(4):
        vector.append(np.full(size, i, np.float32))
    problems: list[str] = []
    stop = threading.Event()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            view = vector.get(int(rng.integers(4)))
            if view[0] != view[-1] or view[0] != view[size // 2]:
                problems.append(f"torn: {view[0]} {view[-1]}")
            batch = vector.gather(rng.integers(0, 4, 3))
            if (batch != batch[:, :1]).any():
                problems.append("torn batch")

    threads = [threading.Thread(target=read, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for number in range(150):
        vector.replace(number % 4, np.full(size, number, np.float32), refuse=False, timeout=60)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not problems
    assert [vector.get_chunk_ref_count(i) for i in range(4)] == [0] * 4
    vector.check()
    vector.close()


def work_until_closed(
    vector: SharedVector, chunk: np.ndarray[Any, Any], unexpected: list[BaseException]
) -> None:
    try:
        while True:
            vector.replace(0, chunk, refuse=False, timeout=60)
            vector.gather([0, 0])
    except ValueError as error:
        if "closed" not in str(error):
            unexpected.append(error)
    except BaseException as error:
        unexpected.append(error)


def test_close_while_other_threads_work(name: str) -> None:
    for _ in range(10):
        vector = SharedVector(name, chunk_size=1 << 18, slot_count=2, spare_buffers=6)
        chunk = np.zeros(1 << 16, np.float32)
        vector.append(chunk)
        unexpected: list[BaseException] = []
        threads = [
            threading.Thread(target=work_until_closed, args=(vector, chunk, unexpected))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        vector.close()
        assert vector.closed
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads) and not unexpected
        sharedvector.remove_shared_memory(name)
