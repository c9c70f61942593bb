"""Statistics: one record from the counters of a vector."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pool_support import unique

from sharedvector import _core
from sharedvector.stats import PoolStats, collect_stats, stats_capacity_for
from sharedvector.vector import SharedVector, remove_shared_memory

INTS = {
    "replace_events",
    "blocked_replaces",
    "reads_at_replace_total",
    "reads_at_replace_max",
    "recent_count",
    "recent_max",
    "slots",
    "slot_last_reads_max",
    "slots_never_replaced",
    "loads_direct",
    "loads_zarr",
    "loads_tensorstore",
    "missing_chunks",
    "sources_loaded",
    "sources_failed",
    "sources_empty",
    "restarts",
    "name_lost",
}


NOW = 1_800_000_000_000_000_000


class Counters:
    """The part of SharedVector that collect_stats reads, with known numbers."""

    directory, name, inode = "/dev/shm", "no-such-segment", 1

    stats = {
        "replace_events": 66,
        "reads_at_replace_total": 92,
        "reads_at_replace_max": 11,
        "blocked_replaces": 1,
        "sample_count": 10,
        "sample_capacity": 10,
    }

    def counter_add(self, counter: int, amount: int) -> int:
        assert amount == 0  # looking changes nothing
        return 100 + counter

    def read_counts(self) -> np.ndarray:
        return np.array([2, 2, 6, 16, 3, 6, 0, 0, 0], np.uint64)

    def write_counts(self) -> np.ndarray:
        return np.array([11, 5, 7, 1, 12, 7, 11, 10, 11], np.uint64)

    def last_reads(self) -> np.ndarray:
        return np.array([2, 0, 0, 0, 0, 2, 0, 0, 1], np.uint64)

    def rows(self) -> list[dict[str, Any]]:
        now = NOW
        seconds = 1_000_000_000
        holder = {"pid": 12, "command": "python train.py ", "attached_ns": now - 90 * seconds}
        return [
            {**holder, "pins": 6, "oldest_ns": now - 40 * seconds},
            {**holder, "pid": 13, "pins": 0, "oldest_ns": 0},
            {**holder, "pid": 14, "pins": 1, "oldest_ns": now + 40 * seconds},
        ]

    def read_samples(self) -> np.ndarray:
        return np.array([0, 0, 0, 7, 1, 1, 2, 4, 5, 0], np.uint32)


@pytest.fixture
def vector() -> Iterator[SharedVector]:
    name = unique("stats")
    made = SharedVector(name, chunk_size=4096, max_memory_size=1 << 20)
    yield made
    made.close()
    remove_shared_memory(name)


def test_known_counters_give_known_figures() -> None:
    stats = collect_stats(Counters())  # type: ignore[arg-type]
    assert stats.as_dict("") == pytest.approx(
        {
            "replace_events": 66,
            "blocked_replaces": 1,
            "reads_at_replace_total": 92,
            "reads_at_replace_max": 11,
            "reads_at_replace_mean": 92 / 66,
            "recent_count": 10,
            "recent_mean": 2.0,
            "recent_median": 1.0,
            "recent_p10": 0.0,
            "recent_p90": 5.2,
            "recent_max": 7,
            "slots": 9,
            "slot_last_reads_mean": 5 / 9,
            "slot_last_reads_median": 0.0,
            "slot_last_reads_max": 2,
            "slots_never_replaced": 1,
            "slot_pending_reads_mean": 35 / 9,
            "loads_direct": 100 + _core.COUNTER_DIRECT,
            "loads_zarr": 100 + _core.COUNTER_ZARR,
            "loads_tensorstore": 100 + _core.COUNTER_TENSORSTORE,
            "missing_chunks": 100 + _core.COUNTER_MISSING,
            "sources_loaded": 100 + _core.COUNTER_LOADS,
            "sources_failed": 100 + _core.COUNTER_ERRORS,
            "sources_empty": 100 + _core.COUNTER_EMPTY,
            "restarts": 100 + _core.COUNTER_RESTARTS,
            "waiting_for_views": (100 + _core.COUNTER_HELD_MS) / 1000,
            "name_lost": 1,
        }
    )


def test_who_holds_views_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    assert collect_stats(Counters()).held_by == (  # type: ignore[arg-type]
        "pid 12 (python train.py): 6 views, the oldest of a chunk from 40 s ago; attached for 90 s",
        "pid 14 (python train.py): 1 view, the oldest of a chunk from 0 s ago; attached for 90 s",
    )


def test_types_are_plain_python() -> None:
    for name, value in collect_stats(Counters()).as_dict("").items():  # type: ignore[arg-type]
        assert type(value) is (int if name in INTS else float), name


def test_as_dict_prefixes_every_field_in_order() -> None:
    stats = collect_stats(Counters())  # type: ignore[arg-type]
    names = [field.name for field in dataclasses.fields(PoolStats) if field.name != "held_by"]
    assert list(stats.as_dict()) == [f"sharedvector/{name}" for name in names]
    assert list(stats.as_dict("")) == names


def test_record_is_frozen() -> None:
    stats = collect_stats(Counters())  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.slots = 3  # type: ignore[misc]


def test_empty_vector_is_all_zero(vector: SharedVector) -> None:
    assert set(collect_stats(vector).as_dict().values()) == {0}


def test_live_vector(vector: SharedVector) -> None:
    chunk = np.zeros(8, np.float32)
    for _ in range(4):
        vector.append(chunk)
    assert collect_stats(vector).slots_never_replaced == 4
    for _ in range(5):
        vector.get(0)
    vector.replace(0, chunk)
    vector.get(0)
    vector.get(1)
    stats = collect_stats(vector)
    assert (stats.replace_events, stats.reads_at_replace_total) == (1, 5)
    assert (stats.recent_count, stats.recent_max, stats.recent_p90) == (1, 5, 5.0)
    assert (stats.slots, stats.slots_never_replaced) == (4, 3)
    assert (stats.slot_last_reads_mean, stats.slot_last_reads_max) == (1.25, 5)
    assert stats.slot_pending_reads_mean == 0.5
    assert collect_stats(vector) == stats  # looking changes nothing


def test_stats_capacity() -> None:
    assert [stats_capacity_for(n) for n in (0, 1, 2048, 2049, 100_000)] == [
        4096,
        4096,
        4096,
        4098,
        200_000,
    ]
