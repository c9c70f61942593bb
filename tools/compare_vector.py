"""Calls on SharedVector, as a script written for 0.1.0 would make them."""

from __future__ import annotations

import os
import pickle
from functools import partial
from typing import Any

import numpy as np
from compare_record import Recorder
from numpy.typing import NDArray

import sharedvector
from sharedvector import SharedVector, remove_shared_memory


def fill(vector: SharedVector, array: NDArray[np.float32]) -> int:
    """Append until it raises; returns how many fitted."""
    count = 0
    try:
        while count < 100_000:
            vector.append(array)
            count += 1
    except sharedvector.OutOfMemoryError:
        pass
    return count


def creation_calls(r: Recorder) -> None:
    name = r.name("create")
    vector: Any = r.call("create.defaults", lambda: SharedVector(name))
    r.call("create.default_dtype", lambda: vector.dtype)
    r.call("create.default_slots", lambda: fill(vector, np.zeros(4, np.float32)))
    r.call("create.attach_positional", lambda: len(SharedVector(name, 1 << 20, 10 << 20, None)))
    r.call("create.attach_other_chunk_size", lambda: len(SharedVector(name, chunk_size=4096)))
    r.call("create.attach_create_false", lambda: len(SharedVector(name, create=False)))
    r.call("create.attach_dtype_conflict", lambda: SharedVector(name, dtype="int16"))
    r.call("create.missing", lambda: SharedVector(r.name("missing"), create=False))
    r.call("create.empty_name", lambda: SharedVector(""))
    r.call("create.name_with_slash", lambda: SharedVector("a/b"))
    r.call("create.dtype_int16", lambda: SharedVector(r.name("i16"), 4096, 1 << 20, "int16").dtype)
    r.call("create.dtype_float64", lambda: SharedVector(r.name("f64"), 4096, 1 << 20, "float64"))
    r.call("create.dtype_unknown", lambda: SharedVector(r.name("bad"), 4096, 1 << 20, "no-such"))
    r.call("create.chunk_size_negative", lambda: SharedVector(r.name("neg"), chunk_size=-1))
    r.call("create.no_slot_fits", lambda: SharedVector(r.name("none"), 1 << 20, 1 << 19))
    number: Any = 7
    r.call("create.name_not_str", lambda: SharedVector(number))
    for label, chunk, memory in (
        ("1MiB_in_10MiB", 1 << 20, 10 << 20),
        ("1MiB_in_64MiB", 1 << 20, 64 << 20),
        ("16MiB_in_128MiB", 16 << 20, 128 << 20),
        ("4KiB_in_1MiB", 4096, 1 << 20),
    ):
        sized = SharedVector(r.name("sized"), chunk, memory)
        r.call(f"create.slots_{label}", partial(fill, sized, np.zeros(2, np.float32)))
        remove_shared_memory(r.name("sized"))
    r.call("create.stats_capacity", lambda: stats_capacity(r))
    r.call("create.pickle", lambda: pickle.loads(pickle.dumps(vector)))
    r.call("remove.returns", lambda: remove_shared_memory(name))
    r.call("remove.again", lambda: remove_shared_memory(name))
    r.call("remove.gone", lambda: os.path.exists(f"/dev/shm/{name}"))
    r.call("remove.still_readable", lambda: vector.get(0))
    r.call("remove.attach_after", lambda: SharedVector(name, create=False))
    r.call("remove.name_with_slash", lambda: remove_shared_memory("a/b"))


def stats_capacity(r: Recorder) -> list[object]:
    vector: Any = SharedVector(r.name("ring"), 64, 1 << 16, "float32", True, 5)
    for value in range(9):
        if value == 0:
            vector.append(np.zeros(1, np.float32))
        else:
            vector.replace(0, np.full(1, value, np.float32))
            for _ in range(value):
                vector.get(0)
    return [vector.stats["sample_capacity"], vector.stats["sample_count"], vector.read_samples()]


def append_calls(r: Recorder) -> None:
    vector: Any = SharedVector(r.name("append"), 4096, 1 << 20)
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    r.call("append.plain", lambda: vector.append(grid))
    metas: list[tuple[str, object]] = [
        ("array", np.array([1.0, 2.0])),
        ("list", [1, 2, 3]),
        ("tuple", (1,)),
        ("int32", np.array([1, 2], np.int32)),
        ("float32", np.array([0.5], np.float32)),
        ("eight", np.arange(8.0)),
        ("empty", []),
        ("none", None),
        ("scalar", 5.0),
        ("two_d", np.zeros((2, 2))),
        ("nine", np.zeros(9)),
        ("text", "ab"),
        ("nan", [float("nan")]),
        ("bools", [True, False]),
    ]
    for label, meta in metas:
        before = len(vector)
        r.call(f"append.meta_{label}", lambda m=meta: vector.append(grid, m))  # type: ignore[misc]
        if len(vector) > before:
            r.call(f"append.meta_{label}_read", lambda i=before: vector.get_meta(i))  # type: ignore[misc]
    r.call("append.keywords", lambda: vector.append(array=grid, meta=[3.0]))
    arrays: list[tuple[str, object]] = [
        ("float64", grid.astype(np.float64)),
        ("int16", grid.astype(np.int16)),
        ("fortran", np.asfortranarray(grid)),
        ("strided", np.zeros((4, 8), np.float32)[:, ::2]),
        ("zero_d", np.array(3.5, np.float32)),
        ("no_items", np.zeros((0, 3), np.float32)),
        ("five_d", np.arange(32, dtype=np.float32).reshape(2, 2, 2, 2, 2)),
        ("read_only", read_only(grid)),
        ("full_chunk", np.arange(1024, dtype=np.float32)),
        ("too_big", np.zeros(1025, np.float32)),
        ("list", [1.0, 2.0]),
        ("none", None),
        ("text", "abc"),
        ("object", np.array([None, 1])),
    ]
    for label, array in arrays:
        before = len(vector)
        r.call(f"append.{label}", lambda a=array: vector.append(a))  # type: ignore[misc]
        if len(vector) > before:
            r.call(f"append.{label}_read", lambda i=before: vector.get(i))  # type: ignore[misc]
            r.call(f"append.{label}_shape", lambda i=before: vector.get_chunk_shape(i))  # type: ignore[misc]
    r.call("append.size", lambda: [len(vector), vector.size()])
    r.call("append.free_memory", lambda: vector.free_memory)
    r.call("append.full", lambda: [vector.append(grid) for _ in range(300)])
    r.call("append.full_size", lambda: len(vector))
    r.call("append.full_free_memory", lambda: vector.free_memory < 4096)
    # Apart, because what they store differs.
    other: Any = SharedVector(r.name("other"), 4096, 1 << 20)
    r.call("append.big_endian", lambda: [other.append(grid.astype(">f4")), other.get(0)])
    r.call("append.meta_complex", lambda: other.append(grid, np.array([1 + 2j])))


def read_only(array: NDArray[np.float32]) -> NDArray[np.float32]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def get_calls(r: Recorder) -> None:
    vector: Any = SharedVector(r.name("get"), 4096, 1 << 20)
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    vector.append(grid, [1.0, 2.0, 3.0])
    vector.append(grid * 2)
    r.call("get.view", lambda: vector.get(0))
    r.call("get.keyword", lambda: vector.get(index=1))
    r.call("get.numpy_index", lambda: vector.get(np.int64(1)))
    r.call("get.bool_index", lambda: vector.get(True))
    r.call("get.past_end", lambda: vector.get(2))
    r.call("get.text_index", lambda: vector.get("0"))
    r.call("get.float_index", lambda: vector.get(0.0))
    r.call("get.none_index", lambda: vector.get(None))
    r.call("get.huge_index", lambda: vector.get(1 << 70))
    r.call("get.writeable", lambda: vector.get(0).flags.writeable)
    r.call("get.contiguous", lambda: vector.get(0).flags.c_contiguous)
    r.call("get.own_data", lambda: vector.get(0).flags.owndata)
    r.call("get.view_type", lambda: type(vector.get(0)).__name__)
    r.call("get.slice_of_view", lambda: vector.get(1)[1:, ::2].copy())
    r.call("get.meta", lambda: vector.get_meta(0))
    r.call("get.meta_none", lambda: vector.get_meta(1))
    r.call("get.meta_past_end", lambda: vector.get_meta(9))
    r.call("get.meta_is_a_copy", lambda: changed_meta(vector))
    for verb in (
        "get_chunk_ref_count",
        "get_chunk_shape",
        "get_chunk_read_count",
        "get_chunk_write_count",
        "get_chunk_last_reads",
    ):
        r.call(f"get.{verb}", lambda v=verb: getattr(vector, v)(0))  # type: ignore[misc]
        r.call(f"get.{verb}_past_end", lambda v=verb: getattr(vector, v)(5))  # type: ignore[misc]
    r.call("get.pointer", lambda: vector.get_chunk_pointer(0) == vector.get(0).ctypes.data)
    r.call("get.pointer_past_end", lambda: vector.get_chunk_pointer(5))
    r.call("get.two_views", lambda: ref_counts(vector))
    r.call("get.view_outlives_handle", lambda: orphan_view(r))
    # Last, because reads are counted.
    r.call("get.negative", lambda: vector.get(-1))
    r.call("get.subscript", lambda: vector[0])


def changed_meta(vector: SharedVector) -> object:
    vector.get_meta(0)[:] = 9
    return vector.get_meta(0)


def ref_counts(vector: SharedVector) -> list[int]:
    first = vector.get(0)
    second = vector.get(0)[1:]
    counts = [vector.get_chunk_ref_count(0)]
    del first
    counts.append(vector.get_chunk_ref_count(0))
    del second
    counts.append(vector.get_chunk_ref_count(0))
    return counts


def orphan_view(r: Recorder) -> object:
    vector: Any = SharedVector(r.name("orphan"), 4096, 1 << 16)
    vector.append(np.arange(5, dtype=np.float32))
    view = vector.get(0)
    del vector
    return view


def replace_calls(r: Recorder) -> None:
    vector: Any = SharedVector(r.name("replace"), 4096, 1 << 20)
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    vector.append(grid, [1.0])
    vector.append(grid)
    for _ in range(3):
        vector.get(0)
    r.call("replace.other_shape", lambda: vector.replace(0, np.ones(7, np.float32)))
    r.call("replace.read_back", lambda: vector.get(0))
    r.call("replace.meta_cleared", lambda: vector.get_meta(0))
    r.call("replace.with_meta", lambda: vector.replace(0, grid, meta=[4, 5]))
    r.call("replace.meta_read", lambda: vector.get_meta(0))
    r.call("replace.keywords", lambda: vector.replace(index=1, array=grid + 1, meta=None))
    r.call("replace.in_use", lambda: replace_in_use(vector, grid))
    r.call("replace.after_release", lambda: vector.replace(0, grid))
    r.call("replace.past_end", lambda: vector.replace(2, grid))
    r.call("replace.float64", lambda: vector.replace(0, grid.astype(np.float64)))
    r.call("replace.transposed", lambda: vector.replace(0, grid.T))
    r.call("replace.too_big", lambda: vector.replace(0, np.zeros(5000, np.float32)))
    r.call("replace.list", lambda: vector.replace(0, [1, 2]))
    r.call("replace.none", lambda: vector.replace(0, None))
    r.call("replace.bad_meta", lambda: vector.replace(0, grid, 5.0))
    r.call("replace.unchanged_after_errors", lambda: vector.get(0))
    r.call("replace.from_own_view", lambda: vector.replace(1, vector.get(0)))
    r.call("replace.counts", lambda: [vector.read_counts(), vector.write_counts()])
    r.call("replace.last_reads", lambda: vector.last_reads())
    r.call("replace.samples", lambda: vector.read_samples())
    r.call("replace.stats", lambda: vector.stats)
    r.call("replace.has_stats", lambda: vector.has_stats)
    r.call("replace.ref_count", lambda: handle_counts(r.name("replace"), vector))
    r.call("replace.reset_stats", lambda: vector.reset_stats())
    r.call("replace.stats_after_reset", lambda: vector.stats)
    r.call("replace.samples_after_reset", lambda: vector.read_samples())
    r.call("replace.counts_after_reset", lambda: [vector.read_counts(), vector.write_counts()])
    r.call("replace.negative", lambda: vector.replace(-1, grid))
    r.call("replace.unknown_attribute", lambda: vector.no_such_name)
    r.call("replace.truth", lambda: bool(vector))
    r.call("replace.empty_truth", lambda: bool(SharedVector(r.name("empty"), 4096, 1 << 16)))


def replace_in_use(vector: SharedVector, grid: NDArray[np.float32]) -> None:
    view = vector.get(0)
    try:
        vector.replace(0, grid)
    finally:
        del view


def handle_counts(name: str, vector: SharedVector) -> list[int]:
    other = SharedVector(name, create=False)
    counts = [vector.ref_count, other.ref_count]
    del other
    return [*counts, vector.ref_count]


def record_vector(r: Recorder) -> None:
    creation_calls(r)
    append_calls(r)
    get_calls(r)
    replace_calls(r)
    tags = "create i16 f64 bad neg none ring append other get orphan replace empty".split()
    for tag in tags:
        remove_shared_memory(r.name(tag))
