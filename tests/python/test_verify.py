"""sharedvector-zarr-verify: decodes everything, names what is damaged or missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharedvector.verify import Problem, verify_database, verify_main

zarr = pytest.importorskip("zarr", reason="zarr is not installed")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Volumes that the engines direct (plain, in shards) and zarr (big-endian, v2) read."""
    root = tmp_path / "db"
    root.mkdir()
    big = zarr.codecs.BytesCodec(endian="big")
    kinds: dict[str, dict[str, Any]] = {
        "direct": {},
        "shards": {"shards": (4, 4)},
        "big": {"serializer": big},
        "old": {"zarr_format": 2},
    }
    for name, settings in kinds.items():
        array = zarr.create_array(
            root / name, shape=(7, 4), chunks=(2, 2), dtype="int16", **settings
        )
        array[...] = 1
    (root / "stray").mkdir()
    return root


def test_a_good_database(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_main([str(database)]) == 0
    assert capsys.readouterr().out == "4 volumes, 32 chunks: 0 damaged, 0 missing\n"


def test_volumes_that_are_lost_are_problems(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (database / "linked").symlink_to("/mnt/unmounted/linked")
    assert verify_main([str(database)]) == 1
    said = capsys.readouterr()
    assert "damaged: linked: a link to /mnt/unmounted/linked, where nothing is\n" in said.out
    assert "4 volumes, 32 chunks: 1 damaged, 0 missing\n" in said.out
    for path in database.iterdir():
        if not path.is_symlink():
            shutil.rmtree(path)
    assert verify_main([str(database)]) == 1
    assert "0 volumes, 0 chunks: 1 damaged" in capsys.readouterr().out


def test_what_is_damaged_is_named(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (database / "direct" / "c" / "3" / "1").write_bytes(b"xx")
    (database / "big" / "c" / "1" / "0").write_bytes(b"xx")
    shard = database / "shards" / "c" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    (database / "old" / ".zarray").write_text("{nope")
    report = verify_database(database, threads=2)
    assert (report.volumes, report.chunks) == (3, 24)
    assert report.count("damaged") == 1 + 1 + 4 + 1 and report.count("missing") == 0
    text = {problem.volume: problem.text for problem in report.problems}
    assert "c/3/1" in text["direct"]
    assert "(2, 0)" in text["big"]
    assert "shard c/0/0" in text["shards"] and "checksum" in text["shards"]
    assert "unreadable" in text["old"]
    assert verify_main([str(database)]) == 1
    assert "damaged: direct: chunk c/3/1" in capsys.readouterr().out


def test_what_is_missing_is_named(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (database / "direct" / "c" / "3" / "1").unlink()
    (database / "big" / "c" / "1" / "0").unlink()
    (database / "shards" / "c" / "1" / "0").unlink()
    report = verify_database(database)
    assert set(report.problems) >= {
        Problem("direct", "missing", "chunk c/3/1"),
        Problem("big", "missing", "chunk c/1/0"),
    }
    assert report.count("missing") == 6 and report.count("damaged") == 0
    assert verify_main([str(database)]) == 1
    assert "missing: direct: chunk c/3/1\n" in capsys.readouterr().out
    assert verify_main([str(database), "--allow-missing"]) == 0
    assert capsys.readouterr().out == "4 volumes, 32 chunks: 0 damaged, 6 missing\n"


@pytest.mark.parametrize("member", ["shape", "chunk_shape"])
def test_sizes_beyond_all_memory_are_damage(database: Path, member: str) -> None:
    path = database / "direct" / "zarr.json"
    metadata = json.loads(path.read_text())
    place = metadata if member == "shape" else metadata["chunk_grid"]["configuration"]
    place[member] = [2**58, 2]
    path.write_text(json.dumps(metadata))
    report = verify_database(database)
    assert [problem.volume for problem in report.problems] == ["direct"]
    assert "memory" in report.problems[0].text


def test_progress_counts_volumes(database: Path) -> None:
    told: list[int] = []
    verify_database(database, progress=told.append)
    assert told == [4] * 4


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_main([str(tmp_path / "nope")]) == 2
    assert "nope does not exist" in capsys.readouterr().err
    assert verify_main([str(tmp_path)]) == 2
    for wrong in ([], ["a", "--threads", "0"], ["a", "--fast"]):
        with pytest.raises(SystemExit, match="64"):
            verify_main(wrong)


def test_as_a_command(database: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sharedvector.verify", str(database)],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 volumes, 32 chunks")
    assert "stray" in done.stderr
