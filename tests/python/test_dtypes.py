"""Every dtype comes back exactly as it went in, or is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from core_support import fresh_name

from sharedvector import SharedVector
from sharedvector.dtypes import as_dtype, decode_dtype, encode_dtype

NAMED = """
    bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64
    complex128 datetime64[ns] timedelta64[D] datetime64[25s]
""".split()
SHORT = [">i2", ">f4", ">c16", ">M8[us]", "|S5", "<U7", ">U3", "|V12"]
STRUCTURED: list[Any] = [
    [("a", "<f4"), ("b", ">i4")],
    [("a", "<f4", (2, 3)), ("b", "M8[ns]")],
    [("outer", [("x", "u1"), ("y", "<f8")]), ("z", "?")],
    [("ü", "<f4")],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    {"names": ["a", "b"], "formats": ["<f4", "<i2"], "offsets": [4, 0], "itemsize": 16},
    {"names": ["low", "all"], "formats": ["<u2", "<u4"], "offsets": [0, 0]},
]
EXTENSION = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def any_array(dtype: np.dtype[Any], count: int = 64) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(5).integers(0, 2, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", [*NAMED, *SHORT, *STRUCTURED, *EXTENSION], ids=str)
def test_round_trip_through_a_segment(name: str, dtype: Any) -> None:
    if dtype in EXTENSION:
        pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 come from ml_dtypes")
    wanted = as_dtype(dtype)
    with SharedVector(name, slot_count=1, chunk_size=16384, dtype=dtype) as vector:
        array = any_array(wanted)
        vector.append(array)
        with SharedVector(name, create=False) as other:
            found = other.get(0)
            assert found.dtype == wanted
            assert found.tobytes() == array.tobytes()
            assert other.dtype == vector.dtype
            assert other.numpy_dtype == wanted
            del found
        with SharedVector(name, dtype=vector.dtype) as again:
            assert again.numpy_dtype == wanted


@pytest.mark.parametrize("dtype", [*NAMED, *SHORT, *STRUCTURED], ids=str)
def test_texts_stand_for_dtypes(dtype: Any) -> None:
    wanted = np.dtype(dtype)
    text = encode_dtype(wanted)
    assert decode_dtype(text) == wanted
    assert decode_dtype(text).isalignedstruct == wanted.isalignedstruct
    assert encode_dtype(decode_dtype(text)) == text
    assert as_dtype(text) == wanted


@pytest.mark.parametrize("text", NAMED)
def test_native_numbers_and_dates_have_plain_names(text: str) -> None:
    assert encode_dtype(np.dtype(text)) == text


def test_spelling() -> None:
    little = sys.byteorder == "little"
    assert encode_dtype(np.dtype(">i2" if little else "<i2")) == (">i2" if little else "<i2")
    assert encode_dtype(np.dtype("<i2" if little else ">i2")) == "int16"
    assert encode_dtype(np.dtype("longlong")) == "int64"
    assert encode_dtype(np.dtype([("a", ">f4"), ("b", "S3")])) == "[('a','>f4'),('b','|S3')]"


@pytest.mark.parametrize(
    "dtype",
    [
        object,
        [("a", object)],
        "S",
        "U0",
        "V",
        [],
        ("<f4", (3,)),
        [(("title", "a"), "<f4")],
        [(f"field_{i}", "<f4") for i in range(40)],
        "nonsense",
        "float33",
        "[('a','<f4')",
        "[1]",
        "{'names': 3}",
        3.5,
    ],
    ids=str,
)
def test_refused_dtypes_are_value_errors(name: str, dtype: Any) -> None:
    with pytest.raises(ValueError):
        SharedVector(name, slot_count=1, dtype=dtype)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="new in NumPy 2")
def test_strings_of_variable_length_are_refused() -> None:
    with pytest.raises(ValueError):
        encode_dtype(np.dtypes.StringDType())


def test_a_missing_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        decode_dtype("float8_of_the_future")
    with pytest.raises(ValueError):
        decode_dtype("nonsense")


def test_none_means_float32_or_what_is_there(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64) as vector:
        assert vector.dtype == "float32"
    with (
        SharedVector(name, replace=True, slot_count=1, chunk_size=64, dtype="int16"),
        SharedVector(name) as other,
    ):
        assert other.dtype == "int16"


@pytest.mark.parametrize("dtype", ["int16", ">f4", "float64", [("a", "<f4")]], ids=str)
def test_a_conflicting_dtype_names_both(name: str, dtype: Any) -> None:
    with (
        SharedVector(name, slot_count=1, chunk_size=64),
        pytest.raises(ValueError) as caught,
    ):
        SharedVector(name, dtype=dtype)
    assert "float32" in str(caught.value)
    assert encode_dtype(np.dtype(dtype)) in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["f8", ">f4", "f2", "i4", "?", "M8[s]", [("a", "<f4")], object, "U2"], ids=str
)
def test_arrays_of_another_dtype_are_refused(name: str, dtype: Any) -> None:
    array = np.zeros(4, dtype)
    with SharedVector(name, slot_count=2, chunk_size=4096) as vector:
        vector.append(np.zeros(4, np.float32))
        for call in (lambda: vector.append(array), lambda: vector.replace(0, array)):
            with pytest.raises(ValueError, match=r"dtype mismatch.*float32.*astype"):
                call()
        assert len(vector) == 1
        assert vector.get_chunk_write_count(0) == 1


def test_dtypes_that_only_differ_in_name_are_equal(name: str) -> None:
    with SharedVector(name, slot_count=2, chunk_size=4096, dtype="longlong") as vector:
        vector.append(np.arange(4, dtype=np.int64))
        assert vector.get(0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["bfloat16", "complex32"])
def test_extension_types_in_swapped_byte_order_are_refused(name: str, kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 comes from ml_dtypes")
    if not hasattr(ml_dtypes, kind):
        pytest.skip(f"this version of ml_dtypes has no {kind}")
    native = np.dtype(getattr(ml_dtypes, kind))
    order = ">" if native.newbyteorder("<").isnative else "<"
    swapped = native.newbyteorder(order)
    nested: list[Any] = [
        swapped,
        [("a", "i4"), ("b", swapped)],
        [("a", swapped, (2, 3))],
        [("outer", [("x", "u1"), ("y", swapped, (4,))], (2,)), ("z", "?")],
        {"names": ["a"], "formats": [swapped], "offsets": [8], "itemsize": 16},
    ]
    for dtype in map(np.dtype, nested):
        for refuse in (
            as_dtype,
            encode_dtype,
            lambda dtype: SharedVector(name, slot_count=1, dtype=dtype),
        ):
            with pytest.raises(ValueError, match=rf"{kind} should have .*newbyteorder\('='\)"):
                refuse(dtype)
        mended = dtype.newbyteorder("=")
        assert as_dtype(mended) == decode_dtype(encode_dtype(mended)) == mended
    with pytest.raises(ValueError, match=rf"not a dtype: '{order}{kind}'"):
        decode_dtype(f"{order}{kind}")
    for mark in ("=", "<" if order == ">" else ">"):
        assert decode_dtype(f"{mark}{kind}") == native
    with SharedVector(name, slot_count=1, chunk_size=64, dtype=native) as vector:
        with pytest.raises(ValueError, match="dtype mismatch"):
            vector.append(np.zeros(3, native).astype(swapped))
        assert len(vector) == 0


@pytest.mark.parametrize(
    "text", [">nonsense", "<float33", "=bfloat17", "f4,(2", "(3 3,)f4", "S-1", "é"]
)
def test_an_unknown_dtype_is_named_in_full(text: str) -> None:
    for look in (as_dtype, decode_dtype):
        with pytest.raises(ValueError, match=re.escape(f"not a dtype: {text!r}")):
            look(text)


@pytest.mark.parametrize("field", ["offsets", "itemsize"])
def test_numbers_beyond_all_memory_are_no_dtype(field: str) -> None:
    spelled: dict[str, Any] = {"names": ["a"], "formats": ["f4"], "offsets": [0], "itemsize": 4}
    spelled[field] = [10**30] if field == "offsets" else 10**30
    with pytest.raises(ValueError, match="not a dtype"):
        as_dtype(spelled)
    with pytest.raises(ValueError, match="not a dtype"):
        decode_dtype(repr(spelled))


@pytest.mark.parametrize(
    ("call", "value", "told"),
    [
        (encode_dtype, "float32", "dtype should be a numpy.dtype, got 'float32'"),
        (encode_dtype, np.float32, "dtype should be a numpy.dtype, got <class"),
        (encode_dtype, None, "dtype should be a numpy.dtype, got None"),
        (decode_dtype, np.dtype("f4"), r"text should be a str, got dtype\('float32'\)"),
        (decode_dtype, None, "text should be a str, got None"),
        (decode_dtype, b"float32", "text should be a str, got b'float32'"),
    ],
)
def test_a_dtype_and_its_text_are_told_apart(call: Any, value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call(value)


@pytest.mark.parametrize("field", ["x, y", "a', 'b", 'q", "', "(1, 2)", " "])
def test_names_of_fields_are_kept(field: str) -> None:
    for dtype in (
        np.dtype([(field, "f4"), ("z", "i2", (2, 3)), ("one", "i1", (4,))]),
        np.dtype({"names": [field], "formats": ["f4"], "offsets": [4], "itemsize": 16}),
    ):
        assert decode_dtype(encode_dtype(dtype)) == dtype
        assert decode_dtype(encode_dtype(dtype)).names == dtype.names
