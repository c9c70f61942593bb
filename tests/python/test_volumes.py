"""Which directories of a database are volumes."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from sharedvector.loaders.volumes import as_path, as_root, is_local, shorten
from sharedvector.loaders.zarr.discovery import Skipped, _consolidated, find_volumes, survey

ARRAY: dict[str, Any] = {"zarr_format": 3, "node_type": "array", "shape": [2, 2]}


def write(directory: Path, **files: Any) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / {"zarr": "zarr.json"}.get(name, f".{name}")).write_text(text)


def test_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_root("a/../b") == as_root(Path("b")) == tmp_path / "b"
    assert as_root("s3://bucket/path/") == "s3://bucket/path"
    assert as_root("simplecache::s3://bucket/p") == "simplecache::s3://bucket/p"
    assert as_root("file:///a/b%20c") == as_root("file://localhost/a/b%20c") == Path("/a/b c")
    with pytest.raises(ValueError, match="file://host/a is on another host; mount it"):
        as_root("file://host/a")
    assert as_root("C:name") == tmp_path / "C:name"


def test_file_urls(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"50% #1? \xff")
    for root in (as_root, lambda url: as_path("file", url)):
        assert root(place.as_uri()) == place
        assert root("FILE://LocalHost/a/b%20c/") == Path("/a/b c")
        assert root("file:///a/#b?c") == Path("/a/#b?c")  # a path has no query to cut off
        assert root("file://") == Path("/")


def test_as_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_path("file", "b") == as_path("file", Path("b")) == Path("b")
    assert as_path("file", "link/../b") == Path("link/../b")  # may be another place
    for url in ("s3://bucket/path", "simplecache::file:///a"):
        with pytest.raises(FileNotFoundError, match=f"^file should be a path or .*, got {url}; co"):
            as_path("file", url)


def test_is_local(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    (tmp_path / "b.zip").mkdir()
    assert not is_local(tmp_path / "a.zip") and not is_local("s3://bucket")
    assert is_local(tmp_path / "b.zip") and is_local(tmp_path / "none")


def test_find_volumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "b", zarr=ARRAY)
    write(tmp_path / "a", zarray={"zarr_format": 2, "shape": [3]}, zattrs={"spacing": [1]})
    write(tmp_path / "c", zarray={"zarr_format": 2, "shape": [4]})
    write(tmp_path / "group", zarr={"zarr_format": 3, "node_type": "group"})
    write(tmp_path / "old group", zgroup={"zarr_format": 2})
    write(tmp_path / "next", zarr={"zarr_format": 4, "node_type": "array"})
    write(tmp_path / "broken", zarr="{nope")
    write(tmp_path / "list", zarr=[1])
    write(tmp_path / "stray")
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        volumes = find_volumes(tmp_path)
    assert list(volumes) == ["a", "b", "c"]
    assert volumes["a"] == {"zarr_format": 2, "shape": [3], "attributes": {"spacing": [1]}}
    assert volumes["b"] == ARRAY
    (record,) = [record for record in caplog.records if record.name == "sharedvector"]
    assert "6 of 9 entries are not counted" in record.message
    found = survey(tmp_path)
    reasons = {name: value.why for name, value in found.items() if isinstance(value, Skipped)}
    assert reasons.pop("broken").startswith("unreadable metadata: ")
    assert reasons == {
        "": "no zarr.json",
        "group": "a Zarr group, not an array",
        "old group": "a Zarr group, not an array",
        "next": "zarr.json is not of Zarr v3",
        "list": "zarr.json is not of Zarr v3",
        "stray": "no zarr.json",
    }


def test_unreadable_metadata(tmp_path: Path) -> None:
    write(tmp_path / "a", zarr=ARRAY)
    (tmp_path / "b" / "zarr.json").mkdir(parents=True)
    assert list(find_volumes(tmp_path)) == ["a"]
    assert "Is a directory" in str(survey(tmp_path)["b"])


def test_links_sockets_and_the_like_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "elsewhere" / "there", zarr=ARRAY)
    db = tmp_path / "db"
    db.mkdir()
    (db / "gone").symlink_to("/mnt/unmounted/gone")
    with pytest.raises(
        FileNotFoundError, match=r"found only gone \(a link to /mnt/unmounted/gone,"
    ):
        find_volumes(db)
    (db / "circle").symlink_to(db / "circle")
    (db / "linked").symlink_to(tmp_path / "elsewhere" / "there")
    (db / "file").symlink_to(tmp_path / "nothing")
    (tmp_path / "nothing").touch()
    os.mkfifo(db / "pipe")
    stat = Path.stat

    def stale(path: Path, **kwargs: Any) -> os.stat_result:
        if path.name == "stale":
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(path, **kwargs)

    (db / "stale").mkdir()
    monkeypatch.setattr(Path, "stat", stale)
    assert list(find_volumes(db)) == ["linked"]
    (record,) = caplog.records
    assert "4 of 5 entries are not counted" in record.message
    found = survey(db)
    assert {
        name: value for name, value in found.items() if isinstance(value, Skipped) and name
    } == {
        "gone": Skipped("a link to /mnt/unmounted/gone, where nothing is", lost=True),
        "circle": Skipped("a link that leads to itself", lost=True),
        "pipe": Skipped("a pipe or a device"),
        "stale": Skipped("it cannot be looked at: Stale file handle", lost=True),
    }


def test_consolidated_metadata_of_either_format(tmp_path: Path) -> None:
    array = {"zarr_format": 2, "shape": [4, 1, 1]}
    members = {".zgroup": {}, "a/.zarray": array, "a/.zattrs": {"spacing": [1, 2, 3]}}
    members |= {"group/.zgroup": {}, "group/b/.zarray": array, "c/.zarray": array}
    own = {".zgroup": b"{}", ".zmetadata": json.dumps({"metadata": members}).encode()}
    assert _consolidated(own) == {
        "a": {**array, "attributes": {"spacing": [1, 2, 3]}},
        "group": Skipped("a Zarr group, not an array"),
        "c": {**array, "attributes": {}},
    }
    inline = {"metadata": {"a": ARRAY, "g": {"node_type": "group"}, "g/b": ARRAY}}
    new = {"zarr.json": json.dumps({"consolidated_metadata": inline}).encode()}
    assert _consolidated(new) == {"a": ARRAY, "g": Skipped("a Zarr group, not an array")}
    for damaged in (b"{", b"[]", b"null", b'{"metadata": 3}', b'{"metadata": {"a/.zarray": 3}}'):
        assert _consolidated({".zmetadata": damaged}) == {}
        assert _consolidated({"zarr.json": damaged}) == {}


def test_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope does not exist"):
        find_volumes(tmp_path / "nope")
    with pytest.raises(FileNotFoundError, match=f"under {tmp_path}, found no directory"):
        find_volumes(tmp_path)
    write(tmp_path / "stray")
    with pytest.raises(FileNotFoundError, match=r"found only stray \(no zarr.json\)"):
        find_volumes(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="file is not a directory"):
        find_volumes(tmp_path / "file")
    write(tmp_path / "v" / "a", zarr=ARRAY)
    with pytest.raises(FileNotFoundError, match=rf"itself a Zarr array; give {tmp_path}/v,"):
        find_volumes(tmp_path / "v" / "a")


def test_an_array_that_has_arrays_in_it_is_a_database(tmp_path: Path) -> None:
    write(tmp_path / "v", zarr=ARRAY)
    write(tmp_path / "v" / "a", zarr=ARRAY)
    assert list(find_volumes(tmp_path / "v")) == ["a"]


def test_shorten_is_one_line_of_bounded_length() -> None:
    assert shorten(["a\nb", "\x1b[31m"]) == r"'a\nb', '\x1b[31m'"
    assert len(shorten(["x" * 5000] * 100)) < 2000


def test_shorten() -> None:
    assert shorten(["a", "b"]) == "a, b"
    assert shorten(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_importing_it_is_cheap() -> None:
    import subprocess
    import sys

    heavy = "zarr numcodecs fsspec asyncio urllib.request tensorstore"
    script = (
        "import sys; before = set(sys.modules); from sharedvector.loaders import ZarrLoader\n"
        f"print(sorted((set(sys.modules) - before) & set({heavy!r}.split())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150,
        env={**os.environ},
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
