"""Which engine reads which volume."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from sharedvector.loaders.zarr.discovery import find_volumes
from sharedvector.loaders.zarr.opener import Opener

zarr = pytest.importorskip("zarr", reason="zarr is not installed")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Volumes "direct" and "big" (big-endian), in chunks of 4 of 16 slices, and one in shards."""
    big = zarr.codecs.BytesCodec(endian="big")
    for name, settings in {
        "direct": {},
        "big": {"serializer": big},
        "shards": {"serializer": big, "chunks": (4, 4), "shards": (8, 4)},
    }.items():
        settings = {"chunks": (4, 4), **settings}
        array = zarr.create_array(tmp_path / name, shape=(16, 4), dtype="int16", **settings)
        array[...] = 1
    return tmp_path


def opener(
    root: Path, step: int = 4, engine: str = "auto", missing: str = "fill", only: str | None = None
) -> Opener:
    volumes = {k: v for k, v in find_volumes(root).items() if only in (None, k)}
    return Opener(root, step, engine, missing, volumes)


def test_auto(database: Path) -> None:
    auto = opener(database)
    assert [auto.open(name)[0] for name in ("direct", "big", "shards")] == ["direct"] + ["zarr"] * 2
    assert not auto.releases_gil
    assert opener(database, only="direct").releases_gil


def test_asked_for(database: Path) -> None:
    assert opener(database, engine="zarr").open("direct")[0] == "zarr"
    assert opener(database, engine="direct", only="direct").open("direct")[0] == "direct"
    with pytest.raises(ValueError, match=r"engine='direct'.*1 of 1 volumes.*its bytes are big"):
        opener(database, engine="direct", only="big")


def test_metadata_are_read_anew(database: Path) -> None:
    made = opener(database, engine="direct", only="direct")
    path = database / "direct" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["codecs"][0]["configuration"]["endian"] = "big"
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="big-endian"):
        made.open("direct")
    path.write_text("[]")
    with pytest.raises(ValueError, match="no object"):
        made.open("direct")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        made.open("direct")


@pytest.mark.parametrize(("step", "most"), [(4, 1), (16, 1), (0, 1), (2, 2), (1, 4), (3, 2)])
def test_buffers_at_once_of_direct(database: Path, step: int, most: int) -> None:
    assert opener(database, step, only="direct").buffers_at_once == most


def test_buffers_at_once_is_that_of_the_worst_volume(database: Path) -> None:
    deep = zarr.create_array(database / "deep", shape=(16, 4), chunks=(16, 4), dtype="int16")
    deep[...] = 1
    assert opener(database).buffers_at_once == 4
    assert opener(database, only="deep", engine="zarr").buffers_at_once == 4


def test_damaged_metadata_are_left_for_later(database: Path) -> None:
    path = database / "direct" / "zarr.json"
    path.write_text(json.dumps({"zarr_format": 3, "node_type": "array", "shape": "?"}))
    made = opener(database, only="direct")
    assert made.buffers_at_once == 1
    with pytest.raises(Exception):  # noqa: B017 - whatever zarr says to that
        made.open("direct")


def test_missing_chunks_that_cannot_be_told(database: Path) -> None:
    opener(database, missing="error", only="big")
    with pytest.raises(ValueError, match=r"1 of 3 volumes.*shards: .*within a shard"):
        opener(database, missing="error")


def test_pickle_holds_nothing_open(database: Path) -> None:
    made = opener(database)
    for name in ("direct", "big"):
        _, source = made.open(name)
        source.close()
    data = pickle.dumps(made)
    assert len(data) < 500 + len(str(database))
    copy: Any = pickle.loads(data)
    assert copy.open("big")[0] == "zarr" and copy.buffers_at_once == made.buffers_at_once
