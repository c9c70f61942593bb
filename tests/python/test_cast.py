"""Casts that clip, moves between arrays, and the dtypes that a pool accepts."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from pool_support import run

from sharedvector import dtypes
from sharedvector.loaders.casting import cast_volume, move, resolve_numpy_dtype

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i2", ">u4"]
FLOATS = ["float16", "float32", "float64", "longdouble", ">f4"]


def expected(value: float | int, dtype: np.dtype[Any]) -> int:
    """Clip, cut, NaN to 0, in exact arithmetic."""
    bounds = np.iinfo(dtype)
    if value != value:
        return 0
    if value in (float("inf"), float("-inf")):
        return bounds.max if value > 0 else bounds.min
    return min(max(int(value), bounds.min), bounds.max)


@pytest.mark.parametrize("name", INTEGERS)
def test_every_true_is_one(name: str) -> None:
    """Also where its byte is another, as in a mask of 255 that is looked at as bool."""
    mask = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert cast_volume(mask, name).tolist() == [0, 1, 1, 1]
    destination = np.empty(4, name)
    move(destination, mask)
    assert destination.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("name", INTEGERS)
def test_cast_of_floats(source: str, name: str) -> None:
    target = np.dtype(name)
    bounds = np.iinfo(target)
    values = [0, 0.5, -0.5, 1.7, -1.7, 1e3, -1e3, 65504, 1e30, -1e30]
    values += [float("nan"), float("inf"), float("-inf"), bounds.max, bounds.min]
    with np.errstate(over="ignore"):
        volume = np.array(values).astype(source)
    volume = np.concatenate([volume, np.nextafter(volume, np.zeros(1, volume.dtype))])
    with np.errstate(all="raise"):
        result = cast_volume(volume, target)
    assert result.dtype == target
    assert [int(v) for v in result] == [expected(v, target) for v in volume]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("name", INTEGERS)
def test_cast_of_integers(source: str, name: str) -> None:
    target, bounds = np.dtype(name), np.iinfo(np.dtype(source))
    volume = np.array([0, 1, bounds.max, bounds.min, bounds.max - 1], source)
    assert [int(v) for v in cast_volume(volume, target)] == [
        expected(int(v), target) for v in volume
    ]


def test_cast_keeps_shape_and_gives_c_order() -> None:
    volume = np.arange(3 * 70 * 500, dtype=np.float64).reshape(3, 70, 500)
    for view in (volume, volume[::-1], volume.T, volume[:, ::2, ::-3], volume[:0], volume[0, 0, 0]):
        view = np.asarray(view)
        result = cast_volume(view, np.dtype("int32"))
        assert result.flags.c_contiguous and result.shape == view.shape
        assert np.array_equal(result, view.astype(np.int32))


def test_cast_treats_every_block_alike() -> None:
    volume = np.zeros(300_000, np.float32)
    volume[[0, 100_000, 299_999]] = [1e9, np.nan, -1e9]
    result = cast_volume(volume, "int16")
    assert list(result[[0, 100_000, 299_999]]) == [32767, 0, -32768]
    assert np.count_nonzero(result) == 2


def test_cast_of_the_rest() -> None:
    volume = np.zeros((2, 3), np.int16)
    assert cast_volume(volume, np.dtype("int16")) is volume
    assert cast_volume(volume, np.int16) is volume
    assert list(cast_volume(np.array([True, False]), "int16")) == [1, 0]
    assert list(cast_volume(np.array([0.0, 2.0]), "bool")) == [False, True]
    with np.errstate(all="raise"):
        assert list(cast_volume(np.array([1e300, 1.5]), "float32")) == [np.inf, 1.5]
    with pytest.warns(np.exceptions.ComplexWarning):
        assert list(cast_volume(np.array([1e9 + 2j]), "int16")) == [32767]


def test_cast_of_extension_floats() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    volume = np.array([1.5, -2.5, np.nan, 1e30], ml_dtypes.bfloat16)
    assert list(cast_volume(volume, "int16")) == [1, -2, 0, 32767]
    assert cast_volume(np.ones(2, np.float32), resolve_numpy_dtype("bfloat16")).dtype == (
        ml_dtypes.bfloat16
    )
    eight = np.array([1.5, 300.0], ml_dtypes.float8_e5m2)
    assert list(cast_volume(eight, "uint8")) == [1, 255]


@pytest.mark.parametrize("kind", ["int1", "uint1", "int2", "uint2", "int4", "uint4"])
def test_cast_to_extension_integers_clips(kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if not hasattr(ml_dtypes, kind):
        pytest.skip(f"this version of ml_dtypes has no {kind}")
    target = np.dtype(getattr(ml_dtypes, kind))
    bounds = ml_dtypes.iinfo(target.type)
    small = [0, 1, bounds.min, bounds.max]
    for source in [*INTEGERS, *FLOATS, "bool", "complex64"]:
        values: list[float] = [*small, 2, -3, 7.9, -1.5, 8, 15, 16, 100, -100, 300]
        if np.dtype(source).kind in "fc":
            values += [np.nan, np.inf, -np.inf, 1e30, -0.5]
        with np.errstate(all="ignore"):
            volume = np.array(values).astype(source)
        whole = volume.real if volume.dtype.kind == "c" else volume
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            result = cast_volume(np.asarray(volume), target)
        assert result.dtype == target
        wanted = [0 if v != v else int(min(max(float(v), bounds.min), bounds.max)) for v in whole]
        assert [int(v) for v in result] == wanted, source
    for other in ("int4", "uint4", "bfloat16", "float8_e4m3fn"):
        volume = np.array([-3, 1, 7, 8], np.float32).astype(getattr(ml_dtypes, other))
        wanted = [min(max(int(v), bounds.min), bounds.max) for v in volume.astype(np.float32)]
        assert [int(v) for v in cast_volume(volume, target)] == wanted, other
    destination = np.zeros(3, target)
    move(destination, np.array([300, -300, 0], np.int16))
    assert [int(v) for v in destination] == [bounds.max, bounds.min, 0]


@pytest.mark.parametrize(
    ("kind", "beyond"),
    [
        ("bfloat16", np.inf),
        ("float8_e5m2", np.inf),
        ("float8_e4m3fn", np.nan),  # has no infinity
        ("float8_e5m2fnuz", np.nan),
        ("float6_e2m3fn", 7.5),  # has no NaN either
        ("float4_e2m1fn", 6.0),
    ],
)
def test_cast_beyond_the_range_of_extension_floats(kind: str, beyond: float) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if not hasattr(ml_dtypes, kind):
        pytest.skip(f"this version of ml_dtypes has no {kind}")
    target = np.dtype(getattr(ml_dtypes, kind))
    volume = np.array([1e300, -1e300, np.inf, 1.5, 0])
    for source in (volume, volume.astype(np.longdouble)):
        with np.errstate(all="raise"):
            result = cast_volume(source, target).astype(np.float64)
        np.testing.assert_array_equal(result, [beyond, -beyond, beyond, 1.5, 0])
    whole = np.array([2**40, -(2**40), 2], np.int64)
    result = cast_volume(whole, target).astype(np.float64)
    far = 2.0**40 if kind == "bfloat16" else beyond
    np.testing.assert_array_equal(result, [far, -far, 2])


def test_cast_knows_extension_types_by_name_in_a_new_process() -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    code = """
        import numpy, sharedvector
        print(sharedvector.cast_volume(numpy.ones(2), "bfloat16").dtype)
    """
    assert run(code) == (0, "bfloat16\n", "")


@pytest.mark.parametrize(
    "volume", [[1, 2], (1.5,), 3, None, "text", memoryview(b"ab")], ids=lambda it: type(it).__name__
)
def test_cast_of_what_is_no_array(volume: Any) -> None:
    told = f"volume should be a numpy.ndarray, got {type(volume).__name__}; convert it with"
    with pytest.raises(TypeError, match=rf"{told} numpy\.asarray\(\)"):
        cast_volume(volume, "int16")
    with pytest.raises(ValueError, match="not a dtype: 'no-such'"):
        cast_volume(np.zeros(3), "no-such")


@pytest.mark.parametrize(
    "name",
    "bool int8 uint64 >i2 <f4 i2 float16 float64 complex64 complex128 longdouble "
    "datetime64[s] timedelta64[ms] S5 U7 i4,f8".split(),
)
def test_dtypes_accepted(name: str) -> None:
    assert resolve_numpy_dtype(name) == np.dtype(name)


def test_dtype_objects_accepted() -> None:
    assert resolve_numpy_dtype(np.float32) == resolve_numpy_dtype(np.dtype("f4")) == np.float32
    fields = [("x", "i2"), ("y", ">f4", (3,))]
    assert resolve_numpy_dtype(fields) == np.dtype(fields)
    assert resolve_numpy_dtype(dtypes.encode_dtype(np.dtype(fields))) == np.dtype(fields)


@pytest.mark.parametrize(
    "dtype",
    [None, "foo", "O", "S", "U", "V", "bfloat17", "bfloat16x", "float8", 3, [("a", "O")], "(2,)i4"],
)
def test_dtypes_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype (should be|')"):
        resolve_numpy_dtype(dtype)


def test_extension_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = resolve_numpy_dtype(name)
        assert dtype == np.dtype(getattr(ml_dtypes, name))
        assert pickle.loads(pickle.dumps(dtype)) == dtype
    with pytest.raises(ValueError, match="int4"):
        resolve_numpy_dtype(ml_dtypes.int4)


def test_extension_dtypes_without_the_package() -> None:
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        from sharedvector.loaders.casting import resolve_numpy_dtype
        try:
            resolve_numpy_dtype("bfloat16")
        except ValueError as error:
            print(error)
    """
    status, out, err = run(code)
    assert (status, err) == (0, "") and "pip install ml_dtypes" in out


DTYPES = ["bool", "uint8", "int16", ">i2", "uint32", "int64", "float16", "float32", "float64", "c8"]


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_move_is_a_cast_between_any_strides(source: str, target: str) -> None:
    values = np.array([0, 1, 1.5, -2.7, 300, -40000, 1e6, 3e9, np.nan, np.inf, -np.inf, 255])
    with np.errstate(all="ignore"):
        volume = values.astype(source).reshape(3, 4).repeat(5, axis=1)[::-1]
    for view in (volume, volume[:, ::-2], volume.T):
        destination = np.zeros((*view.shape, 2), target)[..., 0]
        move(destination, view)
        np.testing.assert_array_equal(destination, cast_volume(view, target))


def test_move_of_dtypes_that_numpy_alone_knows() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    source = np.array([1.5, np.nan, 300], ml_dtypes.bfloat16)
    destination = np.zeros(3, np.uint8)
    move(destination, source)
    assert list(destination) == [1, 0, 255]
