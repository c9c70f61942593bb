"""gather() and gather_with_meta(): crops, conversions, flips, metadata; against plain NumPy."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, filled, fresh_name
from hypothesis import given
from hypothesis import strategies as st

import sharedvector
from sharedvector import SharedVector
from sharedvector.loaders import cast_volume

SHAPES = [(4, 5, 6), (3, 9, 8), (7, 4, 4)]
CROP = (2, 3, 4)


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def volume(slot: int, dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(slot)
    return rng.integers(-900, 900, SHAPES[slot]).astype(dtype)


@pytest.fixture
def volumes(name: str) -> Iterator[SharedVector]:
    """int16 chunks of three shapes; slot i has metadata of i values, all of them i."""
    with SharedVector(name, chunk_size=4096, slot_count=4, dtype="int16") as vector:
        for slot in range(3):
            vector.append(volume(slot, "int16"), np.full(slot, float(slot)))
        yield vector


def untouched(vector: SharedVector) -> None:
    """Nothing is pinned any more."""
    assert [vector.get_chunk_ref_count(i) for i in range(len(vector))] == [0] * len(vector)


def cut(
    chunk: np.ndarray[Any, Any], origin: Any, flip: Any = (False, False, False)
) -> np.ndarray[Any, Any]:
    part = chunk[tuple(slice(o, o + n) for o, n in zip(origin, CROP, strict=True))]
    return part[tuple(slice(None, None, -1 if f else 1) for f in flip)]


class Numbers:
    """No sequence by name, but by what it does."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> np.int16:
        return np.array([2, 0], np.int16)[place]


class Column:
    """Items by label, as a table's column has them, and an array of them in order."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, label: int) -> int:
        return {0: 0, 1: 2}[label]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array([2, 0])


@pytest.mark.parametrize("indices", [Numbers(), Column(), memoryview(b"\2\0")])
def test_indices_of_many_kinds(name: str, indices: Any) -> None:
    with filled(name, count=3) as vector:
        assert np.array_equal(vector.gather(indices), vector.gather([2, 0]))


def test_indices_of_a_tensor(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with filled(name, count=3) as vector:
        for dtype in (torch.int64, torch.uint8):
            indices = torch.tensor([2, -1 if dtype == torch.int64 else 2, 0], dtype=dtype)
            assert np.array_equal(vector.gather(indices), vector.gather([2, 2, 0]))
        for bad, words in {
            torch.tensor([[0, 1]]): "an array of one dimension, found tensor",
            torch.tensor(0): "an array of one dimension",
            torch.tensor([0.0]): "slot index must be an integer, found float32",
            torch.tensor([True]): "found bool: for a mask",
        }.items():
            with pytest.raises(TypeError, match=words):
                vector.gather(bad)
        with pytest.raises(IndexError, match="3 slots"):
            vector.gather(torch.tensor([3]))


def test_dtypes_by_the_names_of_ml_dtypes(name: str) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    with SharedVector(name, chunk_size=4096, slot_count=2, dtype="bfloat16") as vector:
        vector.append(FLOATS.astype(vector.numpy_dtype))
        batch = vector.gather([0], dtype="bfloat16")
        assert batch.dtype == vector.numpy_dtype
        assert np.array_equal(batch[0].astype(np.float32), FLOATS)
        with vector.reserve((3, 4), dtype="bfloat16") as reservation:
            assert reservation.array.dtype == vector.numpy_dtype
        with pytest.raises(TypeError, match="no conversion from bfloat16 to float32"):
            vector.gather([0], dtype="float32")
        with pytest.raises(ValueError, match=r"dtype mismatch.*float8_e5m2"):
            vector.reserve((3, 4), dtype="float8_e5m2")
        with pytest.raises(ValueError, match="not a dtype: 'bfloat17'"):
            vector.gather([0], dtype="bfloat17")


@pytest.mark.parametrize("mask", [[True, False], np.array([True, False])])
def test_a_mask_is_no_indices(volumes: SharedVector, mask: Any) -> None:
    with pytest.raises(TypeError, match=r"found bool: for a mask take numpy.flatnonzero"):
        volumes.gather(mask)
    untouched(volumes)


@pytest.mark.parametrize("indices", [np.zeros((2, 1), int), np.array(1), {0, 1}, {0: 1}, 3, None])
def test_what_no_indices_are(volumes: SharedVector, indices: Any) -> None:
    with pytest.raises(TypeError, match="sequence of integers, or an array of one dimension"):
        volumes.gather(indices)
    untouched(volumes)


# ---- crops -------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3),
            st.tuples(*[st.booleans()] * 3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_random_crops_and_flips(items: list[tuple[int, Any, Any]]) -> None:
    slots = [item[0] for item in items]
    fractions = np.array([item[1] for item in items])
    flips = np.array([item[2] for item in items])
    origins = np.array(
        [
            [int(np.floor(u * (n - c + 1))) for u, n, c in zip(us, SHAPES[slot], CROP, strict=True)]
            for slot, us in zip(slots, fractions, strict=True)
        ]
    )
    wanted = [
        cut(volume(slot, "int16"), origin, flip)
        for slot, origin, flip in zip(slots, origins, flips, strict=True)
    ]
    with fresh_name() as name, SharedVector(name, 4096, slot_count=3, dtype="int16") as vector:
        for slot in range(3):
            vector.append(volume(slot, "int16"))
        for where in (fractions, origins):
            batch = vector.gather(slots, crop=(where, CROP), flip=flips)
            assert (batch == np.stack(wanted)).all()
            assert batch.flags.c_contiguous
        assert vector.read_counts().sum() == 2 * len(slots)
        untouched(vector)


def test_one_origin_for_all(volumes: SharedVector) -> None:
    batch = volumes.gather([0, 1, 2], crop=((1, 0, 0), CROP))
    assert (batch == np.stack([cut(volume(i, "int16"), (1, 0, 0)) for i in range(3)])).all()
    middle = volumes.gather([1], crop=(np.array([0.5, 0.5, 0.5], np.float32), CROP))
    assert (middle[0] == cut(volume(1, "int16"), (1, 3, 2))).all()


def test_the_largest_fraction_stays_inside(volumes: SharedVector) -> None:
    nearly = float(np.nextafter(1.0, 0.0))
    batch = volumes.gather([1], crop=((nearly,) * 3, CROP))
    assert (batch[0] == cut(volume(1, "int16"), (1, 6, 4))).all()


@pytest.mark.parametrize(
    ("crop", "error", "match"),
    [
        (([0, 0, 0], (2, 3, 5)), ValueError, r"item 2, slot 2.*7 x 4 x 4.*crop takes 2 x 3 x 5"),
        (([0, 0, 0], (2, 3)), ValueError, r"shape \(3, 2\) or \(2,\), found \(3,\)"),
        (([0, 0], (2, 3)), ValueError, "item 0, slot 0.*4 x 5 x 6.*crop takes 2 x 3,"),
        (([2, 0, 0], CROP), ValueError, "item 1, slot 1.*axis 0: the crop begins at 2, at most 1"),
        (([-1, 0, 0], CROP), ValueError, "0 or more"),
        (([0.0, 1.0, 0.0], CROP), ValueError, "0 <= u < 1"),
        (([0.0, np.nan, 0.0], CROP), ValueError, "0 <= u < 1"),
        ((np.zeros((2, 3)), CROP), ValueError, r"found \(2, 3\)"),
        (([True, False, True], CROP), TypeError, "bool"),
        ((["a", "b", "c"], CROP), TypeError, "integers, or fractions"),
        (([0, 0, 0], (2, 0, 4)), ValueError, "1 or more"),
        (([0, 0, 0], (2, 3.5, 4)), TypeError, "integer"),
        (([0, 0, 0], 4), ValueError, "sequence"),
        (([0] * 17, [1] * 17), ValueError, "at most 16"),
        (([0, 0, 0], CROP, 1), TypeError, r"\(origins, shape\)"),
        (3, TypeError, r"\(origins, shape\)"),
    ],
    ids=str,
)
def test_wrong_crops(volumes: SharedVector, crop: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        volumes.gather([0, 1, 2], crop=crop)
    untouched(volumes)


def test_ragged_chunks_need_a_crop(volumes: SharedVector) -> None:
    with pytest.raises(ValueError, match=r"item 1, slot 1.*3 x 9 x 8.*batch takes 4 x 5 x 6"):
        volumes.gather([0, 1])


# ---- flips -------------------------------------------------------------------------------------


def test_flip_of_the_first_axis(volumes: SharedVector) -> None:
    batch = volumes.gather([0, 0], flip=[False, True])
    assert (batch[0] == volume(0, "int16")).all()
    assert (batch[1] == volume(0, "int16")[::-1]).all()


@pytest.mark.parametrize(
    ("flip", "error", "match"),
    [
        ([0, 1], TypeError, "bool, found int64"),
        ([True], ValueError, r"\(2,\), for axis 0, or \(2, axes"),
        (True, ValueError, "shape"),
        (np.zeros((2, 2), bool), ValueError, "for 2 axes, the chunks have 3"),
        (np.zeros((2, 3, 1), bool), ValueError, "shape"),
        (np.zeros((2, 99), bool), ValueError, "shape"),
    ],
    ids=str,
)
def test_wrong_flips(volumes: SharedVector, flip: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        volumes.gather([0, 0], flip=flip)


# ---- dtype, scale, offset ----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["u1", "i1", "i4", "u8", "f2", "f4", "f8"])
def test_other_dtypes(volumes: SharedVector, target: str) -> None:
    batch = volumes.gather([0, 0], dtype=target, flip=[False, True])
    wanted = cast_volume(volume(0, "int16"), target)
    assert batch.dtype == target
    assert (batch[0] == wanted).all()
    assert (batch[1] == wanted[::-1]).all()


def test_scale_and_offset(volumes: SharedVector) -> None:
    plain = volume(1, "int16").astype(np.float32)
    scaled = plain * np.float32(0.1) + np.float32(-3)
    assert (volumes.gather([1], dtype="f4", scale=0.1, offset=-3)[0] == scaled).all()
    assert (volumes.gather([1], dtype="f4", offset=2)[0] == plain + 2).all()
    halves = volumes.gather([1], dtype="f2", scale=0.1, offset=-3)
    assert (halves[0] == scaled.astype(np.float16)).all()
    doubles = volumes.gather([1], dtype="f8", scale=0.1, crop=((0, 0, 0), CROP))
    assert (doubles[0] == cut(volume(1, "int16").astype(np.float64) * 0.1, (0, 0, 0))).all()


def test_a_float_segment_needs_no_dtype_to_scale(name: str) -> None:
    with filled(name) as vector:
        assert (vector.gather([1], scale=2, offset=1)[0] == (FLOATS + 1) * 2 + 1).all()
        assert vector.gather([1], dtype="float32").dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"scale": 2.0}, ValueError, "found int16: pass dtype"),
        ({"dtype": "i4", "offset": 1}, ValueError, "found int32: pass dtype"),
        ({"dtype": "f4", "scale": np.inf}, ValueError, "finite"),
        ({"dtype": "f4", "offset": "x"}, TypeError, "real number"),
        ({"dtype": "c8"}, TypeError, "no conversion from int16 to complex64"),
        ({"dtype": ">i2"}, TypeError, "no conversion from int16 to >i2"),
        ({"dtype": "nonsense"}, ValueError, "not a dtype: 'nonsense'"),
        ({"dtype": "f4", "scale": "x"}, TypeError, "scale must be a real number, found 'x'"),
    ],
    ids=str,
)
def test_wrong_dtypes(
    volumes: SharedVector, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        volumes.gather([0], **options)


def test_a_segment_of_another_byte_order(name: str) -> None:
    with SharedVector(name, 4096, slot_count=1, dtype=">i2") as vector:
        vector.append(volume(0, ">i2"))
        assert (vector.gather([0])[0] == volume(0, ">i2")).all()
        with pytest.raises(TypeError, match="no conversion from >i2 to float32"):
            vector.gather([0], dtype="f4")


# ---- out ---------------------------------------------------------------------------------------


def test_everything_at_once_into_an_array(volumes: SharedVector) -> None:
    out = np.zeros((2, *CROP), np.float32)
    made, metas = volumes.gather_with_meta(
        [2, 1], out, (((1, 0, 0), (1, 2, 3)), CROP), "f4", 0.5, 1.0, [True, False]
    )
    assert made is out
    first = cut(volume(2, "int16"), (1, 0, 0))[::-1].astype(np.float32) * np.float32(0.5) + 1
    assert (out[0] == first).all()
    assert (out[1] == cut(volume(1, "int16"), (1, 2, 3)).astype(np.float32) * 0.5 + 1).all()
    assert [meta.tolist() for meta in metas] == [[2.0, 2.0], [1.0]]
    assert {meta.dtype for meta in metas} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (np.zeros((2, *CROP), "i2"), ValueError, "batch is of float32, out of int16"),
        (np.zeros((2, 2, 3, 5), "f4"), ValueError, r"\(2, \*\(2, 3, 4\)\).*crop's shape"),
        (np.zeros((3, *CROP), "f4"), ValueError, "one item per index"),
        (np.zeros((2, *CROP, 1), "f4"), ValueError, "one item per index"),
        (np.zeros((2, 2, 4, 3), "f4").swapaxes(2, 3), sharedvector.ArraySizeError, "contiguous"),
        (np.broadcast_to(np.float32(0), (2, *CROP)), ValueError, "contiguous|read-only"),
        ([0.0], TypeError, "ndarray"),
    ],
)
def test_wrong_out(volumes: SharedVector, out: Any, error: type[Exception], match: str) -> None:
    before = np.array(out)
    with pytest.raises(error, match=match):
        volumes.gather([0, 1], out, crop=((0, 0, 0), CROP), dtype="f4")
    assert np.array_equal(before, out)
    untouched(volumes)


def test_out_over_the_chunk_itself(name: str) -> None:
    with filled(name) as vector:
        address = vector.get_chunk_pointer(0)
        memory = (ctypes.c_float * 12).from_address(address)
        out = np.ctypeslib.as_array(memory).reshape(1, 3, 4)
        with pytest.raises(ValueError, match="overlaps"):
            vector.gather([0], out=out)


def test_an_empty_batch(volumes: SharedVector) -> None:
    assert volumes.gather([], crop=((0, 0, 0), CROP)).shape == (0, *CROP)
    batch, metas = volumes.gather_with_meta([], crop=(np.zeros((0, 3)), CROP), dtype="f4")
    assert batch.shape == (0, *CROP)
    assert batch.dtype == np.float32
    assert metas == []
    with pytest.raises(ValueError, match="pass out or crop"):
        volumes.gather([])
    with pytest.raises(ValueError, match="one item per index"):
        volumes.gather([], np.zeros((1, *CROP), "i2"), crop=((0, 0, 0), CROP))


def test_scalars_and_empty_chunks(name: str) -> None:
    with SharedVector(name, 64, slot_count=3, dtype="int16") as vector:
        vector.append(np.array(5, np.int16))
        vector.append(np.zeros((0, 3), np.int16))
        assert vector.gather([0, 0], dtype="f4").tolist() == [5.0, 5.0]
        assert vector.gather([0], crop=([], [])).tolist() == [5]
        assert vector.gather([1, 1], flip=[True, False]).shape == (2, 0, 3)
        with pytest.raises(ValueError, match="for 1 axes, the chunks have 0"):
            vector.gather([0], flip=[True])


# ---- metadata, writers, threads ----------------------------------------------------------------


def test_metadata_belongs_to_what_was_copied(name: str) -> None:
    """While slots are replaced all the time, each item and its metadata say the same number."""
    with SharedVector(name, 4096, slot_count=2, spare_buffers=4) as vector:
        for _ in range(2):
            vector.append(np.zeros(500, np.float32), [0.0])
        stop = threading.Event()
        problems: list[BaseException] = []

        def write() -> None:
            try:
                number = 0
                while not stop.is_set():
                    number += 1
                    chunk = np.full(500, number, np.float32)
                    vector.replace(number % 2, chunk, [number], refuse=False, timeout=60)
            except BaseException as error:
                problems.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(300):
            batch, metas = vector.gather_with_meta([0, 1, 0])
            assert (batch == batch[:, :1]).all()
            assert batch[:, 0].tolist() == [meta[0] for meta in metas]
        stop.set()
        writer.join(60)
        assert not writer.is_alive() and not problems


def test_chunks_that_change_their_shape_meanwhile(name: str) -> None:
    """Each batch is whole and of one shape, or refused."""
    with SharedVector(name, 4096, slot_count=1, spare_buffers=4) as vector:
        vector.append(np.zeros((20, 25), np.float32))
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                shape = (20, 25) if number % 2 else (500,)
                vector.replace(0, np.full(shape, number, np.float32), refuse=False, timeout=60)

        writer = threading.Thread(target=write)
        writer.start()
        out = np.zeros((2, 500), np.float32)
        good = 0
        for _ in range(400):
            try:
                batch = vector.gather([0, 0], out=out).reshape(2, 500)
                assert (batch == batch[:, :1]).all()
                good += 1
            except ValueError as error:
                assert "chunk" in str(error)
            try:
                single = vector.gather([0]).reshape(500)
                assert (single == single[0]).all()
                good += 1
            except sharedvector.DataModifiedError:
                pass
        stop.set()
        writer.join(60)
        assert not writer.is_alive() and good > 0
        untouched(vector)


def test_a_large_batch_on_several_threads(name: str) -> None:
    shape = (9, 512, 1000)
    with SharedVector(name, 2 * 9 * 512 * 1000, slot_count=3, dtype="int16") as vector:
        chunks = [
            (np.arange(np.prod(shape)) % (1000 + slot)).astype("i2").reshape(shape)
            for slot in range(3)
        ]
        for chunk in chunks:
            vector.append(chunk)
        batch = vector.gather([2, 0, 1], dtype="f4", flip=[False, True, False])
        for item, wanted in zip(batch, (chunks[2], chunks[0][::-1], chunks[1]), strict=True):
            assert (item == wanted).all()
        untouched(vector)
