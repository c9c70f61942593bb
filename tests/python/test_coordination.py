"""Names, the owner lock, the ready marker, and what they say about a pool."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pool_support import HERE, LIMIT, Constant, run, running, unique, wait_for

from sharedvector import (
    OwnerLock,
    PoolPaths,
    PoolSpawnError,
    ProducerService,
    SharedVector,
    coordination,
    ensure_pool,
)
from sharedvector.coordination import probe_ready, wait_until_ready


@pytest.fixture
def paths(tmp_path: Path) -> PoolPaths:
    return PoolPaths.for_name(unique("co"), tmp_path)


@pytest.fixture
def segment(paths: PoolPaths) -> Iterator[SharedVector]:
    """A segment of four slots that nobody owns."""
    vector = SharedVector(paths.name, chunk_size=4096, slot_count=4)
    yield vector
    paths.segment.unlink()


def owned_segment(paths: PoolPaths, lock: OwnerLock) -> SharedVector:
    return SharedVector(
        paths.name,
        chunk_size=4096,
        slot_count=4,
        replace=True,
        owned=True,
        generation=lock.generation,
    )


def fill(vector: SharedVector, count: int) -> None:
    for _ in range(count):
        vector.append(np.zeros(4, np.float32))


# ---- names -------------------------------------------------------------------------------------


def test_paths_of_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = PoolPaths.for_name("run42", tmp_path)
    assert paths.lock == tmp_path / "run42.lock"
    assert paths.marker == tmp_path / "run42.ready"
    assert paths.segment == Path(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm")) / "run42"
    assert paths == PoolPaths("run42", tmp_path)
    assert PoolPaths.for_name("run42", "locks").lock_dir == Path.cwd() / "locks"
    monkeypatch.delenv("SHAREDVECTOR_LOCK_DIR", raising=False)
    assert PoolPaths.for_name("run42").lock_dir == coordination.DEFAULT_LOCK_DIR
    monkeypatch.setenv(coordination.LOCK_DIR_ENV, str(tmp_path))
    assert PoolPaths.for_name("run42") == paths
    monkeypatch.setenv("SHAREDVECTOR_SHM_DIR", "/mnt/huge")
    assert paths.segment == Path("/mnt/huge/run42")


def test_a_relative_directory_is_that_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for paths in (PoolPaths("run42", Path("locks")), PoolPaths.for_name("run42", "locks")):
        monkeypatch.chdir("/")
        assert paths.lock_dir == tmp_path / "locks"
        assert pickle.loads(pickle.dumps(paths)) == paths
        monkeypatch.chdir(tmp_path)


def test_a_relative_directory_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHAREDVECTOR_LOCK_DIR", "locks")
    words = r"SHAREDVECTOR_LOCK_DIR is 'locks', another place for each working directory; give an"
    with pytest.raises(ValueError, match=words):
        PoolPaths.for_name("run42")
    with pytest.raises(ValueError, match=words):
        ensure_pool("run42", 2, mode="attach", ready_timeout=30)
    with pytest.raises(ValueError, match=words):
        ProducerService("run42", Constant(), 8, 4, 4096)
    assert PoolPaths.for_name("run42", tmp_path).lock_dir == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_lock_in_a_relative_directory_is_released_after_chdir(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = OwnerLock.try_acquire(PoolPaths("run42", Path("locks")), grace=0)
    assert lock is not None
    monkeypatch.chdir("/")
    lock.write_ready()
    assert (tmp_path / "locks" / "run42.ready").exists()
    lock.clear_ready()
    lock.release()
    assert list((tmp_path / "locks").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "/a",
        "a\0b",
        "x.lock",
        "x.ready",
        "a" * 300,
        "数" * 100,
        "\udc80",
    ],
)
def test_bad_names_are_refused_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        coordination.validate_name(name)
    with pytest.raises(ValueError):
        PoolPaths.for_name(name)
    with pytest.raises(ValueError):
        PoolPaths(name, tmp_path)
    with pytest.raises(ValueError):
        ensure_pool(name, 4, mode="attach", ready_timeout=30)
    with pytest.raises(ValueError):
        SharedVector(name, create=False)


@pytest.mark.parametrize("name", ["a", "run:42", "run 42", "run.v2.1", "Lauf-ü-数据", "a" * 200])
def test_good_names_are_kept_as_they_are(name: str) -> None:
    assert coordination.validate_name(name) == name


# ---- the owner lock ----------------------------------------------------------------------------


def test_one_owner_at_a_time(paths: PoolPaths) -> None:
    assert not coordination.owner_alive(paths)
    assert coordination.read_generation(paths) is None
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None and lock.held
    assert json.loads(paths.lock.read_text()) == {
        "generation": lock.generation,
        "pid": os.getpid(),
    }
    assert coordination.owner_alive(paths)
    assert coordination.read_generation(paths) == lock.generation
    began = time.monotonic()
    assert OwnerLock.try_acquire(paths, grace=0.2, poll=0.01) is None
    assert 0.2 <= time.monotonic() - began < 30
    lock.release()
    lock.release()
    assert not lock.held
    assert not paths.lock.exists()
    again = OwnerLock.try_acquire(paths, generation="mine")
    assert again is not None and again.generation == "mine" != lock.generation
    again.release()


MOUNTS = {
    "tmpfs": "mount -t tmpfs none locks",
    "overlay": "mount -t tmpfs none base && mkdir base/low base/up base/work && mount -t overlay "
    "none -o lowerdir=base/low,upperdir=base/up,workdir=base/work locks",
    "ext4": "truncate -s 8M image && mkfs.ext4 -q image && mount -o loop image locks && "
    "rmdir locks/lost+found",
}


@pytest.mark.parametrize("system", MOUNTS)
def test_one_owner_on_every_file_system(system: str, tmp_path: Path) -> None:
    """On overlayfs, a container's root, a map does not keep the lock of its file."""
    for directory in ("locks", "base"):
        (tmp_path / directory).mkdir()
    private = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    mount = f"cd '{tmp_path}' && {MOUNTS[system]}"
    try:
        refused = subprocess.run([*private, "sh", "-c", mount], check=False).returncode
    except FileNotFoundError:
        refused = 1
    if refused:
        pytest.skip(f"needs unshare and the right to mount {system}")
    (tmp_path / "image").unlink(missing_ok=True)
    rounds = [sys.executable, str(HERE / "owner_rounds.py"), "locks", "5"]
    done = subprocess.run(
        [*private, "sh", "-c", f'{mount} && exec "$@"', "sh", *rounds],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "owners [1] ends ['0']",
        "before its death False after it True",
        "left []",
    ], done.stderr


def test_the_grace_is_used(paths: PoolPaths) -> None:
    code = """
        import sys, time
        from sharedvector import OwnerLock, PoolPaths
        lock = OwnerLock.try_acquire(PoolPaths.for_name(sys.argv[1], sys.argv[2]))
        print("held")
        time.sleep(0.5)
        lock.release()
        time.sleep(600)
    """
    with running(code, paths.name, str(paths.lock_dir)):
        lock = OwnerLock.try_acquire(paths, grace=60)
    assert lock is not None
    lock.release()


def test_the_directory_of_the_lock_is_made(tmp_path: Path) -> None:
    paths = PoolPaths.for_name(unique("dir"), tmp_path / "new" / "one")
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None
    lock.release()


def test_a_locked_descriptor_is_adopted(paths: PoolPaths) -> None:
    fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    lock = OwnerLock(paths, fd, "by-hand")
    assert lock.held and lock.generation == "by-hand"
    with pytest.raises(OSError):
        os.fstat(fd)
    assert OwnerLock.try_acquire(paths, grace=0) is None
    lock.release()
    assert not paths.lock.exists()


def test_a_fork_neither_holds_nor_releases(paths: PoolPaths) -> None:
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None
    pid = os.fork()
    if pid == 0:
        held = lock.held
        lock.release()
        os._exit(1 if held else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert lock.held and coordination.owner_alive(paths)
    lock.release()


def test_the_lock_goes_with_its_owner_and_not_with_the_owners_forks(paths: PoolPaths) -> None:
    code = """
        import os, sys, time
        from sharedvector import OwnerLock, PoolPaths
        lock = OwnerLock.try_acquire(PoolPaths.for_name(sys.argv[1], sys.argv[2]))
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print(child)
        time.sleep(600)
    """
    with running(code, paths.name, str(paths.lock_dir)) as owner:
        assert coordination.owner_alive(paths)
        owner.kill()
        wait_for(lambda: not coordination.owner_alive(paths))
        lock = OwnerLock.try_acquire(paths, grace=0)
        assert lock is not None
        os.kill(int(owner.first_line), signal.SIGKILL)  # type: ignore[attr-defined]
    lock.release()


# ---- the ready marker --------------------------------------------------------------------------


def test_marker_by_hand(paths: PoolPaths) -> None:
    assert coordination.read_marker(paths) is None
    coordination.clear_marker(paths)
    coordination.write_marker(paths, "g1")
    assert coordination.read_marker(paths) == "g1"
    coordination.write_marker(paths, "g2")
    assert coordination.read_marker(paths) == "g2"
    assert [path.name for path in paths.lock_dir.iterdir()] == [paths.marker.name]
    coordination.clear_marker(paths)
    assert coordination.read_marker(paths) is None
    paths.marker.write_bytes(b"\xff junk")
    assert coordination.read_marker(paths) is None


def test_marker_of_the_owner(paths: PoolPaths) -> None:
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None
    lock.write_ready()
    assert coordination.read_marker(paths) == lock.generation
    lock.clear_ready()
    lock.clear_ready()
    assert coordination.read_marker(paths) is None
    lock.release()


# ---- ready or not ------------------------------------------------------------------------------


def test_nothing_there(paths: PoolPaths) -> None:
    state = probe_ready(paths, 4)
    assert not state.ready and state.generation is None
    assert "marker" in state.reason and "nobody owns" in state.reason
    assert "no segment" in probe_ready(paths, 4, strict=False).reason
    coordination.write_marker(paths, "g")
    state = probe_ready(paths, 4)
    assert (state.ready, state.generation) == (False, "g")
    assert "no segment" in state.reason


def test_a_segment_made_by_hand(paths: PoolPaths, segment: SharedVector) -> None:
    fill(segment, 2)
    assert probe_ready(paths, 2, strict=False).ready
    assert "2/4 slots filled" in probe_ready(paths, 4, strict=False).reason
    assert not probe_ready(paths, 2).ready
    coordination.write_marker(paths, "g")
    assert probe_ready(paths, 2) == (True, "ready", "g")
    assert "2/4 slots filled" in probe_ready(paths, 4).reason
    fill(segment, 2)
    assert probe_ready(paths, 4).ready
    assert probe_ready(paths, 3).ready
    lock = OwnerLock.try_acquire(paths, generation="another")
    assert lock is not None
    assert "earlier owner" in probe_ready(paths, 4).reason
    lock.release()


def test_a_file_that_is_no_segment(paths: PoolPaths) -> None:
    paths.segment.write_bytes(os.urandom(4096))
    paths.segment.chmod(0o600)
    coordination.write_marker(paths, "g")
    state = probe_ready(paths, 4)
    paths.segment.unlink()
    assert not state.ready and "cannot be used" in state.reason


def test_an_owned_segment_needs_its_living_owner(paths: PoolPaths) -> None:
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None
    vector = owned_segment(paths, lock)
    fill(vector, 4)
    assert f"process {os.getpid()}" in probe_ready(paths, 4).reason
    coordination.write_marker(paths, "other")
    assert "earlier owner" in probe_ready(paths, 4).reason
    lock.write_ready()
    assert probe_ready(paths, 4) == (True, "ready", lock.generation)
    lock.release()
    state = probe_ready(paths, 4)
    assert not state.ready and "dead" in state.reason
    assert probe_ready(paths, 4, strict=False).ready
    paths.segment.unlink()


def test_a_dead_owners_pool_is_not_ready_while_its_supervisor_cleans_up(paths: PoolPaths) -> None:
    code = """
        import sys, time
        import numpy as np
        from sharedvector import OwnerLock, PoolPaths, SharedVector
        lock = OwnerLock.try_acquire(PoolPaths.for_name(sys.argv[1], sys.argv[2]), generation="g")
        vector = SharedVector(sys.argv[1], 4096, slot_count=1, owned=True, generation="g")
        vector.append(np.zeros(4, np.float32))
        lock.write_ready()
        print("ready")
        time.sleep(600)
    """
    with running(code, paths.name, str(paths.lock_dir)) as owner:
        assert probe_ready(paths, 1).ready
        owner.kill()
        owner.wait(60)
    lock = OwnerLock.try_acquire(paths, generation="g")  # as the supervisor does
    assert lock is not None
    state = probe_ready(paths, 1)
    assert not state.ready and "dead" in state.reason
    lock.clear_ready()
    lock.release()
    paths.segment.unlink()


def test_a_segment_of_another_generation_is_not_ready(paths: PoolPaths) -> None:
    lock = OwnerLock.try_acquire(paths, generation="old")
    assert lock is not None
    vector = owned_segment(paths, lock)
    fill(vector, 4)
    lock.release()
    fresh = OwnerLock.try_acquire(paths, generation="new")
    assert fresh is not None
    fresh.write_ready()
    state = probe_ready(paths, 4)
    fresh.clear_ready()
    fresh.release()
    paths.segment.unlink()
    assert not state.ready and "another generation" in state.reason


def test_waiting_ends_with_the_last_reason(paths: PoolPaths) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no ready marker"):
        wait_until_ready(paths, 4, time.monotonic() + 0.2, 0.01)
    assert time.monotonic() - began < 30
    with pytest.raises(TimeoutError):
        wait_until_ready(paths, 4, time.monotonic() - 1)
    with pytest.raises(PoolSpawnError, match=r"the disk is gone.*no ready marker"):
        wait_until_ready(paths, 4, time.monotonic() + 60, abort=lambda: "the disk is gone")


def test_waiting_ends_when_the_pool_is_ready(paths: PoolPaths, segment: SharedVector) -> None:
    fill(segment, 4)
    answers = iter([None, None])

    def abort() -> str | None:
        coordination.write_marker(paths, "g")
        return next(answers)

    assert wait_until_ready(paths, 4, time.monotonic() + 30, 0.01, abort=abort).generation == "g"


def test_a_ready_pool_with_fewer_slots_is_refused_at_once(paths: PoolPaths) -> None:
    lock = OwnerLock.try_acquire(paths)
    assert lock is not None
    vector = owned_segment(paths, lock)
    fill(vector, 4)
    lock.write_ready()
    try:
        with pytest.raises(ValueError, match=r"4 slots.*8"):
            wait_until_ready(paths, 8, time.monotonic() + 30)
    finally:
        lock.clear_ready()
        lock.release()
        paths.segment.unlink()


def test_importing_needs_numpy_alone() -> None:
    status, out, err = run(
        """
        import sys
        import sharedvector.coordination, sharedvector.pool, sharedvector.service
        from sharedvector.service import ProducerService
        print([m for m in ("torch", "zarr", "tqdm", "cloudpickle") if m in sys.modules])
        """
    )
    assert (status, out) == (0, "[]\n"), err


@pytest.mark.parametrize("umask", [0o277, 0o777, 0o022])
def test_a_lock_directory_can_be_used_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    made = PoolPaths("p", tmp_path / "outer" / "inner")
    before = os.umask(umask)
    try:
        lock = OwnerLock.try_acquire(made)
    finally:
        os.umask(before)
    assert lock is not None
    lock.release()
    for directory in (made.lock_dir, made.lock_dir.parent):
        assert directory.stat().st_mode & 0o700 == 0o700
