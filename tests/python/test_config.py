"""What a pool is made of: workers, their kind, and the buffers that they need."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from pool_support import Constant, Into, Threaded

from sharedvector import ProducerService, ProducerSpec
from sharedvector._pool.config import PoolConfig


def config(loader: Any = None, slot_count: int = 64, **settings: Any) -> PoolConfig:
    loader = loader if loader is not None else Constant()
    return PoolConfig(loader, slot_count=slot_count, **{"chunk_size": 4096, **settings})


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
    assert config(loader, slots, **settings).spares == spares


def test_processes_are_counted_beside_those_of_the_pool() -> None:
    assert config().attached is None  # as many as the segment itself finds usual
    assert config(processes=8, num_producers=3).attached == 8 + 1 + 3
    assert config(slot_count=2, processes=8, num_producers=3).attached == 8 + 1 + 2
    with pytest.raises(ValueError, match="processes"):
        ProducerSpec(Constant(), 4096, processes=0)


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
    made = config(loader, producer_kind=kind)
    assert (made.workers, made.threads) == (4, threads)
    assert config(loader, 2, producer_kind=kind).threads == min(threads, 2)


class Unreadable(Constant):
    def __getattr__(self, name: str) -> Any:
        raise OSError(f"no {name}")


def test_a_loader_whose_attributes_cannot_be_read_is_a_plain_one() -> None:
    made = config(Unreadable())
    assert (made.threads, made.spares) == (1, 4)


def test_buffers_at_once_may_be_numpys() -> None:
    loader: Any = Constant()
    loader.buffers_at_once = np.int64(2)
    assert config(loader).spares == 8


@pytest.mark.parametrize("at_once", [0, -1, 2.0, "4", None, np.float32(2)])
def test_a_senseless_number_of_buffers_is_refused(at_once: Any) -> None:
    loader: Any = Constant()
    loader.buffers_at_once = at_once
    with pytest.raises(ValueError, match="buffers_at_once should be an integer"):
        config(loader)


@pytest.mark.parametrize("loader", [None, "loader", 3])
def test_what_is_no_loader_is_refused_at_once(loader: Any) -> None:
    with pytest.raises(TypeError, match=f"^loader should be called with .*got {loader!r}"):
        ProducerSpec(loader, 4096)
    with pytest.raises(TypeError, match=r"^loader should be called with"):
        ProducerService("svconfig", loader, 8, 4, 4096)


def test_a_loader_without_a_length_needs_a_number_of_sources() -> None:
    def loader(source_index: int) -> list[Any]:
        return []

    short: Any = loader
    with pytest.raises(TypeError, match=r"^loader should have a length.*pass source_size="):
        ProducerSpec(short, 4096).resolve_source_size()
    assert ProducerSpec(short, 4096, source_size=3).resolve_source_size() == 3


# ---- numbers -----------------------------------------------------------------------------------


NUMPYS: dict[str, Any] = {
    "chunk_size": np.int64(4096),
    "source_size": np.uint8(8),
    "num_producers": np.int16(200),
    "spare_buffers": np.uint8(3),
    "sleep_seconds": np.float32(0.5),
}


def test_numpys_numbers_are_kept_as_plain_ones() -> None:
    plain = {name: value.item() for name, value in NUMPYS.items()}
    limit = {"producer_join_timeout": np.int64(3)}
    loader = Constant()
    made = ProducerSpec(loader, **NUMPYS, **limit)
    assert made == ProducerSpec(loader, **plain, producer_join_timeout=3)
    for name, value in plain.items():
        assert type(getattr(made, name)) is type(value)
    assert type(made.producer_join_timeout) is float
    told = PoolConfig(
        Constant(), slot_count=np.int32(64), producer_join_timeout=np.float64(3), **NUMPYS
    )  # type: ignore[arg-type]
    fields = {name: value for name, value in vars(told).items() if name != "loader"}
    assert json.loads(json.dumps(fields)) == fields  # which is how it travels
    assert (told.workers, told.spares) == (64, 3)


@pytest.mark.parametrize("field", ["num_producers", "chunk_size", "source_size", "slot_count"])
def test_counts_are_integers(field: str) -> None:
    settings: dict[str, Any] = {"source_size": 8, "slot_count": 4, "chunk_size": 4096}
    for bad in ("4", 4.0, True):
        with pytest.raises(TypeError, match=f"^{field} should be an integer, got {bad!r}"):
            PoolConfig(Constant(), **{**settings, field: bad})
    for none in (0, -1):
        with pytest.raises(ValueError, match=f"^{field} should be 1 or more, got {none}"):
            PoolConfig(Constant(), **{**settings, field: none})


@pytest.mark.parametrize("field", ["sleep_seconds", "producer_join_timeout"])
@pytest.mark.parametrize("bad", [-1, float("inf"), float("nan")])
def test_times_are_finite_and_not_negative(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match=f"{field} should be a finite number of seconds, 0 or"):
        config(**{field: bad})


@pytest.mark.parametrize(
    ("field", "bad", "words"),
    [
        ("chunk_size", 1.5, "an integer, got 1.5"),
        ("chunk_size", 0, "1 or more, got 0"),
        ("source_size", "8", "an integer, got '8'"),
        ("source_size", 0, "1 or more, got 0"),
        ("num_producers", None, "an integer, got None"),
        ("spare_buffers", 0, "1 or more, got 0"),
        ("spare_buffers", 2.0, "an integer, got 2.0"),
        ("sleep_seconds", -0.1, "a finite number of seconds, 0 or more, got -0.1"),
        ("sleep_seconds", "1", "a number of seconds, got '1'"),
        ("producer_join_timeout", -1, "a finite number of seconds, 0 or more, got -1"),
        ("producer_kind", "fork", "one of \\('auto', 'process', 'thread'\\), got 'fork'"),
        ("dtype", "no such dtype", "a fixed-size NumPy dtype .*, got 'no such dtype'"),
    ],
)
def test_every_field_is_checked_when_it_is_said_how_to_feed_a_pool(
    field: str, bad: Any, words: str
) -> None:
    settings: dict[str, Any] = {"chunk_size": 4096, field: bad}
    with pytest.raises((TypeError, ValueError), match=f"^{field} should be {words}"):
        ProducerSpec(Constant(), **settings)
    at_once: dict[str, Any] = {"source_size": 8, "slot_count": 4, **settings}
    with pytest.raises((TypeError, ValueError), match=f"^{field} should be {words}"):
        ProducerService("svconfig", Constant(), **at_once)


def test_what_may_be_left_open_stays_open() -> None:
    made = ProducerSpec(Constant(), 4096, source_size=None, spare_buffers=None)
    assert (made.source_size, made.spare_buffers) == (None, None)
    assert made.resolve_source_size() == 8
    service = ProducerService("svconfig", Constant(), None, 4, 4096)
    assert (service.config.source_size, service.config.slot_count) == (8, 4)


def test_the_log_level_of_a_service() -> None:
    for level in ("INFO", "info", 20, np.int64(20)):
        made = ProducerService("svconfig", Constant(), 8, 4, 4096, log_level=level)  # type: ignore[arg-type]
        assert made.config.log_level == logging.INFO and type(made.config.log_level) is int
    with pytest.raises(ValueError, match=r"^log_level should be .*'INFO'.* 20, got 'LOUD'"):
        ProducerService("svconfig", Constant(), 8, 4, 4096, log_level="LOUD")


# ---- what the loader tells ---------------------------------------------------------------------


class Telling(Constant):
    """Says what its chunks are like."""

    chunk_dtype = "int16"
    chunk_size = np.int32(8192)


def test_dtype_and_chunk_size_are_the_loaders_unless_given() -> None:
    told = ProducerSpec(Telling())
    assert (told.dtype, told.chunk_size) == ("int16", 8192) and type(told.chunk_size) is int
    given = ProducerSpec(Telling(), 4096, dtype="float64")
    assert (given.dtype, given.chunk_size) == ("float64", 4096)
    assert ProducerSpec(Constant(), 4096).dtype == "float32"
    service = ProducerService("svconfig", Telling(), 8, 4)
    assert (service.config.dtype, service.config.chunk_size) == ("int16", 8192)


def test_a_loader_that_does_not_tell_its_chunk_size_needs_one() -> None:
    with pytest.raises(TypeError, match=r"chunk_size is missing.*Constant does not tell: pass"):
        ProducerSpec(Constant())
    with pytest.raises(TypeError, match="chunk_size is missing"):
        ProducerService("svconfig", Constant(), 8, 4)


@pytest.mark.parametrize(("size", "kind"), [(0, ValueError), ("4", TypeError), (4.0, TypeError)])
def test_a_senseless_chunk_size_of_the_loader_is_refused(size: Any, kind: type) -> None:
    loader = Telling()
    loader.chunk_size = size
    with pytest.raises(kind, match="chunk_size of the loader Telling should be"):
        ProducerSpec(loader)


def test_a_senseless_dtype_of_the_loader_is_refused() -> None:
    loader = Telling()
    loader.chunk_dtype = "no such dtype"
    with pytest.raises(ValueError, match="dtype should be a fixed-size NumPy dtype"):
        ProducerSpec(loader)


def test_what_workers_get_is_all_they_read() -> None:
    """The payload has the configuration's values, and can be written as JSON."""
    sent = config(Telling(), num_producers=3).for_workers()
    assert json.loads(json.dumps(sent)) == sent
    assert {"slot_count", "source_size", "num_producers", "threads"} < sent.keys()
