"""move(): strided arrays, converted on the way, against NumPy and cast_volume."""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedvector import _core
from sharedvector.loaders import cast_volume

NUMBERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]

BORDERS = [
    *(0.0, -0.0, 0.5, -0.5, 0.999, 127.9, 128, -128.9, -129, 255.9, 256, 32767.9, 32768, -32769),
    *(65504, 65519.9, 65520, 65535.9, 65536, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63)),
    *(2.0**64, 1e300, -1e300, np.inf, -np.inf, np.nan, 2.0**-24, 2.0**-25, 1e-30),
]


@functools.cache  # hypothesis refuses a test whose examples take long to make
def numbers(dtype: str, count: int = 3000) -> np.ndarray[Any, Any]:
    """The borders of all ranges, random bits, and small numbers."""
    rng = np.random.default_rng(7)
    found = np.dtype(dtype)
    values = np.frombuffer(rng.bytes(count * found.itemsize), found).copy()
    with np.errstate(all="ignore"):
        values[: len(BORDERS)] = np.array(BORDERS).astype(found)
        values[count // 2 :] = rng.normal(scale=1e4, size=count - count // 2).astype(found)
    values.flags.writeable = False
    return values


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("target", NUMBERS)
@pytest.mark.parametrize("source", NUMBERS)
def test_converts_as_cast_volume_does(source: str, target: str) -> None:
    values = numbers(source)
    wanted = cast_volume(values, target)
    out = np.zeros(len(values), target)
    _core.move(out, values)
    assert same(out, wanted)
    backwards = np.zeros(2 * len(values), target)[::-2]
    _core.move(backwards, np.repeat(values, 3)[::3])
    assert same(backwards, wanted)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A destination and a source of one shape: axes in any order, some backwards or with gaps."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    arrays = []
    for dtype in draw(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))):
        steps = draw(st.lists(st.sampled_from([1, -1, 2, -3]), min_size=4, max_size=4))
        order = draw(st.permutations(range(len(shape))))
        full = [shape[axis] * abs(steps[axis]) for axis in order]
        array = numbers(dtype)[: max(1, int(np.prod(full)))]
        array = np.resize(array, full).transpose(np.argsort(order))
        arrays.append(array[tuple(slice(None, None, steps[i]) for i in range(len(shape)))])
    return arrays[0], arrays[1]


@given(pairs(), st.integers(0, 3))
def test_any_strides(pair: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], threads: int) -> None:
    out, values = (np.asarray(array) for array in pair)
    _core.move(out, values, threads)
    assert same(out, cast_volume(values, out.dtype))


def test_what_lies_between_stays() -> None:
    room = np.full((8, 9), 7, np.int16)
    _core.move(room[1:7:2, 2:8:3], np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    wanted = np.full((8, 9), 7, np.int16)
    wanted[1:7:2, 2:8:3] = [[1, 2], [3, 4], [5, 6]]
    assert same(room, wanted)


@pytest.mark.parametrize(
    "dtype", ["?", "c8", ">i2", "M8[s]", "S3", "i4,f8", "f8,(2,3)i2", "g", "V100"], ids=str
)
def test_other_dtypes_move_as_bytes(dtype: str) -> None:
    values = np.frombuffer(bytes(range(256)) * 20, np.uint8).copy()
    found = np.dtype(dtype)
    source = values[: 12 * found.itemsize].view(found).reshape(3, 4)
    if dtype == "?":
        source = source.view(np.uint8) % 2 == 0
    out = np.zeros((4, 3), found).T
    _core.move(out, source[:, ::-1])
    assert out.tobytes() == source[:, ::-1].tobytes()


def test_unaligned_arrays() -> None:
    values = np.arange(1000, dtype=np.int32)
    odd = np.zeros(4001, np.uint8)[1:].view(np.int32)
    _core.move(odd, values)
    assert same(odd, values)
    floats = np.zeros(8001, np.uint8)[1:].view(np.float64)
    _core.move(floats, odd)
    assert same(floats, values.astype(np.float64))


def test_ml_dtypes_move_and_do_not_convert() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    out = np.zeros(6, ml_dtypes.bfloat16)
    _core.move(out, values)
    assert out.tobytes() == values.tobytes()
    with pytest.raises(TypeError, match="no conversion from bfloat16 to float32"):
        _core.move(np.zeros(6, np.float32), values)


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_large_arrays(threads: int) -> None:
    values = (np.arange(40 * 300 * 301) % 30011).astype(np.float32).reshape(40, 300, 301)
    out = np.zeros(values.shape, np.int16)
    _core.move(out, values[::-1], threads)
    assert same(out, values[::-1].astype(np.int16))
    copy = np.zeros_like(values)
    _core.move(copy, values, threads)
    assert same(copy, values)


def order_of_a_move(elements: int) -> list[str]:
    """What comes first: the end of a move in a thread, or this thread, which waits for the GIL.

    Nobody takes the GIL away here: this thread gets it once the other one gives it.
    """
    values, out = np.zeros(elements), np.zeros(elements, np.float16)
    begun = threading.Lock()
    order: list[str] = []

    def move() -> None:
        begun.release()
        _core.move(out, values)
        order.append("moved")

    thread = threading.Thread(target=move)
    interval = sys.getswitchinterval()
    begun.acquire()
    sys.setswitchinterval(1000)
    try:
        thread.start()
        begun.acquire()
        order.append("looked")
    finally:
        sys.setswitchinterval(interval)
        thread.join(60)
    return order


@pytest.mark.parametrize(
    ("elements", "order"), [(10, ["moved", "looked"]), (1 << 23, ["looked", "moved"])]
)
def test_large_moves_give_the_gil_away(elements: int, order: list[str]) -> None:
    deadline = time.monotonic() + 60
    # A busy machine may let a whole move pass before it wakes this thread.
    while order_of_a_move(elements) != order:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("out", "values", "error", "match"),
    [
        (np.zeros(3), np.zeros(4), ValueError, r"\(3,\), source \(4,\)"),
        (np.zeros((2, 2)), np.zeros(4), ValueError, "shape"),
        (np.zeros(3, bool), np.zeros(3), TypeError, "no conversion from float64 to bool"),
        (np.zeros(3), np.zeros(3, bool), TypeError, "no conversion"),
        (np.zeros(3, ">f4"), np.zeros(3, "f4"), TypeError, "no conversion"),
        (np.zeros(3, "c8"), np.zeros(3, "f4"), TypeError, "no conversion"),
        (np.zeros(3, object), np.zeros(3, object), TypeError, "objects"),
        (np.zeros(3, "M8[s]"), np.zeros(3, "M8[ms]"), TypeError, "no conversion"),
        (np.broadcast_to(np.float32(0), (3,)), np.zeros(3, "f4"), ValueError, "read-only"),
        (np.zeros(3), [0.0, 1.0, 2.0], TypeError, "ndarray"),
    ],
    ids=str,
)
def test_wrong_calls(out: Any, values: Any, error: type[Exception], match: str) -> None:
    before = np.array(out)
    with pytest.raises(error, match=match):
        _core.move(out, values)
    assert np.array_equal(before, out)


def test_overlap() -> None:
    room = np.arange(40, dtype=np.int16).reshape(5, 8)
    before = room.copy()
    for out, values in [(room[1:], room[:-1]), (room[::-1], room), (room[:, 1:5], room[:, :4])]:
        with pytest.raises(ValueError, match="overlap"):
            _core.move(out, values)
    folded = np.lib.stride_tricks.as_strided(room, (3, 4), (2, 2))
    with pytest.raises(ValueError, match="overlap"):
        _core.move(folded, np.zeros((3, 4), np.int16))
    assert same(room, before)
    _core.move(room[:, :4], room[:, 4:])  # woven into each other, but nothing shared
    assert same(room[:, :4], before[:, 4:])


def test_nothing_to_move() -> None:
    _core.move(np.zeros((0, 3)), np.zeros((0, 3), np.int8))
    _core.move(np.zeros(3, "S0"), np.zeros(3, "S0"))
    scalar = np.zeros((), np.int8)
    _core.move(scalar, np.array(-300.7))
    assert scalar == -128


def test_strides_beyond_all_memory() -> None:
    """as_strided() makes up any strides; none of them is multiplied before it is looked at."""
    block = np.zeros(8, "f4")
    for strides in ((2**62, 4), (-(2**63), 4), (4, 2**63 - 1)):
        far = np.lib.stride_tricks.as_strided(block, (2, 2), strides)
        with pytest.raises(ValueError, match="beyond all memory"):
            _core.move(np.zeros((2, 2), "f4"), far)
        with pytest.raises(ValueError, match="beyond all memory"):
            _core.move(far, np.zeros((2, 2), "f4"))
