"""Calls that wait for another process let the program's other threads go on meanwhile."""

from __future__ import annotations

import fcntl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core_support import in_child

from sharedvector import _core


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def sweep(directory: Path) -> None:
    _core.sweep(directory=directory, lock_dir=directory)


def remove_exact(directory: Path) -> None:
    (item,) = _core.list_segments(directory=directory)
    _core.remove_exact(item["name"], item["inode"], item["generation"], directory=directory)


@pytest.mark.parametrize("call", [sweep, remove_exact])
def test_who_waits_for_a_creator_keeps_no_thread_from_running(
    directory: Path, call: Callable[[Path], None]
) -> None:
    """The creator is this thread, which gives way within the second that the other one is patient:
    it cannot while that one has the interpreter's lock. Five times, as a machine may stall."""
    failures: list[Exception] = []

    def wait(begun: threading.Event) -> None:
        begun.set()
        try:
            call(directory)
        except Exception as error:
            failures.append(error)

    for attempt in range(5):
        in_child(lambda: _core.Segment("left", slot_count=1, owned=True, directory=directory))
        lock = directory / ".left.create"
        begun = threading.Event()
        thread = threading.Thread(target=wait, args=(begun,))
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            thread.start()
            begun.wait()
            lock.unlink()
        thread.join()
        if len(failures) == attempt:
            assert not list(directory.iterdir())
            return
        sweep(directory)
    raise failures[0]
