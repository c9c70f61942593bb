"""Databases that are no local directories: zip files, memory://, HTTP, object stores."""

from __future__ import annotations

import functools
import http.server
import json
import pickle
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedvector.loaders import ZarrLoader
from sharedvector.loaders.zarr import engines
from sharedvector.loaders.zarr.engines.zarr_python import open_store, read_metadata_files
from sharedvector.spacing import collect_spacings, write_spacing_manifest
from sharedvector.verify import verify_database

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
fsspec: Any = pytest.importorskip("fsspec", reason="fsspec is not installed")

VOLUME = np.arange(9 * 4 * 6, dtype=np.int16).reshape(9, 4, 6)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Volumes of format 3 and 2, and what is none."""
    root = tmp_path / "db"
    zarr.create_group(root)
    for name, settings in {"a": {}, "b": {"zarr_format": 2}}.items():
        array = zarr.create_array(
            root / name, shape=VOLUME.shape, chunks=(2, 4, 3), dtype="int16", **settings
        )
        array[...] = VOLUME
        array.attrs["spacing"] = [1, 2, 3]
    zarr.create_group(root / "group")
    (root / "stray").mkdir()
    return root


@pytest.fixture
def server(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server on the loopback device that lists directories, and counts what it was asked for."""
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")

    class Handler(http.server.SimpleHTTPRequestHandler):
        asked: list[str] = []

        def do_GET(self) -> None:
            self.asked.append(self.path)
            super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(database.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        httpd.url = f"http://127.0.0.1:{httpd.server_port}/db"  # type: ignore[attr-defined]
        httpd.asked = Handler.asked  # type: ignore[attr-defined]
        yield httpd
        httpd.shutdown()
        thread.join(10)


def check(loader: ZarrLoader, sources: int = 2) -> None:
    assert len(loader) == sources
    for source in range(sources):
        for _ in range(4):
            found = [chunk.data for chunk in loader(source)]
            straight = [VOLUME[i : i + 4] for i in (0, 4)]
            turned = [VOLUME[::-1][i : i + 4] for i in (0, 4)]
            assert np.array_equal(found, straight) or np.array_equal(found, turned)


def test_zip(database: Path, tmp_path: Path) -> None:
    path = tmp_path / "db.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(database.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(database))
    loader = ZarrLoader(path, 4)
    check(loader)
    assert loader.counters["zarr"] == 8 and not loader.releases_gil
    check(pickle.loads(pickle.dumps(loader)))
    assert collect_spacings(path) == {"a": [1, 2, 3], "b": [1, 2, 3]}
    with pytest.raises(ValueError, match=r"say where to \(output\)"):
        write_spacing_manifest(path)
    spacings = write_spacing_manifest(path, tmp_path / "spacings.json")
    assert list(ZarrLoader(path, 4, spacings)(0)[0].meta) == [3, 2, 1]
    assert verify_database(path).chunks == 20
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"wanted a zip file.*{path}"):
        ZarrLoader(path, 4)


def test_engines_that_read_no_zip(tmp_path: Path) -> None:
    path = tmp_path / "db.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/zarr.json", '{"zarr_format": 3, "node_type": "array"}')
    for engine in ("direct", "tensorstore"):
        with pytest.raises(ValueError, match=rf"engine='{engine}'.*cannot read.*{path}"):
            ZarrLoader(path, 4, engine=engine)


def test_memory(database: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    try:
        memory.put(str(database), "/test-db", recursive=True)
        loader = ZarrLoader("memory://test-db/", 4)
        check(loader)
        assert loader.counters["zarr"] == 8
        check(pickle.loads(pickle.dumps(loader)))
        memory.rm("/test-db/a/c/0/0/0")
        whole = ZarrLoader("memory://test-db", 0)
        assert np.count_nonzero(whole(0)[0].data) == VOLUME[:, :, 3:].size + VOLUME[2:, :, :3].size
        assert whole.counters["missing_chunks"] == 1
        with pytest.raises(ValueError, match=r"memory://test-db/a .*a/c/0/0/0 is missing"):
            ZarrLoader("memory://test-db", 0, missing="error")(0)
        assert [p.text for p in verify_database("memory://test-db").problems] == ["chunk c/0/0/0"]
        memory.pipe("/test-db/a/c/1/0/0", b"xx")
        with pytest.raises((ValueError, RuntimeError), match="memory://test-db/a cannot be read"):
            ZarrLoader("memory://test-db", 0)(0)
        with pytest.raises(FileNotFoundError, match="memory://other"):
            ZarrLoader("memory://other", 4)
        with pytest.raises(ValueError, match=r"s3://, gs://"):
            ZarrLoader("memory://test-db", 4, engine="tensorstore")
        with pytest.raises(FileNotFoundError, match="itself a Zarr array"):
            ZarrLoader("memory://test-db/a", 4)
    finally:
        memory.rm("/test-db", recursive=True)


def test_http(server: Any) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    loader = ZarrLoader(server.url, 4)
    check(loader)
    server.asked.clear()
    loader(0)
    chunks = [path for path in server.asked if "/c/" in path]
    assert len(chunks) == len(set(chunks)) <= 10
    check(pickle.loads(pickle.dumps(loader)))
    server.shutdown()
    server.server_close()
    with pytest.raises((OSError, RuntimeError), match=f"{server.url}/a cannot be read"):
        loader(0)


def test_a_server_that_is_not_there_is_named(server: Any) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with pytest.raises(FileNotFoundError, match=f"{server.url}/none"):
        ZarrLoader(f"{server.url}/none", 4)
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match=f"^{server.url} cannot be read: .*Connect"):
        ZarrLoader(server.url, 4)


def test_http_with_tensorstore(server: Any) -> None:
    pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    loader = ZarrLoader(server.url, 4, engine="tensorstore")
    assert loader.releases_gil
    check(loader)
    assert loader.counters["tensorstore"] == 8


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_consolidated_metadata_are_read(
    database: Path, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    zarr.consolidate_metadata(str(database), zarr_format=3)
    described = json.loads((database / "zarr.json").read_text())
    assert "a" in described["consolidated_metadata"]["metadata"]  # and b, of v2, is not
    server.asked.clear()
    check(ZarrLoader(server.url, 4))
    assert server.asked[0] == "/db/zarr.json" and "/db/a/zarr.json" not in server.asked[:4]
    (told,) = [r.message for r in caplog.records if "consolidated metadata lack" in r.message]
    assert "lack 1 entries that are there: b;" in told


class Unlisted(fsspec.spec.AbstractFileSystem):  # type: ignore[misc]
    """A server of local files that lists nothing."""

    protocol = "unlisted"
    cachable = False
    root = Path()

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        return (self.root / self._strip_protocol(path).strip("/")).read_bytes()[start:end]

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        raise NotImplementedError("this server lists nothing")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        size = (self.root / self._strip_protocol(path).strip("/")).stat().st_size
        return {"name": path, "size": size, "type": "file"}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_a_server_that_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    fsspec.register_implementation("unlisted", Unlisted, clobber=True)
    monkeypatch.setattr(Unlisted, "root", tmp_path)
    group = zarr.create_group(tmp_path / "db", zarr_format=version)
    for name in "ab":
        array = group.create_array(name, data=np.full((4, 2, 2), 7, np.int16))
        array.attrs["spacing"] = [1, 2, 3]
    with pytest.raises(OSError, match=r"cannot be listed: .*zarr.consolidate_metadata"):
        ZarrLoader("unlisted://db", 2)
    zarr.consolidate_metadata(str(tmp_path / "db"), zarr_format=version)  # as the error says
    loader = ZarrLoader("unlisted://db", 2)
    assert len(loader) == 2 and all((c.data == 7).all() for k in range(2) for c in loader(k))
    assert collect_spacings("unlisted://db") == {"a": [1, 2, 3], "b": [1, 2, 3]}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("version", [2, 3])
def test_a_stale_list_hides_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: Any
) -> None:
    group = zarr.create_group(tmp_path / "db", zarr_format=version)
    group.create_array("a", data=np.zeros((4, 2, 2), np.int16))
    zarr.consolidate_metadata(str(tmp_path / "db"), zarr_format=version)
    zarr.create_array(
        tmp_path / "db" / "added", data=np.zeros((4, 2, 2), np.int16), zarr_format=version
    )
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "db")
    assert len(ZarrLoader(packed, 2)) == 2
    assert "lack 1 entries that are there: added;" in caplog.text


def test_file_urls_are_local(database: Path) -> None:
    loader = ZarrLoader(f"file://{database}", 4)
    check(loader)
    assert loader.counters["direct"] == loader.counters["zarr"] == 4


def test_open_store_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="nope does not exist"):
        open_store(tmp_path / "nope")
    with pytest.raises(ImportError, match=r"nothing://db is read with fsspec.*obstore"):
        open_store("nothing://db")
    monkeypatch.delitem(vars(engines), "read_metadata_files", raising=False)  # imported before
    monkeypatch.setitem(sys.modules, "sharedvector.loaders.zarr.engines.zarr_python", None)
    with pytest.raises(ImportError, match=r"sharedvector\[zarr\]"):
        ZarrLoader("memory://db", 4)


def test_read_metadata_files(database: Path) -> None:
    (database / "stray" / "deep").mkdir(parents=True)
    (database / "spacing.json").touch()
    files = read_metadata_files(database, lambda own: ())
    assert {name: sorted(content) for name, content in files.items()} == {
        "": ["zarr.json"],
        "a": ["zarr.json"],
        "b": [".zarray", ".zattrs"],
        "group": ["zarr.json"],
        "stray": [],
    }
    assert set(read_metadata_files(database, lambda own: {"a", "group"})) == {"", "b", "stray"}
