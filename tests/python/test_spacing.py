"""Spacing manifest: what is found, what is refused, how the file appears."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from sharedvector.cli import spacing_manifest_main
from sharedvector.loaders import spacing
from sharedvector.spacing import collect_spacings, write_spacing_manifest


def make_node(path: Path, attributes: dict[str, Any] | None = None, node: str = "array") -> None:
    path.mkdir(parents=True)
    metadata = {"zarr_format": 3, "node_type": node, "attributes": attributes or {}}
    (path / "zarr.json").write_text(json.dumps(metadata))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_node(tmp_path / "b", {"spacing": [1, 2.5, 3]})
    make_node(tmp_path / "a", {"spacing": [4.0, 5.0, 6.0], "other": ["1", "2", "3"]})
    return tmp_path


def test_collect_gives_sorted_floats(root: Path) -> None:
    found = collect_spacings(root)
    assert list(found.items()) == [("a", [4.0, 5.0, 6.0]), ("b", [1.0, 2.5, 3.0])]
    assert all(type(part) is float for triple in found.values() for part in triple)
    assert collect_spacings(str(root)) == found


def test_arrays_written_by_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    array = zarr.create_array(tmp_path / "v", shape=(2, 3), dtype="int16")
    array.attrs["spacing"] = [0.5, 0.5, 2]
    assert collect_spacings(tmp_path) == {"v": [0.5, 0.5, 2.0]}


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "abc",
        [1, 2],
        [1, 2, 3, 4],
        [1, None, 2],
        [1, float("nan"), 2],
        [1, float("inf"), 2],
        [[1, 2, 3]],
        ["1", "x", "2"],
        [True, 1, 1],
        {"x": 1, "y": 1, "z": 1},
    ],
)
def test_bad_value_is_an_error_or_left_out(
    root: Path, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    make_node(root / "c", {"spacing": value})
    with pytest.raises(ValueError, match=r"'c'.*'spacing'.*three finite numbers"):
        collect_spacings(root)
    with caplog.at_level(logging.WARNING):
        assert list(collect_spacings(root, strict=False)) == ["a", "b"]
    assert "'c'" in caplog.text


def test_other_attribute(root: Path) -> None:
    with pytest.raises(ValueError, match=r"'b'.*'other'.*found nothing"):
        collect_spacings(root, "other")
    assert collect_spacings(root, "other", strict=False) == {"a": [1.0, 2.0, 3.0]}


def test_what_is_no_volume_is_named_and_left_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_node(root / "group", {"spacing": [1, 1, 1]}, node="group")
    (root / "stray").mkdir()
    (root / "old").mkdir()
    (root / "old" / ".zarray").write_text("{}")
    (root / "broken").mkdir()
    (root / "broken" / "zarr.json").write_text("{")
    (root / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert list(collect_spacings(root)) == ["a", "b"]
    for name in ("group", "stray", "old", "broken"):
        assert name in caplog.text


def test_linked_volume_counts(root: Path) -> None:
    (root / "link").symlink_to(root / "a")
    assert collect_spacings(root)["link"] == [4.0, 5.0, 6.0]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        collect_spacings(tmp_path / "nope")
    with pytest.raises(FileNotFoundError, match="no directory"):
        collect_spacings(tmp_path)
    with pytest.raises(FileNotFoundError):
        write_spacing_manifest(tmp_path)
    (tmp_path / "stray").mkdir()
    with pytest.raises(FileNotFoundError, match="stray"):
        collect_spacings(tmp_path)
    assert os.listdir(tmp_path) == ["stray"]


def test_manifest(root: Path, tmp_path: Path) -> None:
    path = write_spacing_manifest(root)
    assert path == root / "spacing.json"
    assert json.loads(path.read_text()) == collect_spacings(root)
    assert write_spacing_manifest(root) == path  # the file itself is no volume
    output = tmp_path / "out.json"
    assert write_spacing_manifest(str(root), str(output)) == output
    assert json.loads(output.read_text()) == collect_spacings(root)
    with pytest.raises(FileNotFoundError):
        write_spacing_manifest(root, tmp_path / "missing" / "out.json")


def test_the_command_says_it_in_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spacing, "collect_spacings", refuse)
    assert spacing_manifest_main([str(root), "--output", str(root / "gone" / "x.json")]) == 1
    assert capsys.readouterr().err == (
        f"sharedvector-spacing-manifest: wanted to write x.json, but {root}/gone does not exist; "
        "make it first\n"
    )


def test_manifest_of_a_url(root: Path) -> None:
    assert write_spacing_manifest(root.as_uri()) == root / "spacing.json"
    assert (root / "spacing.json").is_file()


def test_output_may_be_a_file_url(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "out 1.json"
    assert write_spacing_manifest(root, output.as_uri()) == output
    assert json.loads(output.read_text()) == collect_spacings(root)
    with pytest.raises(FileNotFoundError, match=r"^output should be a path .*got s3://b/out\.json"):
        write_spacing_manifest(root, "s3://b/out.json")


@pytest.mark.parametrize("output", [None, "out.json"])
def test_another_working_directory_does_not_move_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None
) -> None:
    monkeypatch.chdir(root.parent)
    collect = spacing.collect_spacings

    def collect_and_go(*arguments: Any) -> dict[str, list[float]]:
        found = collect(*arguments)
        monkeypatch.chdir("/")
        return found

    monkeypatch.setattr(spacing, "collect_spacings", collect_and_go)
    written = write_spacing_manifest(root.name, output)
    assert written == (root / "spacing.json" if output is None else Path(output))
    assert (root.parent / written).is_file()


def test_a_link_stays_one_and_a_pipe_is_written_into(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to("real.json")
    assert write_spacing_manifest(root, out / "link") == out / "link"
    assert (out / "link").is_symlink()
    assert json.loads((out / "real.json").read_text()) == collect_spacings(root)
    os.mkfifo(out / "pipe")
    reader = os.open(out / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        write_spacing_manifest(root, out / "pipe")
        assert json.loads(os.read(reader, 65536)) == collect_spacings(root)
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((out / "pipe").stat().st_mode)
    assert sorted(path.name for path in out.iterdir()) == ["link", "pipe", "real.json"]


def test_what_counts_is_the_directory_that_is_written_to(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe needs none (nor /dev/stdout a /dev that can be written), a link that of its target."""
    closed, there = root / "closed", root / "there"
    for directory in (closed, there):
        directory.mkdir()
    os.mkfifo(closed / "pipe")
    (closed / "link").symlink_to(there / "real.json")
    monkeypatch.setattr(spacing.os, "access", lambda path, mode: path != closed)
    reader = os.open(closed / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        write_spacing_manifest(root, closed / "pipe")
        assert json.loads(os.read(reader, 65536)) == collect_spacings(root)
    finally:
        os.close(reader)
    write_spacing_manifest(root, closed / "link")
    assert json.loads((there / "real.json").read_text()) == collect_spacings(root)
    with pytest.raises(PermissionError, match="closed cannot be written"):
        write_spacing_manifest(root, closed / "new.json")


def refuse(*arguments: Any) -> Any:
    raise AssertionError("the work has begun")


def test_output_that_cannot_be_is_refused_before_the_work(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spacing, "collect_spacings", refuse)
    (root / "file").touch()
    for output, kind, words in (
        ("gone/x.json", FileNotFoundError, f"{root}/gone does not exist; make it first"),
        ("file/x.json", NotADirectoryError, f"{root}/file is no directory"),
        ("a", IsADirectoryError, f"{root}/a is a directory; name a file in it"),
    ):
        with pytest.raises(kind, match=words):
            write_spacing_manifest(root, root / output)
    monkeypatch.setattr(spacing.os, "access", lambda path, mode: path != root)
    with pytest.raises(PermissionError, match=rf"{root} cannot be written.*\(output\)"):
        write_spacing_manifest(root)
    with pytest.raises(FileNotFoundError, match="nope does not exist"):
        write_spacing_manifest(root / "nope")


def test_empty_manifest_is_json(root: Path) -> None:
    assert json.loads(write_spacing_manifest(root, None, "none", False).read_text()) == {}


def test_failure_leaves_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_spacing_manifest(root)
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "disk full")

    make_node(root / "c", {"spacing": [9, 9, 9]})
    monkeypatch.setattr(spacing.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_spacing_manifest(root)
    assert path.read_bytes() == before
    assert sorted(os.listdir(root)) == ["a", "b", "c", "spacing.json"]


@pytest.mark.parametrize("terminal", [True, False])
def test_bar_only_on_a_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    collect_spacings(root)
    assert ("2/2" in stream.getvalue()) is terminal
