"""The owner's names at the end and at taking over: only its own files are touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pool_support import LIMIT, Constant, running, spec, unique

from sharedvector import (
    PoolBusyError,
    PoolHandle,
    PoolPaths,
    ProducerService,
    SharedVector,
    coordination,
    ensure_pool,
)
from sharedvector.coordination import probe_ready


@pytest.fixture
def paths(tmp_path: Path) -> PoolPaths:
    return PoolPaths.for_name(unique("own"), tmp_path)


def spawned(paths: PoolPaths) -> PoolHandle:
    return ensure_pool(
        paths.name, 4, producer=spec(Constant()), ready_timeout=LIMIT, lock_dir=paths.lock_dir
    )


def test_an_old_owner_leaves_its_successors_files_alone(paths: PoolPaths) -> None:
    code = """
        import sys
        from pool_support import Constant, spec
        from sharedvector import ensure_pool
        handle = ensure_pool(sys.argv[1], 4, producer=spec(Constant()), ready_timeout=60,
                             lock_dir=sys.argv[2])
        print("ready", flush=True)
        input()
        handle.close()
        print("closed", flush=True)
    """
    with running(code, paths.name, str(paths.lock_dir), stdin=subprocess.PIPE) as old:
        assert old.stdin is not None and old.stdout is not None
        for path in (paths.segment, paths.lock, paths.marker):
            path.unlink()
        with spawned(paths) as new:
            assert new.is_owner
            old.stdin.write("\n")
            old.stdin.flush()
            assert old.stdout.readline() == "closed\n"
            assert coordination.read_marker(paths) == new.generation
            assert coordination.read_generation(paths) == new.generation
            assert paths.segment.exists() and new.is_owner
            assert probe_ready(paths, 4).ready
    assert list(paths.lock_dir.iterdir()) == []


def test_a_living_owner_without_its_lock_file_keeps_its_pool(paths: PoolPaths) -> None:
    with spawned(paths) as handle:
        paths.lock.unlink()
        with pytest.raises(PoolBusyError, match=rf"process {os.getpid()} \("):
            ProducerService(
                paths.name, Constant(), 4, 4, 128, num_producers=1, lock_dir=paths.lock_dir
            ).start()
        assert coordination.read_marker(paths) == handle.generation
    assert list(paths.lock_dir.iterdir()) == [] and not paths.segment.exists()


def test_a_damaged_segment_goes_with_its_owner(paths: PoolPaths) -> None:
    handle = spawned(paths)
    generation = handle.generation.encode()
    with paths.segment.open("r+b") as file:
        at = file.read(4096).index(generation)
        file.seek(at)
        file.write(b"\xff" * len(generation))
    handle.close()
    assert list(paths.lock_dir.iterdir()) == [] and not paths.segment.exists()


def test_what_cannot_be_removed_is_told(
    paths: PoolPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: SharedVector) -> None:
        raise PermissionError(1, "cannot unlink")

    handle = spawned(paths)
    with monkeypatch.context() as patch:
        patch.setattr(SharedVector, "remove_own", refuse)
        with pytest.raises(PermissionError, match="cannot unlink"):
            handle.close()
    assert "could not be taken down whole" in caplog.text and "cannot unlink" in caplog.text
    paths.segment.unlink()
    assert list(paths.lock_dir.iterdir()) == []
