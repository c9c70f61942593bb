"""What a pool is made of: workers, their kind, and the buffers that they need."""

from __future__ import annotations

from typing import Any

import pytest
from pool_support import Constant, Into, Threaded

from sharedvector import ProducerService, ProducerSpec
from sharedvector._plan import Plan


def plan(loader: Any = None, slot_count: int = 64, **settings: Any) -> Plan:
    loader = loader if loader is not None else Constant()
    return Plan(loader, len(loader), slot_count, 4096, **settings)


@pytest.mark.parametrize(
    ("at_once", "slots", "settings", "spares"),
    [
        (None, 64, {}, 4),
        (None, 64, {"num_producers": 20}, 8),  # at most an eighth of the slots
        (1, 64, {}, 4),
        (2, 64, {}, 8),
        (5, 64, {}, 8),
        (5, 640, {}, 20),
        (5, 4, {}, 1),
        (5, 640, {"spare_buffers": 3}, 3),
    ],
)
def test_spares_for_all_that_workers_fill_at_once(
    at_once: int | None, slots: int, settings: dict[str, Any], spares: int
) -> None:
    loader = Constant() if at_once is None else Into(at_once=at_once)
    assert plan(loader, slots, **settings).spares == spares


@pytest.mark.parametrize(
    ("loader", "kind", "threads"),
    [
        (Constant(), "auto", 1),
        (Threaded(), "auto", 4),
        (Threaded(), "process", 1),
        (Constant(), "thread", 4),
    ],
)
def test_the_kind_of_workers(loader: Any, kind: str, threads: int) -> None:
    made = plan(loader, producer_kind=kind)
    assert (made.workers, made.threads) == (4, threads)
    assert plan(loader, 2, producer_kind=kind).threads == min(threads, 2)


class Unreadable(Constant):
    def __getattr__(self, name: str) -> Any:
        raise OSError(f"no {name}")


def test_a_loader_whose_attributes_cannot_be_read_is_a_plain_one() -> None:
    made = plan(Unreadable())
    assert (made.threads, made.spares) == (1, 4)


@pytest.mark.parametrize("at_once", [0, -1, 2.0, "4", None])
def test_a_senseless_number_of_buffers_is_refused(at_once: Any) -> None:
    loader: Any = Constant()
    loader.buffers_at_once = at_once
    with pytest.raises(ValueError, match="buffers_at_once should be an integer"):
        plan(loader)


@pytest.mark.parametrize("loader", [None, "loader", 3])
def test_what_is_no_loader_is_refused_at_once(loader: Any) -> None:
    with pytest.raises(TypeError, match=f"^loader should be called with .*got {loader!r}"):
        ProducerSpec(loader, 4096)
    with pytest.raises(TypeError, match=r"^loader should be called with"):
        ProducerService("svplan", loader, 8, 4, 4096)


def test_a_loader_without_a_length_needs_a_number_of_sources() -> None:
    def loader(source_index: int) -> list[Any]:
        return []

    short: Any = loader
    with pytest.raises(TypeError, match=r"^loader should have a length.*pass source_size="):
        ProducerSpec(short, 4096).resolve_source_size()
    assert ProducerSpec(short, 4096, source_size=3).resolve_source_size() == 3


@pytest.mark.parametrize("field", ["num_producers", "chunk_size", "source_size", "slot_count"])
def test_counts_are_integers(field: str) -> None:
    settings: dict[str, Any] = {"source_size": 8, "slot_count": 4, "chunk_size": 4096}
    with pytest.raises(TypeError, match=f"^{field} should be an integer, got '4'"):
        Plan(Constant(), **{**settings, field: "4"})


def test_a_kind_that_does_not_exist_is_refused_at_once() -> None:
    bad: Any = "fork"
    words = r"producer_kind should be one of \('auto', 'process', 'thread'\), got 'fork'"
    with pytest.raises(ValueError, match=words):
        ProducerService("svplan", Constant(), 8, 4, 4096, producer_kind=bad)
    with pytest.raises(ValueError, match=words):
        ProducerSpec(Constant(), 4096, producer_kind=bad)._plan(4)
