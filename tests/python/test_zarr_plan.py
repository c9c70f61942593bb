"""Layouts from zarr.json, and volumes cut into slabs."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedvector.loaders.zarr.metadata import NotDirectError, Shards, read_layout
from sharedvector.loaders.zarr.slabs import Cut, Part

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
METADATA: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10, 6],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 7,
    "codecs": [LITTLE, {"name": "zstd", "configuration": {"level": 0}}],
    "attributes": {"spacing": [1, 2, 3]},
    "storage_transformers": [],
}


def changed(**members: Any) -> dict[str, Any]:
    return {**copy.deepcopy(METADATA), **members}


def sharded(**configuration: Any) -> dict[str, Any]:
    settings = {
        "chunk_shape": [2, 3],
        "codecs": [LITTLE],
        "index_codecs": [LITTLE, {"name": "crc32c"}],
        **configuration,
    }
    return changed(codecs=[{"name": "sharding_indexed", "configuration": settings}])


def test_layout() -> None:
    layout = read_layout(METADATA)
    assert (layout.shape, layout.chunk, layout.dtype) == ((10, 6), (4, 6), np.int16)
    assert (layout.codec, layout.checksum, layout.shards) == ("zstd", False, None)
    assert layout.fill == 7 and layout.fill.dtype == np.int16
    assert (layout.grid, layout.chunk_bytes) == ((3, 1), 48)
    assert layout.file_name((2, 0)) == "c/2/0" and not layout.plain


def test_layout_of_shards() -> None:
    layout = read_layout(sharded())
    assert (layout.chunk, layout.shards) == ((2, 3), Shards((2, 2), False))
    assert layout.plain and layout.grid == (5, 2)
    assert read_layout(sharded(index_location="start")).shards == Shards((2, 2), True)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ({"name": "default"}, "c/1/2"),
        ("default", "c/1/2"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.2"),
        ({"name": "v2"}, "1.2"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/2"),
    ],
)
def test_names_of_files(encoding: Any, name: str) -> None:
    assert read_layout(changed(chunk_key_encoding=encoding)).file_name((1, 2)) == name


@pytest.mark.parametrize(
    ("codecs", "found"),
    [
        ([LITTLE], (None, False)),
        ([LITTLE, {"name": "crc32c"}], (None, True)),
        ([LITTLE, {"name": "blosc", "configuration": {"cname": "lz4"}}], ("blosc", False)),
        ([LITTLE, {"name": "gzip"}, {"name": "crc32c"}], ("gzip", True)),
        ([LITTLE, {"name": "numcodecs.lz4", "configuration": {}}], ("lz4", False)),
    ],
)
def test_codecs(codecs: Any, found: Any) -> None:
    layout = read_layout(changed(codecs=codecs))
    assert (layout.codec, layout.checksum) == found


@pytest.mark.parametrize(
    ("dtype", "value", "fill"),
    [
        ("bool", True, True),
        ("uint8", 255, 255),
        ("float32", 1, 1.0),
        ("float16", "-Infinity", -np.inf),
        ("complex64", [1, "Infinity"], complex(1, np.inf)),
    ],
)
def test_fill_values(dtype: str, value: Any, fill: Any) -> None:
    layout = read_layout(changed(data_type=dtype, fill_value=value))
    assert layout.fill == fill and layout.fill.dtype == np.dtype(dtype)


def test_fill_value_nan() -> None:
    assert np.isnan(read_layout(changed(data_type="float64", fill_value="NaN")).fill)


def test_one_byte_needs_no_byte_order() -> None:
    assert read_layout(changed(data_type="uint8", codecs=["bytes"])).codec is None


def test_unknown_members_that_need_not_be_understood() -> None:
    assert read_layout(changed(more={"name": "x", "must_understand": False})) == read_layout(
        METADATA
    )


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"zarr_format": 2}, "v3"),
        ({"more": 1}, "'more'"),
        ({"more": {"must_understand": True}}, "'more'"),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"data_type": "string"}, "data_type is 'string'"),
        ({"data_type": {"name": "numpy.datetime64"}}, "data_type"),
        ({"data_type": ["int16"]}, "data_type"),
        ({"shape": [10, -6]}, "shape"),
        ({"shape": [10, 6.0]}, "shape"),
        ({"shape": [True, 6]}, "shape"),
        ({"shape": []}, "do not go together"),
        ({"shape": [10]}, "do not go together"),
        ({"shape": None}, "shape is None"),
        ({"chunk_grid": {"name": "rectilinear", "configuration": {}}}, "'rectilinear'"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 6]}}}, "chunk_sh"),
        ({"chunk_grid": None}, "chunk_grid is None"),
        ({"chunk_key_encoding": {"name": "odd"}}, "chunk_key_encoding"),
        ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "-"}}}, "chunk_key"),
        ({"codecs": []}, "codecs"),
        ({"codecs": None}, "codecs are None"),
        ({"codecs": [{"name": "transpose"}, LITTLE]}, "transpose, bytes"),
        ({"codecs": [LITTLE, {"name": "zstd"}, {"name": "gzip"}]}, "bytes, zstd, gzip"),
        ({"codecs": [LITTLE, {"name": "crc32c"}, {"name": "zstd"}]}, "bytes, crc32c, zstd"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}, "big-endian"),
        ({"codecs": [LITTLE, 5]}, "codec is 5"),
        ({"fill_value": None}, "fill_value is None"),
        ({"fill_value": 70_000}, "fill_value is 70000"),
        ({"fill_value": 1.0}, "fill_value"),
        ({"fill_value": True}, "fill_value"),
        ({"data_type": "float32", "fill_value": "0x7fc00000"}, "fill_value"),
        ({"data_type": "complex64", "fill_value": 1}, "fill_value"),
    ],
)
def test_what_direct_does_not_read(members: dict[str, Any], match: str) -> None:
    with pytest.raises(NotDirectError, match=match):
        read_layout(changed(**members))


@pytest.mark.parametrize(
    ("configuration", "match"),
    [
        ({"index_codecs": [LITTLE]}, "index of its shards has codecs bytes"),
        ({"index_codecs": None}, "index of its shards"),
        ({"index_codecs": ["bytes", "crc32c"]}, "index of its shards"),
        ({"index_location": "middle"}, "'middle'"),
        ({"chunk_shape": [3, 3]}, "no multiple"),
        ({"chunk_shape": [2]}, "no multiple"),
        ({"codecs": [{"name": "sharding_indexed", "configuration": {}}]}, "sharding_indexed"),
    ],
)
def test_shards_that_direct_does_not_read(configuration: dict[str, Any], match: str) -> None:
    with pytest.raises(NotDirectError, match=match):
        read_layout(sharded(**configuration))


@given(st.integers(0, 60), st.integers(1, 25), st.integers(1, 40), st.booleans())
def test_cuts(depth: int, step: int, rows: int, flip: bool) -> None:
    volume = np.arange(depth)
    cut = Cut(depth, step, flip)
    opened: list[Any] = []
    seen: list[int] = []
    given_ = 0

    def read(parts: list[Part]) -> None:
        assert all(one.stop == other.start for one, other in itertools.pairwise(parts))
        assert parts[0].start // rows == (parts[-1].stop - 1) // rows
        seen.extend(range(parts[0].start, parts[-1].stop))
        for part in parts:
            part.view[...] = volume[part.start : part.stop]

    def make(shape: tuple[int, ...]) -> Any:
        opened.append(np.full(shape, -1))
        assert len(opened) - given_ <= cut.slabs_at_once(rows)
        return opened[-1]

    found = []
    for slab in cut.fill(read, rows, (), make):
        assert slab is opened[given_]
        given_ += 1
        found.append(slab.copy())
        slab[...] = -2  # it is another's now
    turned = volume[::-1] if flip else volume
    wanted = [turned[i : i + step] for i in range(0, depth - step + 1, step)]
    assert [list(slab) for slab in found] == [list(slab) for slab in wanted]
    assert cut.slabs == len(wanted)
    assert sorted(seen) == sorted(map(int, np.concatenate([*wanted, []])))


@pytest.mark.parametrize(
    ("depth", "step", "rows", "most"),
    [(96, 16, 16, 1), (96, 16, 1, 1), (96, 16, 32, 2), (128, 16, 128, 8), (128, 16, 200, 8)],
)
def test_slabs_at_once_of_common_volumes(depth: int, step: int, rows: int, most: int) -> None:
    assert {Cut(depth, step, flip).slabs_at_once(rows) for flip in (False, True)} == {most}


def test_slabs_at_once_is_reached() -> None:
    for step, rows in [(3, 7), (4, 6), (16, 24), (5, 5), (6, 4)]:
        depth = math.lcm(step, rows) * 4
        most = opened = 0

        def make(shape: tuple[int, ...]) -> Any:
            nonlocal most, opened
            opened += 1
            most = max(most, opened)
            return np.zeros(shape)

        cut = Cut(depth, step, False)
        for _ in cut.fill(lambda parts: None, rows, (), make):
            opened -= 1
        assert most == cut.slabs_at_once(rows)
