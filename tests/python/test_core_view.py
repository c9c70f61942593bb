"""View: the pin behind an array, its buffer and its DLPack tensor."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, descriptors, filled, fresh_name, growth, held_child, kill

from sharedvector import SharedVector, _core


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def view_of(array: Any) -> Any:
    assert isinstance(array.base, _core.View)
    return array.base


def test_the_array_is_read_only_whatever_one_tries(name: str) -> None:
    with filled(name) as vector:
        array = vector.get(0)
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert not array.flags.writeable
        assert not array.flags.owndata
        assert array.ctypes.data % 64 == 0
        attempts: list[Any] = [
            lambda: array.__imul__(0),
            lambda: array.__setitem__(Ellipsis, 1),
            lambda: np.add(array, 1, out=array),
            lambda: setattr(array.flags, "writeable", True),
            lambda: array[1:].__setitem__(0, 1),
            lambda: array.reshape(-1).sort(),
            lambda: setattr(array.view(np.int32).flags, "writeable", True),
        ]
        for attempt in attempts:
            with pytest.raises(ValueError):
                attempt()
        assert (vector.get(0) == FLOATS).all()


def test_a_view_tells_where_its_chunk_comes_from(name: str) -> None:
    with filled(name) as vector:
        before = time.time_ns()
        vector.replace(1, FLOATS, source_index=7, source_epoch=1 << 40)
        view = view_of(vector.get(1))
        assert (view.slot, view.version) == (1, 2)
        assert (view.source_index, view.source_epoch) == (7, 1 << 40)
        assert before - 10**9 < view.published_ns < time.time_ns() + 10**9
        first = view_of(vector.get(0))
        assert (first.version, first.source_index, first.source_epoch) == (1, 0, 0)


def test_the_pin_lives_as_long_as_the_last_array(name: str) -> None:
    with filled(name) as vector:
        part = vector.get(0)[1:, ::2]
        gc.collect()
        assert vector.get_chunk_ref_count(0) == 1
        vector.replace(0, FLOATS + 100, refuse=False)
        assert (part == FLOATS[1:, ::2]).all()
        assert vector.get_chunk_ref_count(0) == 0
        assert vector.rows()[0]["pins"] == 1
        del part
        assert vector.rows()[0]["pins"] == 0


def test_no_pin_is_left_by_a_failed_get(name: str) -> None:
    with filled(name) as vector:
        for _ in range(100):
            with pytest.raises(IndexError):
                vector.get(3)
        assert vector.rows()[0]["pins"] == 0


def test_get_with_meta_is_one_chunk_and_one_read(name: str) -> None:
    with filled(name) as vector:
        vector.replace(1, FLOATS, meta=[1, 2])
        array, meta = vector.get_with_meta(1)
        assert (array == FLOATS).all()
        assert meta.tolist() == [1, 2]
        assert vector.get_chunk_read_count(1) == 1
        assert vector.get_chunk_ref_count(1) == 1


# ---- buffer ------------------------------------------------------------------------------------


def test_the_buffer_has_shape_and_format(name: str) -> None:
    with filled(name) as vector:
        view = view_of(vector.get(0))
        memory = memoryview(view)
        assert memory.readonly
        assert (memory.shape, memory.format, memory.itemsize) == ((3, 4), "f", 4)
        assert memory.strides == (16, 4)
        assert memory.tobytes() == FLOATS.tobytes()
        assert (np.asarray(view) == FLOATS).all()
        del view
        assert vector.get_chunk_ref_count(0) == 1
        memory.release()
        assert vector.get_chunk_ref_count(0) == 0


@pytest.mark.parametrize("dtype", [">i4", [("a", "u1"), ("b", "<f8")], "M8[ns]"], ids=str)
def test_the_buffer_of_other_dtypes_is_bytes(name: str, dtype: Any) -> None:
    with SharedVector(name, slot_count=1, chunk_size=4096, dtype=dtype) as vector:
        array = np.zeros(5, dtype)
        vector.append(array)
        memory = memoryview(view_of(vector.get(0)))
        assert (memory.format, memory.nbytes, memory.ndim) == ("B", array.nbytes, 1)


def test_scalars_and_empty_chunks_have_buffers(name: str) -> None:
    with SharedVector(name, slot_count=2, chunk_size=64) as vector:
        vector.append(np.array(7, np.float32))
        vector.append(np.zeros((0, 3), np.float32))
        scalar = memoryview(view_of(vector.get(0)))
        assert scalar.shape == ()
        assert scalar[()] == 7
        empty = memoryview(view_of(vector.get(1)))
        assert empty.shape == (0, 3)
        assert empty.nbytes == 0


# ---- DLPack ------------------------------------------------------------------------------------


class Versioned:
    """Asks for a versioned capsule, as NumPy from 2.1 on does by itself."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __dlpack__(self, **options: Any) -> object:
        options["max_version"] = (1, 0)
        return self.view.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


NUMPY_READS_VERSIONED = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


@pytest.mark.skipif(not NUMPY_READS_VERSIONED, reason="NumPy before 2.1 reads no versioned DLPack")
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "complex128", "uint64", "float16"])
def test_dlpack_shares_read_only_and_keeps_the_pin(name: str, dtype: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=4096, dtype=dtype) as vector:
        chunk = np.arange(24).reshape(2, 3, 4).astype(dtype)
        vector.append(chunk)
        source: Any = Versioned(view_of(vector.get(0)))
        shared = np.from_dlpack(source)
        del source
        assert shared.dtype == chunk.dtype
        assert (shared == chunk).all()
        assert not shared.flags.writeable
        assert shared.ctypes.data == vector.get_chunk_pointer(0)
        assert vector.get_chunk_ref_count(0) == 1
        del shared
        assert vector.get_chunk_ref_count(0) == 0


def test_dlpack_capsules_that_nobody_takes_give_the_pin_back(name: str) -> None:
    with filled(name) as vector:
        capsule = view_of(vector.get(0)).__dlpack__(max_version=(1, 1))
        assert "dltensor_versioned" in repr(capsule)
        assert vector.get_chunk_ref_count(0) == 1
        del capsule
        assert vector.get_chunk_ref_count(0) == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_version": None},
        {"max_version": (0, 8)},
        {"max_version": (1, 0), "copy": True},
        {"max_version": (1, 0), "dl_device": (2, 0)},
        {"max_version": (1, 0), "stream": 1},
    ],
    ids=str,
)
def test_dlpack_refuses_what_it_cannot_say(name: str, options: dict[str, Any]) -> None:
    with filled(name) as vector:
        view = view_of(vector.get(0))
        assert view.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError):
            view.__dlpack__(**options)
        with pytest.raises(TypeError):
            view.__dlpack__(max_version=3)


def test_dlpack_has_no_type_for_swapped_bytes(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64, dtype=">f4") as vector:
        vector.append(np.zeros(3, ">f4"))
        with pytest.raises(BufferError, match="dtype"):
            view_of(vector.get(0)).__dlpack__(max_version=(1, 0))


# ---- life --------------------------------------------------------------------------------------


def read_in_every_way(vector: SharedVector, rounds: int) -> None:
    for _ in range(rounds):
        vector.get(0)
        vector.get_with_meta(1)
        vector.get_meta(2)
        memoryview(view_of(vector.get(0))).release()
        view_of(vector.get(0)).__dlpack__(max_version=(1, 0))
        vector.gather([0, 1])
        with contextlib.suppress(IndexError):
            vector.get(99)


def test_reading_leaks_nothing(name: str) -> None:
    with filled(name) as vector:
        dtype = vector.numpy_dtype
        read_in_every_way(vector, 1000)
        gc.collect()
        references = (sys.getrefcount(dtype), sys.getrefcount(_core.View))
        assert growth(lambda: read_in_every_way(vector, 20_000), 2 << 20) < 2 << 20
        assert (sys.getrefcount(dtype), sys.getrefcount(_core.View)) == references
        assert vector.rows()[0]["pins"] == 0


def test_writing_leaks_nothing(name: str) -> None:
    with filled(name) as vector:
        dtype = vector.numpy_dtype

        def work(rounds: int) -> None:
            for _ in range(rounds):
                vector.replace(0, FLOATS, [1, 2])
                with vector.reserve((3, 4)) as reservation:
                    reservation.publish(1)
                vector.reserve(3)
                with contextlib.suppress(ValueError):
                    vector.replace(0, FLOATS.T)

        work(500)
        gc.collect()
        references = (sys.getrefcount(dtype), sys.getrefcount(vector), sys.getrefcount(FLOATS))
        assert growth(lambda: work(5_000), 2 << 20) < 2 << 20
        assert references == (
            sys.getrefcount(dtype),
            sys.getrefcount(vector),
            sys.getrefcount(FLOATS),
        )


def test_handles_leak_nothing(name: str) -> None:
    keeper = filled(name)

    def work(rounds: int) -> None:
        for _ in range(rounds):
            with SharedVector(name) as vector:
                vector.get(0)
            SharedVector(name)

    work(50)
    before = descriptors()
    references = sys.getrefcount(SharedVector)
    work(500)
    assert descriptors() <= before
    assert sys.getrefcount(SharedVector) == references
    assert keeper.ref_count == 1
    keeper.close()


def test_attaching_again_and_again_leaks_nothing(name: str) -> None:
    filled(name).close()

    def work(rounds: int) -> None:
        for _ in range(rounds):
            with SharedVector(name) as vector:
                view = vector.get(0)
            del view

    work(20)
    before = descriptors()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    work(200)
    assert descriptors() <= before
    assert len(Path("/proc/self/maps").read_text().splitlines()) - maps < 20


def test_a_killed_reader_leaves_no_pin(name: str) -> None:
    with filled(name) as vector, held_child(lambda: SharedVector(name).get(0)[1:]) as pid:
        assert vector.get_chunk_ref_count(0) == 1
        kill(pid)
        vector.replace(0, FLOATS, timeout=0)
        assert vector.get_chunk_ref_count(0) == 0
        assert vector.ref_count == 1


def test_a_killed_reader_counts_no_more_even_before_anybody_writes(name: str) -> None:
    with filled(name) as vector, held_child(lambda: SharedVector(name).get(1)) as pid:
        kill(pid)
        assert vector.get_chunk_ref_count(1) == 0
