"""Owner: the lock and the ready marker of a pool."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from core_support import fresh_name, held_child, in_child, kill

from sharedvector import _core


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def test_one_owner_at_a_time(name: str, tmp_path: Path) -> None:
    owner = _core.Owner(name, tmp_path)
    assert owner.held
    assert (tmp_path / f"{name}.lock").exists()
    assert _core.probe_owner(name, tmp_path) == (True, owner.generation, os.getpid())
    with pytest.raises(_core.PoolBusyError, match=str(os.getpid())):
        _core.Owner(name, str(tmp_path))
    generation = owner.generation
    owner.release()
    owner.release()
    assert not owner.held
    assert owner.generation == generation
    assert not (tmp_path / f"{name}.lock").exists()
    assert _core.probe_owner(name, tmp_path)[0] is False
    second = _core.Owner(name, tmp_path)
    assert second.generation != generation
    second.release()


def test_a_generation_can_be_given(name: str, tmp_path: Path) -> None:
    owner = _core.Owner(name, tmp_path, "mine-1")
    assert owner.generation == "mine-1"
    assert _core.probe_owner(name, lock_dir=tmp_path)[1] == "mine-1"
    owner.release()


def test_a_forgotten_owner_gives_the_lock_up(name: str, tmp_path: Path) -> None:
    _core.Owner(name, tmp_path)
    gc.collect()
    _core.Owner(name, tmp_path).release()


def test_the_ready_marker(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _core.read_ready(name, tmp_path)
    owner = _core.Owner(name, tmp_path)
    owner.write_ready()
    assert _core.read_ready(name, tmp_path) == owner.generation
    owner.clear_ready()
    owner.clear_ready()
    with pytest.raises(FileNotFoundError):
        _core.read_ready(name, lock_dir=tmp_path)
    owner.release()
    for call in (owner.write_ready, owner.clear_ready):
        with pytest.raises(ValueError, match="released"):
            call()


def test_a_locked_descriptor_can_be_adopted(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    owner = _core.Owner(name, tmp_path, "adopted", fd=fd)
    assert owner.held
    with pytest.raises(OSError):
        os.fstat(fd)
    assert _core.probe_owner(name, tmp_path)[0] is True
    owner.release()
    with pytest.raises(ValueError):
        _core.Owner(name, tmp_path, fd=-1)


def test_a_forked_child_is_no_owner(name: str, tmp_path: Path) -> None:
    owner = _core.Owner(name, tmp_path)

    def child() -> None:
        assert not owner.held
        with pytest.raises(RuntimeError):
            owner.write_ready()
        owner.release()

    assert in_child(child) == 0
    assert owner.held
    assert (tmp_path / f"{name}.lock").exists()
    owner.release()


def test_death_gives_the_lock_up_although_a_fork_lives_on(name: str, tmp_path: Path) -> None:
    wait, go = os.pipe()

    def own_and_fork() -> object:
        owner = _core.Owner(name, tmp_path)
        if os.fork() == 0:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        return owner

    with held_child(own_and_fork) as pid:
        assert _core.probe_owner(name, tmp_path)[0] is True
        kill(pid)
        successor = _core.Owner(name, tmp_path)
        assert successor.held
        successor.release()
    # End of file ends the grandchild.
    os.close(go)
    os.close(wait)


def test_an_unusable_directory_is_an_oserror(name: str) -> None:
    with pytest.raises(OSError):
        _core.Owner(name, "/nonexistent/dir")
