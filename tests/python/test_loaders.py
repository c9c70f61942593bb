"""Loaders: .npy files and Zarr volumes."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import in_child

from sharedvector.loaders import Chunk, NumpyLoader, ZarrLoader, no_meta


def test_no_meta() -> None:
    assert (no_meta().dtype, no_meta().shape) == (np.float64, (0,))
    assert no_meta() is not no_meta()
    assert Chunk(np.zeros(1), no_meta())._fields == ("data", "meta")


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
    assert len(NumpyLoader(tmp_path.as_uri())) == 3


def test_numpy_loader_tells_what_its_chunks_are_like(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((5, 4), np.int8))
    np.save(tmp_path / "c.npy", np.float32(3))
    (tmp_path / "d.npy").write_bytes(b"garbage")
    loader = NumpyLoader(tmp_path, dtype="int16")
    assert (loader.chunk_dtype, loader.chunk_size) == ("int16", 5 * 4 * 2)
    assert loader.chunk_size == max(loader(source)[0].data.nbytes for source in range(3))
    bad = NumpyLoader(tmp_path, "d.npy")
    with pytest.raises(OSError, match=r"no array tells how large chunks are.*d\.npy.*chunk_size="):
        bad.chunk_size  # noqa: B018


def test_numpy_loader_finds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        NumpyLoader(tmp_path / "nope")
    with pytest.raises(FileNotFoundError, match=r"\*\.npy"):
        NumpyLoader(tmp_path)
    with pytest.raises(ValueError, match="foo"):
        NumpyLoader(tmp_path, dtype="foo")
    with pytest.raises(FileNotFoundError, match=r"^directory should be a path .*s3://b/x; copy"):
        NumpyLoader("s3://b/x")


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


@pytest.mark.parametrize(("slices", "depth"), [((), 7), ((2,), 2), ((5,), 5)])
def test_zarr_loader_tells_what_its_chunks_are_like(
    database: Path, slices: tuple[int, ...], depth: int
) -> None:
    """Without slices_per_chunk, chunks are whole volumes."""
    loader = ZarrLoader(database, *slices, dtype="float64")
    chunks = [chunk for source in range(len(loader)) for chunk in loader(source)]
    assert (loader.chunk_dtype, chunks[0].data.dtype) == ("float64", np.float64)
    assert loader.chunk_size == max(chunk.data.nbytes for chunk in chunks)
    assert max(len(chunk.data) for chunk in chunks) == depth
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy.chunk_dtype, copy.chunk_size) == (loader.chunk_dtype, loader.chunk_size)


def test_zarr_loader_knows_no_chunk_size_when_no_metadata_tell_it(database: Path) -> None:
    for volume in database.iterdir():
        metadata = json.loads((volume / "zarr.json").read_text())
        write_json(volume / "zarr.json", {**metadata, "shape": "large"})
    assert ZarrLoader(database, 2).chunk_size is None
    assert ZarrLoader(database, 2).chunk_dtype == "int16"


def test_slabs_are_arrays_of_their_own(database: Path) -> None:
    for _ in range(4):
        chunks = ZarrLoader(database, 2)(1)
        assert all(c.data.base is None and c.data.flags.writeable for c in chunks)


def test_slab_sizes(database: Path) -> None:
    assert [c.data.shape for c in ZarrLoader(database, 0)(0)] == [(7, 4, 5)]
    assert [c.data.shape for c in ZarrLoader(str(database), 7)(0)] == [(7, 4, 5)]
    assert ZarrLoader(database, 8)(0) == []
    with pytest.raises(IndexError):
        ZarrLoader(database, 2)(2)
    with pytest.raises(ValueError, match="slices_per_chunk"):
        ZarrLoader(database, -1)
    with pytest.raises(TypeError, match=r"^slices_per_chunk should be an integer, got 2\.0"):
        ZarrLoader(database, 2.0)  # type: ignore[arg-type]
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

        def child(writer: int = writer) -> None:
            os.write(writer, "".join("01"[loader._draw()] for _ in range(64)).encode())

        assert in_child(child) == 0
        os.close(writer)
        drawn.append(os.read(reader, 100))
        os.close(reader)
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
    loader = ZarrLoader(database.as_uri(), 2, (tmp_path / "s.json").as_uri())
    assert list(loader(1)[0].meta) == [6.0, 5.0, 4.0]


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
    with pytest.raises(FileNotFoundError, match=r"^spacing_file should be a path .*got s3://b/s"):
        ZarrLoader(database, 2, "s3://b/s.json")


def test_what_is_no_volume_is_not_counted(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    import zarr

    zarr.create_group(database / "group")
    (database / "stray").mkdir()
    zarr.create_group(database / "old", zarr_format=2)
    with caplog.at_level(logging.WARNING):
        assert len(ZarrLoader(database, 2)) == 2
    assert all(name in caplog.text for name in ("group", "stray", "old"))


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


def own(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What this package has logged; libraries log what they like."""
    return [record.message for record in caplog.records if record.name == "sharedvector"]


def test_thin_volumes_are_named(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ZarrLoader(database, 1)
        assert not own(caplog)
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
    loader = ZarrLoader(database, 2)
    zarr.create_array(database / "b", shape=(8, 3), dtype="int16", overwrite=True)
    with pytest.raises(ValueError, match=r"b cannot be read.*3 axes, this has shape \(8, 3\)"):
        loader(0)


def test_other_dtypes(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    array = zarr.create_array(tmp_path / "a", shape=(7, 3, 2), dtype="uint8")
    array[...] = 200
    for dtype in ("uint8", "int8", ">i2", "float16", "complex64", "bool"):
        chunks = ZarrLoader(tmp_path, 3, dtype=dtype)(0)
        assert [c.data.shape for c in chunks] == [(3, 3, 2)] * 2
        value = {"int8": 127, "bool": True}.get(dtype, 200)
        assert all(c.data.dtype == np.dtype(dtype) for c in chunks)
        assert all((c.data == value).all() for c in chunks)


def test_arrays_of_other_axes_are_named_and_left_out(
    database: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import zarr

    shapes = {"channels": (2, 4, 4, 4), "plane": (4, 4), "scalar": ()}
    for name, shape in shapes.items():
        zarr.create_array(database / name, shape=shape, dtype="int16")
        zarr.create_array(tmp_path / "others" / name, shape=shape, dtype="int16")
    assert len(ZarrLoader(database, 2)) == 2
    (told,) = [line for line in own(caplog) if "axes" in line]
    assert all(f"{name} (shape {shape})" in told for name, shape in shapes.items())
    with pytest.raises(FileNotFoundError, match=r"of 3 axes.*channels \(shape \(2, 4, 4, 4\)\)"):
        ZarrLoader(tmp_path / "others", 2)


def test_volumes_without_voxels_are_named(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    import zarr

    zarr.create_array(database / "hollow", shape=(4, 0, 4), dtype="int16")
    zarr.create_array(database / "nothing", shape=(0, 4, 4), dtype="int16")
    assert len(ZarrLoader(database, 0)) == 4
    (told,) = own(caplog)
    assert "hollow (shape (4, 0, 4)), nothing (shape (0, 4, 4))" in told


@pytest.mark.parametrize("engine", ["direct", "zarr"])
@pytest.mark.parametrize("step", [0, 2])
def test_fractions_that_are_cut_off_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str, step: int
) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    values = np.linspace(0, 1, 5 * 4 * 3, dtype=np.float32).reshape(5, 4, 3)
    volumes = {
        "background": np.zeros_like(values),
        "labels": np.floor(values * 5),
        "hounsfield": values * 4000 - 1000.5,
        "normalised": values,
        "other": values - 0.5,
    }
    for name, volume in volumes.items():
        zarr.create_array(tmp_path / name, data=volume, chunks=(2, 4, 3))
    loader = ZarrLoader(tmp_path, step, engine=engine)
    for source in (0, 1, 2, 0, 1, 2):
        loader(source)
    assert not own(caplog)
    for source in (3, 4, 3, 4):
        loader(source)
    (told,) = own(caplog)
    assert f"{tmp_path / 'normalised'}: its float32 values from 0 to 1 lose" in told
    assert "dtype='float32'" in told
    caplog.clear()
    whole = ZarrLoader(tmp_path, step, dtype="float32", engine=engine)
    assert (whole(3)[0].data % 1 != 0).any() and not own(caplog)


def test_fractions_of_numpy_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "a.npy", np.array([np.nan, 0.25, 0.75, np.inf]))
    np.save(tmp_path / "b.npy", np.array([0.25, 0.75]))
    np.save(tmp_path / "c.npy", np.array([-0.25, 0.75], np.float16))
    loader = NumpyLoader(tmp_path, dtype="int16")
    loader(0)  # infinity becomes 32767: there is more than a few levels
    assert not own(caplog)
    for source in (1, 1, 2):
        loader(source)
    (told,) = own(caplog)
    assert f"{tmp_path / 'b.npy'}: its float64 values from 0.25 to 0.75 lose" in told


def test_numpy_sources_that_are_left_out_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "b.npy").symlink_to("/mnt/unmounted/b.npy")
    (tmp_path / "c.npy").symlink_to(tmp_path / "c.npy")
    (tmp_path / "d.npy").mkdir()
    os.mkfifo(tmp_path / "e.npy")
    (tmp_path / "notes.txt").touch()
    assert len(NumpyLoader(tmp_path)) == 1
    (told,) = own(caplog)
    assert "4 of 5 entries" in told and "notes" not in told
    for part in (
        "b.npy (a link to /mnt/unmounted/b.npy, where nothing is)",
        "c.npy (a link that leads to itself)",
        "d.npy (a directory)",
        "e.npy (a pipe or a device)",
    ):
        assert part in told
    (tmp_path / "a.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file under .*, only b.npy \(a link to /mnt"):
        NumpyLoader(tmp_path)


def test_directories_that_cannot_be_listed_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("open", "shut"):
        (tmp_path / part).mkdir()
        np.save(tmp_path / part / "a.npy", np.zeros(3))
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:  # the tests may run as root, who may read everything
        if Path(os.fspath(path)).name == "shut":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(NumpyLoader(tmp_path, "**/*.npy")) == 1
    (told,) = own(caplog)
    assert f"{tmp_path / 'shut'} (a directory: Permission denied)" in told


def test_pickle_is_small_and_works_elsewhere(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    loader = ZarrLoader("db", 2, seed=1)
    loader(0)
    data = pickle.dumps(loader)
    assert len(data) < 1000 + len(str(database))
    script = "import pickle, sys; print(len(pickle.load(sys.stdin.buffer)(1)))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, cwd="/", timeout=150
    )
    assert done.stdout == b"3\n", done.stderr


@pytest.mark.parametrize(("engine", "hidden"), [("direct", "numcodecs"), ("zarr", "zarr")])
def test_construction_needs_no_zarr(database: Path, engine: str, hidden: str) -> None:
    script = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "from sharedvector.loaders import ZarrLoader\n"
        f"loader = ZarrLoader({str(database)!r}, 2, engine={engine!r})\n"
        "try: loader(0)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150
    )
    assert "sharedvector[zarr]" in done.stdout, done.stderr


def test_the_direct_engine_leaves_zarr_alone(database: Path) -> None:
    script = (
        "import sys; from sharedvector.loaders import ZarrLoader\n"
        f"print(len(ZarrLoader({str(database)!r}, 2)(0)), 'zarr' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150
    )
    assert done.stdout == "3 False\n", done.stderr


@pytest.mark.parametrize("kind", ["numpy", "zarr"])
def test_a_source_that_is_not_there_is_named(database: Path, tmp_path: Path, kind: str) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    loader: Any = NumpyLoader(tmp_path) if kind == "numpy" else ZarrLoader(database, 2)
    calls = [loader]
    if kind == "zarr":
        calls += [lambda index: list(loader.load_into(index, np.empty)), loader.explain_empty]
    for call in calls:
        for index in (2, -3, 10**20):
            with pytest.raises(IndexError, match=f"source {index} is .* from 0 to 1"):
                call(index)
        for odd in ("1", 1.0, None, slice(2)):
            with pytest.raises(TypeError, match="source_index should be an integer, got "):
                call(odd)
    for index in (-1, np.int64(1)):  # as of a list
        assert len(loader(index)) == len(loader(1)) > 0


# --- load_into


def test_load_into_fills_what_it_was_given(database: Path) -> None:
    loader = ZarrLoader(database, 2, seed=3)
    made: list[Any] = []

    def allocate(shape: tuple[int, ...]) -> Any:
        made.append(np.full(shape, -1, np.int16))
        return made[-1]

    again = pickle.loads(pickle.dumps(loader))
    for source in (0, 1, 0, 1, 0, 1):
        made.clear()
        expected = again(source)
        for number, chunk in enumerate(loader.load_into(source, allocate)):
            assert chunk.data is made[number], "chunks come in the order of their allocation"
            assert len(made) - number <= loader.buffers_at_once
            assert np.array_equal(chunk.data, expected[number].data)
            chunk.data[...] = -1  # it is another's now
        assert len(made) == len(expected) == 3
    assert loader.counters == {"direct": 6, "zarr": 0, "tensorstore": 0, "missing_chunks": 0}
    assert not any(pickle.loads(pickle.dumps(loader)).counters.values())


def test_load_into_passes_on_what_allocate_raises(database: Path) -> None:
    loader = ZarrLoader(database, 2)

    class RefusedError(ValueError):
        pass

    def allocate(shape: tuple[int, ...]) -> Any:
        raise RefusedError("too large")

    with pytest.raises(RefusedError, match=r"^too large$"):
        next(iter(loader.load_into(0, allocate)))
    with pytest.raises(IndexError):
        loader.load_into(2, allocate)


def test_a_volume_of_absurd_size_is_an_error(database: Path) -> None:
    path = database / "b" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["shape"] = [7, 10**9, 10**9]
    path.write_text(json.dumps(metadata))
    with pytest.raises(MemoryError, match="allocate"):
        ZarrLoader(database, 2)(1)
    metadata["shape"] = [7, 4, 5]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [10**6, 10**6, 10**6]
    path.write_text(json.dumps(metadata))
    with pytest.raises((MemoryError, ValueError), match=rf"{database}/b"):
        ZarrLoader(database, 2)(1)


def test_load_into_can_be_left_half_way(database: Path) -> None:
    loader = ZarrLoader(database, 2)
    chunks = loader.load_into(0, lambda shape: np.empty(shape, np.int16))
    next(chunks)
    chunks.close()
    assert not any(loader.counters.values())
    assert len(loader(0)) == 3


def test_damaged_chunks_are_never_given(database: Path) -> None:
    (database / "b" / "c" / "1" / "0" / "0").write_bytes(b"xx")
    loader = ZarrLoader(database, 2)
    for _ in range(10):
        given: list[Chunk] = []
        with pytest.raises(ValueError, match=rf"{database}/b cannot be read: .*c/1/0/0"):
            given.extend(loader.load_into(1, lambda shape: np.full(shape, -1, np.int16)))
        assert len(given) <= 1  # slices 3 to 5 are damaged
        assert all(sorted(c.data[:, 0, 0]) in ([0, 1], [5, 6]) for c in given)
    assert not any(loader.counters.values())


def test_missing_chunks(database: Path) -> None:
    (database / "b" / "c" / "2" / "0" / "0").unlink()
    loader = ZarrLoader(database, 7)
    assert sorted(loader(1)[0].data[:, 0, 0]) == [0, 0, 1, 2, 3, 4, 5]
    loader(1)
    assert loader.counters["missing_chunks"] == 2
    refusing = ZarrLoader(database, 7, missing="error")
    assert len(refusing(0)) == 1
    with pytest.raises(ValueError, match=rf"{database}/b .*c/2/0/0 is missing.*missing='fill'"):
        refusing(1)
    assert refusing.counters["missing_chunks"] == 0


def test_bad_engine_and_missing(database: Path) -> None:
    with pytest.raises(ValueError, match=r"engine should be one of auto, direct.*'fast'"):
        ZarrLoader(database, 2, engine="fast")
    with pytest.raises(ValueError, match=r"missing should be one of fill, error.*'drop'"):
        ZarrLoader(database, 2, missing="drop")


def test_the_engine_is_told_once(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    import zarr

    big = zarr.codecs.BytesCodec(endian="big")
    array = zarr.create_array(database / "c", shape=(4, 4, 1), dtype="int16", serializer=big)
    array[...] = 1
    loader = ZarrLoader(database, 2)
    with caplog.at_level(logging.INFO):
        for source in (0, 1, 2, 2):
            loader(source)
    told = own(caplog)
    assert len(told) == 2 and "engine direct for a" in told[0]
    assert "engine zarr for c" in told[1] and "big-endian" in told[1]
    assert loader.counters["direct"] == loader.counters["zarr"] == 2


# --- into a pool, from threads, after a fork


def test_load_into_buffers_of_a_pool(database: Path) -> None:
    from sharedvector import SharedVector, remove_shared_memory

    name = f"svloaders-{os.getpid()}"
    vector = SharedVector(name, chunk_size=4096, slot_count=3, dtype="int16", spare_buffers=3)
    try:
        loader = ZarrLoader(database, 2, seed=3)
        reserved: list[Any] = []

        def allocate(shape: tuple[int, ...]) -> Any:
            reserved.append(vector.reserve(shape))
            return reserved[-1].array

        expected = pickle.loads(pickle.dumps(loader))(1)
        for chunk in loader.load_into(1, allocate):
            reservation = reserved.pop(0)
            assert chunk.data is reservation.array
            reservation.publish(None, chunk.meta)
        assert not reserved
        assert all(np.array_equal(vector.get(i), expected[i].data) for i in range(3))
        (database / "b" / "c" / "1" / "0" / "0").write_bytes(b"xx")
        before = [vector.get(i).copy() for i in range(3)]
        with pytest.raises(ValueError, match="c/1/0/0"):
            for _ in loader.load_into(1, allocate):
                reserved.pop(0).cancel()
        for reservation in reserved:
            reservation.cancel()
        assert all(np.array_equal(vector.get(i), before[i]) for i in range(3))
    finally:
        vector.close()
        remove_shared_memory(name)


def test_copies_load_in_threads(database: Path) -> None:
    loader = ZarrLoader(database, 7, seed=0)
    straight, turned = list(range(7)), list(range(6, -1, -1))

    def work(number: int) -> bool:
        mine = pickle.loads(pickle.dumps(loader))
        mine.worker_id = number
        return all(list(mine(i % 2)[0].data[:, 0, 0]) in (straight, turned) for i in range(50))

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4), timeout=150))


@pytest.mark.parametrize("engine", ["direct", "zarr"])
def test_loading_goes_on_in_a_forked_child(database: Path, engine: str) -> None:
    loader = ZarrLoader(database, 2, engine=engine)
    loader(0)
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(150)
        try:
            status = int(len(loader(0)) != 3 or len(loader(1)) != 3)
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(loader(1)) == 3
