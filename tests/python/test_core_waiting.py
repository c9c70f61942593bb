"""Calls that wait for another process let the program's other threads go on meanwhile."""

from __future__ import annotations

import fcntl
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import in_child

from sharedvector import InUseError, SharedVector, _core
from sharedvector._core import Reservation


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


def test_replace_waits_for_a_buffer_when_the_view_that_refused_is_gone(directory: Path) -> None:
    """The view goes while replace() looks at it without the interpreter's lock, for some
    milliseconds; when the other thread comes too late for that, it is a refusal: once more."""
    vector = SharedVector(
        "gone", 64, slot_count=1, spare_buffers=1, dtype="uint8", directory=directory
    )
    array = np.ones(8, np.uint8)
    vector.append(array)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # the other thread runs as soon as replace() lets it, not before
    try:
        for _ in range(200):
            view = [vector.get(0)]
            reservation = vector.reserve(8)  # the only free buffer
            go = threading.Event()

            def let_go(
                view: list[Any] = view, go: threading.Event = go, taken: Reservation = reservation
            ) -> None:
                go.wait()
                view.clear()
                time.sleep(0.1)
                taken.cancel()

            thread = threading.Thread(target=let_go)
            thread.start()
            go.set()
            try:
                vector.replace(0, array, timeout=60)
                break
            except InUseError as error:
                assert "slot 0" in str(error)  # not: no free buffer
            finally:
                thread.join()
        else:
            raise AssertionError("the view was never gone in time")
    finally:
        sys.setswitchinterval(interval)
    vector.close()


def test_waits_end_when_it_is_so_or_when_the_time_is_over(directory: Path) -> None:
    with SharedVector("waits", 64, slot_count=3, dtype="uint8", directory=directory) as vector:
        array = np.ones(8, np.uint8)
        vector.append(array)
        vector.wait_filled(1)
        assert vector.wait_changed(0, 0) == 1
        with pytest.raises(TimeoutError, match="filled slots"):
            vector.wait_filled(2, timeout=0.05)
        with pytest.raises(TimeoutError, match="slot"):
            vector.wait_changed(0, 1, timeout=0.0)
        with pytest.raises(ValueError, match="3 slots"):
            vector.wait_filled(4)
        with pytest.raises(IndexError):
            vector.wait_changed(1, 0)
        thread = threading.Timer(0.2, lambda: (vector.append(array), vector.replace(0, array)))
        thread.start()
        vector.wait_filled(2, timeout=60)  # the interpreter's lock is free meanwhile
        assert vector.wait_changed(0, 1, timeout=60) == 2
        thread.join()


def test_a_wait_looks_at_signals(directory: Path) -> None:
    class ToldError(Exception):
        pass

    def tell(number: int, frame: object) -> None:
        raise ToldError

    before = signal.signal(signal.SIGALRM, tell)
    try:
        with SharedVector("told", 64, slot_count=3, dtype="uint8", directory=directory) as vector:
            vector.append(np.ones(8, np.uint8))
            for wait in (lambda: vector.wait_filled(2), lambda: vector.wait_changed(0, 1)):
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                with pytest.raises(ToldError):
                    wait()
    finally:
        signal.signal(signal.SIGALRM, before)
