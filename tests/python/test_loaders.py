"""Loaders: casts, dtypes, .npy files, Zarr volumes."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedvector.loaders import (
    Chunk,
    NumpyLoader,
    ZarrLoader,
    cast_volume,
    no_meta,
    resolve_numpy_dtype,
)

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


def test_no_meta() -> None:
    assert (no_meta().dtype, no_meta().shape) == (np.float64, (0,))
    assert no_meta() is not no_meta()
    assert Chunk(np.zeros(1), no_meta())._fields == ("data", "meta")


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


def test_extension_dtypes_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match="pip install ml_dtypes"):
        resolve_numpy_dtype("bfloat16")


# --- NumpyLoader


def test_numpy_loader(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int32).reshape(3, 2).T)
    np.save(tmp_path / "c.npy", np.float32(3))
    (tmp_path / "d.npy").mkdir()
    (tmp_path / "e.txt").write_text("")
    loader = pickle.loads(pickle.dumps(NumpyLoader(tmp_path)))
    assert len(loader) == 3
    (chunk,) = loader(0)
    assert isinstance(chunk, Chunk)
    assert chunk.data.dtype == np.float32 and chunk.data.flags.c_contiguous
    assert np.array_equal(chunk.data, [[0, 2, 4], [1, 3, 5]])
    assert chunk.meta.shape == (0,)
    assert loader(2)[0].data.shape == (1,)
    with pytest.raises(IndexError):
        loader(3)
    assert len(NumpyLoader(str(tmp_path), "[ab].npy", "int16")) == 2


def test_numpy_loader_finds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        NumpyLoader(tmp_path / "nope")
    with pytest.raises(FileNotFoundError, match=r"\*\.npy"):
        NumpyLoader(tmp_path)
    with pytest.raises(ValueError, match="foo"):
        NumpyLoader(tmp_path, dtype="foo")


def test_numpy_loader_names_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "0.npy").write_bytes(b"garbage")
    np.save(tmp_path / "1.npy", np.array([object()]), allow_pickle=True)
    np.save(tmp_path / "2.npy", np.arange(1000))
    os.truncate(tmp_path / "2.npy", 500)
    np.save(tmp_path / "3.npy", np.array(["text"]))
    np.save(tmp_path / "4.npy", np.arange(3))
    np.savez(tmp_path / "5.npz", np.arange(3))
    loader = NumpyLoader(tmp_path, "?.np?")
    for index, name in enumerate(["0.npy", "1.npy", "2.npy", "3.npy"]):
        with pytest.raises(ValueError, match=name):
            loader(index)
    with pytest.raises(ValueError, match=r"5\.npz"):
        loader(5)
    (tmp_path / "4.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"4\.npy"):
        loader(4)


def test_numpy_loader_reads_extension_floats(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array)
    (chunk,) = NumpyLoader(tmp_path, dtype="bfloat16")(0)
    assert chunk.data.dtype == array.dtype and np.array_equal(chunk.data, array)


# --- ZarrLoader


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Volumes "a" (float32) and "b" (int16), 7 slices each; slice k is full of k."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    root = tmp_path / "db"
    root.mkdir()
    for name, dtype in (("b", "int16"), ("a", "float32")):
        array = zarr.create_array(root / name, shape=(7, 4, 5), chunks=(3, 4, 5), dtype=dtype)
        array[...] = np.broadcast_to(np.arange(7).reshape(7, 1, 1), (7, 4, 5))
    return root


def first_values(chunks: list[Chunk]) -> list[list[int]]:
    for chunk in chunks:
        assert (chunk.data == chunk.data[:, :1, :1]).all()
    return [[int(v) for v in chunk.data[:, 0, 0]] for chunk in chunks]


@pytest.mark.parametrize("source", [0, 1])
def test_slabs_and_flips(database: Path, source: int) -> None:
    loader = ZarrLoader(database, 2, seed=3)
    assert len(loader) == 2
    seen = set()
    for _ in range(20):
        chunks = loader(source)
        assert all(c.data.flags.c_contiguous and c.data.dtype == np.int16 for c in chunks)
        assert [c.meta.shape for c in chunks] == [(0,)] * 3
        seen.add(str(first_values(chunks)))
    assert seen == {"[[0, 1], [2, 3], [4, 5]]", "[[6, 5], [4, 3], [2, 1]]"}


def test_slabs_are_views_where_they_can_be(database: Path) -> None:
    loader = ZarrLoader(database, 2, seed=3)
    unflipped = next(c for c in (loader(1) for _ in range(50)) if c[0].data[0, 0, 0] == 0)
    assert unflipped[0].data.base is not None
    assert unflipped[0].data.base is unflipped[1].data.base


def test_slab_sizes(database: Path) -> None:
    assert [c.data.shape for c in ZarrLoader(database, 0)(0)] == [(7, 4, 5)]
    assert [c.data.shape for c in ZarrLoader(str(database), 7)(0)] == [(7, 4, 5)]
    assert ZarrLoader(database, 8)(0) == []
    with pytest.raises(IndexError):
        ZarrLoader(database, 2)(2)
    with pytest.raises(ValueError, match="slices_per_chunk"):
        ZarrLoader(database, -1)
    with pytest.raises(TypeError):
        ZarrLoader(database, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="foo"):
        ZarrLoader(database, 2, dtype="foo")


def test_cast_clips(database: Path) -> None:
    import zarr

    array = zarr.open_array(database / "a", mode="r+")
    array[0, 0, :4] = [1e9, -1e9, np.nan, -1.7]
    chunk = ZarrLoader(database, 0)(0)[0].data
    row = chunk[0, 0] if chunk[1, 1, 0] == 1 else chunk[-1, 0]
    assert list(row[:4]) == [32767, -32768, 0, -1]


def flips(loader: ZarrLoader, count: int = 32) -> str:
    return "".join("01"[int(loader(1)[0].data[0, 0, 0] != 0)] for _ in range(count))


def test_seeds(database: Path) -> None:
    first, again, other = (ZarrLoader(database, 0, seed=seed) for seed in (-5, -5, 6))
    drawn = flips(first)
    assert drawn == flips(again) != flips(other)
    worker = ZarrLoader(database, 0, seed=-5)
    worker.worker_id = 1
    assert flips(worker) != drawn
    copy = pickle.loads(pickle.dumps(first))  # a copy starts anew
    assert flips(copy) == drawn
    assert flips(ZarrLoader(database, 0)) != flips(ZarrLoader(database, 0))


def test_forked_processes_draw_for_themselves(database: Path) -> None:
    loader = ZarrLoader(database, 0)
    flips(loader, 1)
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, "".join("01"[loader._draw()] for _ in range(64)).encode())
            os._exit(0)
        os.close(writer)
        drawn.append(os.read(reader, 100))
        os.close(reader)
        os.waitpid(pid, 0)
    assert len(drawn[0]) == 64 and drawn[0] != drawn[1]


def write_json(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_spacing_becomes_meta(database: Path, tmp_path: Path) -> None:
    entries = {"a": [1, 2, 3], "b": [4, 5, 6], "more": [7, 8, 9]}
    loader = ZarrLoader(database, 2, write_json(tmp_path / "s.json", entries))
    chunks = loader(1)
    assert [list(c.meta) for c in chunks] == [[6.0, 5.0, 4.0]] * 3
    assert chunks[0].meta.dtype == np.float64 and chunks[0].meta is not chunks[1].meta


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"a": [1, 2, 3]}, "lacks 1 of 2 volumes: b"),
        ({"a": [1, 2, 3], "b": None}, "b: None"),
        ({"a": [1, 2, 3], "b": [1, None, 2]}, "b: "),
        ('{"a": [1, 2, 3], "b": [1, NaN, 2]}', "b: .*nan"),
        ({"a": [1, 2, 3], "b": [1, 2]}, "b: "),
        ({"a": [1, 2, 3], "b": "abc"}, "b: "),
        ([1, 2], "list"),
        ("{nope", "not JSON"),
    ],
)
def test_bad_spacing_file(database: Path, tmp_path: Path, content: object, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        ZarrLoader(database, 2, write_json(tmp_path / "s.json", content))
    assert "s.json" in str(caught.value)


def test_missing_spacing_file(database: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nofile"):
        ZarrLoader(database, 2, tmp_path / "nofile.json")


def test_what_is_no_volume_is_not_counted(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    import zarr

    zarr.create_group(database / "group")
    (database / "stray").mkdir()
    zarr.create_array(database / "two", shape=(3,), dtype="int16", zarr_format=2)
    with caplog.at_level(logging.WARNING):
        assert len(ZarrLoader(database, 2)) == 2
    assert all(name in caplog.text for name in ("group", "stray", "two"))


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        ZarrLoader(tmp_path / "nope", 2)
    with pytest.raises(FileNotFoundError):
        ZarrLoader(tmp_path, 2)
    (tmp_path / "stray").mkdir()
    with pytest.raises(FileNotFoundError, match="stray"):
        ZarrLoader(tmp_path, 2)


def test_a_directory_that_is_none_or_an_array_itself(database: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope does not exist"):
        ZarrLoader(tmp_path / "nope", 2)
    with pytest.raises(FileNotFoundError, match="nope does not exist"):
        NumpyLoader(tmp_path / "nope")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is not a directory"):
        ZarrLoader(tmp_path / "file", 2)
    volume = next(path for path in database.iterdir() if (path / "zarr.json").exists())
    with pytest.raises(FileNotFoundError, match=rf"itself a Zarr array.*{database}"):
        ZarrLoader(volume, 2)


def test_thin_volumes_are_named(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ZarrLoader(database, 1)
        assert not caplog.text
        loader = ZarrLoader(database, 1000)
    assert "2 of 2 volumes have fewer slices than slices_per_chunk=1000" in caplog.text
    assert loader(0) == []
    assert "slices, slices_per_chunk=1000" in loader.explain_empty(0)


def test_damaged_volume_is_named(database: Path) -> None:
    import zarr

    loader = ZarrLoader(database, 2)
    for file in (database / "b" / "c").rglob("*"):
        if file.is_file():
            file.write_bytes(b"xx")
    with pytest.raises((RuntimeError, ValueError), match=str(database / "b")):
        loader(1)
    (database / "a" / "zarr.json").unlink()
    with pytest.raises((OSError, ValueError), match=str(database / "a")):
        loader(0)
    zarr.create_array(database / "scalar", shape=(), dtype="int16")
    with pytest.raises(ValueError, match="scalar"):
        ZarrLoader(database, 0)(1)


def test_other_ranks_and_dtypes(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    for shape in ((7,), (7, 3), (7, 2, 2, 2)):
        array = zarr.create_array(tmp_path / f"d{len(shape)}", shape=shape, dtype="uint8")
        array[...] = 200
    for dtype in ("uint8", "int8", ">i2", "float16", "complex64", "bool"):
        for source, tail in enumerate([(), (3,), (2, 2, 2)]):
            chunks = ZarrLoader(tmp_path, 3, dtype=dtype)(source)
            assert [c.data.shape for c in chunks] == [(3, *tail)] * 2
            value = {"int8": 127, "bool": True}.get(dtype, 200)
            assert all(c.data.dtype == np.dtype(dtype) for c in chunks)
            assert all((c.data == value).all() for c in chunks)


def test_pickle_is_small_and_works_elsewhere(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    loader = ZarrLoader("db", 2, seed=1)
    loader(0)
    data = pickle.dumps(loader)
    assert len(data) < 1000
    script = "import pickle, sys; print(len(pickle.load(sys.stdin.buffer)(1)))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, cwd="/", timeout=60
    )
    assert done.stdout == b"3\n", done.stderr


def test_construction_needs_no_zarr(database: Path) -> None:
    script = (
        "import sys; sys.modules['zarr'] = None\n"
        "from sharedvector.loaders import ZarrLoader\n"
        f"loader = ZarrLoader({str(database)!r}, 2)\n"
        "try: loader(0)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "sharedvector[zarr]" in done.stdout, done.stderr
