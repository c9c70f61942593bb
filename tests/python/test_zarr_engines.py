"""The three engines give the same slabs, whatever the layout of a volume."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharedvector.loaders import ZarrLoader
from sharedvector.loaders.casting import cast_volume
from sharedvector.loaders.zarr.engines.base import Scratch, rows_of
from sharedvector.loaders.zarr.engines.direct import DirectSource
from sharedvector.loaders.zarr.metadata import read_layout
from sharedvector.loaders.zarr.slabs import Part

zarr = pytest.importorskip("zarr", reason="zarr is not installed")

BloscCodec, ZstdCodec = zarr.codecs.BloscCodec, zarr.codecs.ZstdCodec
GzipCodec, Crc32cCodec = zarr.codecs.GzipCodec, zarr.codecs.Crc32cCodec

CODECS: dict[str, Any] = {
    "none": None,
    "zstd": ZstdCodec(),
    "zstd-checksum": ZstdCodec(checksum=True),
    "blosc-lz4": BloscCodec(cname="lz4", shuffle="shuffle"),
    "blosc-zstd": BloscCodec(cname="zstd", shuffle="bitshuffle"),
    "gzip": GzipCodec(),
    "crc": Crc32cCodec(),
    "blosc-crc": [BloscCodec(cname="lz4", shuffle="shuffle"), Crc32cCodec()],
}


HAS_TENSORSTORE = importlib.util.find_spec("tensorstore") is not None
ENGINES = [
    "direct",
    "zarr",
    pytest.param(
        "tensorstore",
        marks=pytest.mark.skipif(not HAS_TENSORSTORE, reason="tensorstore is not installed"),
    ),
]
each_engine = pytest.mark.parametrize("engine", ENGINES)


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.integers(1, 12 if axis == 0 else 6)) for axis in range(3))
    chunks = tuple(draw(st.integers(1, size + 2)) for size in shape)
    shards = None
    if draw(st.booleans()):
        shards = tuple(part * draw(st.integers(1, 3)) for part in chunks)
    return {
        "shape": shape,
        "chunks": chunks,
        "shards": shards,
        "compressors": CODECS[draw(st.sampled_from(sorted(CODECS)))],
        "dtype": draw(st.sampled_from(["int16", "uint8", "float32", "bool"])),
        "fill_value": draw(st.sampled_from([0, 1])),
        "chunk_key_encoding": draw(
            st.sampled_from(
                [{"name": "default", "separator": s} for s in "/."]
                + [{"name": "v2", "separator": s} for s in "/."]
            )
        ),
    }


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Zeros and ones in some places, so that chunks may be missing, and extremes for casts."""
    random = np.random.default_rng(seed)
    volume = random.integers(0, 2, shape).astype(dtype)
    if random.random() < 0.7:
        volume = np.where(random.random(shape) < 0.6, random.normal(0, 30_000, shape), volume)
        if dtype == "float32":
            volume.flat[0] = np.nan
        volume = cast_volume(volume, dtype)
    return volume


def expected(
    volume: np.ndarray[Any, Any], step: int, flip: bool, dtype: str
) -> list[np.ndarray[Any, Any]]:
    turned = cast_volume(volume, dtype)[:: -1 if flip else 1]
    step = step or len(turned)
    return [turned[i : i + step] for i in range(0, len(turned) - step + 1, step)]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(layout=layouts(), step=st.integers(0, 9), seed=st.integers(0, 1 << 30), data=st.data())
def test_all_engines_give_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    layout: dict[str, Any],
    step: int,
    seed: int,
    data: st.DataObject,
) -> None:
    root = tmp_path_factory.mktemp("db")
    array = zarr.create_array(root / "v", **layout)
    volume = values(layout["shape"], layout["dtype"], seed)
    array[...] = volume
    dtype = data.draw(st.sampled_from([layout["dtype"], "int16", "float32", ">i2"]))
    flip = data.draw(st.booleans())
    wanted = expected(volume, step, flip, dtype)
    for engine in ["direct", "zarr", "tensorstore"][: 2 + HAS_TENSORSTORE]:
        loader = ZarrLoader(root, step, dtype=dtype, engine=engine)
        loader._draw = lambda: flip  # type: ignore[method-assign]
        opened: list[Any] = []
        found = []

        def allocate(shape: tuple[int, ...], opened: list[Any] = opened) -> Any:
            opened.append(np.full(shape, 77).astype(dtype))
            return opened[-1]

        for number, chunk in enumerate(loader.load_into(0, allocate)):
            assert chunk.data is opened[number]
            assert len(opened) - number <= loader.buffers_at_once
            found.append(chunk.data)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == dtype
        assert loader.counters[engine] == 1


@each_engine
def test_volumes_without_elements(tmp_path: Path, engine: str) -> None:
    for name, shape in (("a", (0, 3, 1)), ("b", (4, 0, 1))):
        zarr.create_array(tmp_path / name, shape=shape, chunks=(2, 2, 1), dtype="int16")
    loader = ZarrLoader(tmp_path, 2, engine=engine)
    assert loader(0) == []
    assert [c.data.shape for c in loader(1)] == [(2, 0, 1), (2, 0, 1)]
    assert ZarrLoader(tmp_path, 0, engine=engine)(0) == []


def test_chunks_are_decoded_in_place_or_into_one_scratch(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "v", shape=(8, 4, 4), chunks=(4, 4, 4), dtype="int16")
    array[...] = np.arange(128).reshape(8, 4, 4)
    taken: list[tuple[str, int]] = []

    class Watched(Scratch):
        def take(self, use: str, size: int) -> Any:
            taken.append((use, size))
            return super().take(use, size)

    loader = ZarrLoader(tmp_path, 4)
    loader._opener._scratch = Watched()
    loader._draw = lambda: False  # type: ignore[method-assign]
    loader(0)
    assert {use for use, _ in taken} == {"encoded"}
    loader._draw = lambda: True  # type: ignore[method-assign]
    loader(0)
    assert {(use, size) for use, size in taken if use != "encoded"} == {("decoded", 4 * 16 * 2)}


@each_engine
def test_each_chunk_is_read_once(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = zarr.create_array(
        tmp_path / "v", shape=(32, 64, 64), chunks=(8, 32, 32), dtype="int16", compressors=None
    )
    array[...] = 1
    if engine != "direct":
        loader = ZarrLoader(tmp_path, 3, engine=engine)
        loader(0)  # reads files of the library itself
        found = [_bytes_read_by(loader) for _ in range(20)]
        assert max(found) < 1.2 * array.nbytes
        return
    reads: list[Any] = []
    original = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: (reads.append(args), original(*args))[1])
    ZarrLoader(tmp_path, 3, engine=engine)(0)
    assert len(reads) == 16


def _bytes_read_by(loader: ZarrLoader) -> int:
    before = _bytes_read()
    loader(0)
    return _bytes_read() - before


def _bytes_read() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


def test_rows_of() -> None:
    assert rows_of((100, 8, 8), (16, 8, 8), 16, False) == 16
    assert rows_of((100, 8, 8), (1, 8, 8), 16, False) == 16
    assert rows_of((100, 8, 8), (64, 2, 2), 16, False) == 64
    assert rows_of((100, 8, 8), (16, 8, 8), 16, True) == 128
    assert rows_of((100, 8, 8), (16, 4, 4), 16, True) == 32
    assert rows_of((100,), (16,), 40, False) == 48


def test_direct_source_counts_and_refuses_missing(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "v", shape=(4, 4, 1), chunks=(2, 2, 1), dtype="int16", fill_value=9
    )
    layout = read_layout(json.loads((tmp_path / "v" / "zarr.json").read_text()))
    source = DirectSource(tmp_path / "v", layout, False, Scratch())
    out = np.zeros((2, 4, 1), np.int16)
    source.read([Part(0, 1, out[:1]), Part(1, 2, out[1:])])
    assert (out == 9).all() and source.missing == 2
    refusing = DirectSource(tmp_path / "v", layout, True, Scratch())
    with pytest.raises(ValueError, match=r"c/0/0/0 is missing.*fill value 9"):
        refusing.read([Part(0, 2, out)])


def test_zarr_reads_what_direct_does_not(tmp_path: Path) -> None:
    volume = np.arange(5 * 4 * 3).reshape(5, 4, 3)
    odd: dict[str, dict[str, Any]] = {
        "two": {"dtype": "int16", "compressors": [GzipCodec(), ZstdCodec()]},
        "transposed": {"dtype": "int16", "filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
        "v2": {"dtype": "<i2", "zarr_format": 2},
        "v2big": {"dtype": ">i2", "zarr_format": 2, "order": "F"},
        "big": {"dtype": "int16", "serializer": zarr.codecs.BytesCodec(endian="big")},
    }
    for name, settings_ in odd.items():
        array = zarr.create_array(tmp_path / name, shape=(5, 4, 3), chunks=(2, 3, 3), **settings_)
        array[...] = volume
    loader = ZarrLoader(tmp_path, 2)
    for source, flip in itertools.product(range(len(odd)), (False, True)):
        loader._draw = lambda flip=flip: flip  # type: ignore[method-assign]
        found = [chunk.data for chunk in loader(source)]
        assert np.array_equal(found, expected(volume, 2, flip, "int16"))
    assert loader.counters["zarr"] == 2 * len(odd)
    for name in odd:
        with pytest.raises(ValueError, match=rf"engine='direct'.*{name}: "):
            ZarrLoader(tmp_path, 2, engine="direct")


@each_engine
def test_missing_chunks_are_refused_by_every_engine(tmp_path: Path, engine: str) -> None:
    array = zarr.create_array(tmp_path / "v", shape=(4, 4, 1), chunks=(2, 4, 1), dtype="int16")
    array[:2] = 1
    assert (ZarrLoader(tmp_path, 2, engine=engine)(0)[0].data >= 0).all()
    loader = ZarrLoader(tmp_path, 2, engine=engine, missing="error")
    with pytest.raises((ValueError, RuntimeError), match=f"{tmp_path}/v cannot be read"):
        loader(0)


@each_engine
def test_damage_is_an_error_in_every_engine(tmp_path: Path, engine: str) -> None:
    array = zarr.create_array(tmp_path / "v", shape=(4, 4, 1), chunks=(2, 4, 1), dtype="int16")
    array[...] = 1
    (tmp_path / "v" / "c" / "1" / "0" / "0").write_bytes(b"nothing that decodes")
    with pytest.raises((ValueError, RuntimeError), match=f"{tmp_path}/v cannot be read"):
        ZarrLoader(tmp_path, 2, engine=engine)(0)


def test_tensorstore_after_a_fork_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    array = zarr.create_array(tmp_path / "v", shape=(4, 4, 1), chunks=(2, 4, 1), dtype="int16")
    array[...] = 1
    loader = ZarrLoader(tmp_path, 2, engine="tensorstore")
    loader(0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(150)
        try:
            loader(0)
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 1000).decode()
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0
    assert f"used in process {os.getpid()}" in text and "spawn" in text


def test_tensorstore_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(tmp_path / "v", shape=(4, 4, 1), dtype="int16")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"sharedvector\[tensorstore\]"):
        ZarrLoader(tmp_path, 2, engine="tensorstore")


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_direct_needs_no_memory_beyond_scratch(tmp_path: Path, flip: bool, dtype: str) -> None:
    array = zarr.create_array(
        tmp_path / "v", shape=(66, 128, 128), chunks=(8, 128, 128), dtype=dtype
    )
    array[...] = np.random.default_rng(0).integers(-1000, 1000, array.shape)
    chunk, stored = 8 * 128 * 128 * array.dtype.itemsize, array.nbytes_stored() // 8
    loader = ZarrLoader(tmp_path, 8, engine="direct")
    loader._draw = lambda: flip  # type: ignore[method-assign]
    slabs = [np.zeros((8, 128, 128), np.int16) for _ in range(8)]
    loader(0)  # imports
    loader._opener._scratch = None
    tracemalloc.start()
    try:
        free = iter(slabs)
        assert len(list(loader.load_into(0, lambda shape: next(free)))) == 8
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    scratch = chunk if flip or dtype != "int16" else 0
    assert peak < stored + scratch + 100_000
