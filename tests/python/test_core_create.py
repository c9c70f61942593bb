"""Making a segment: other threads and forks go on meanwhile, and a signal ends it."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from core_support import in_child

from sharedvector import SharedVector, _core


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def test_making_a_large_segment_keeps_no_thread_waiting(directory: Path) -> None:
    """Attaching, first pins, forks and closes go on while another thread reserves memory: where
    they wait for it there are two rounds, one that began before and one that ended afterwards."""
    small = SharedVector("small", slot_count=1, chunk_size=4096, directory=directory)
    small.append(np.arange(4.0, dtype=np.float32))
    small.close()
    made = threading.Event()

    def make() -> None:
        try:
            SharedVector("large", slot_count=62, chunk_size=16 << 20, directory=directory)
        finally:
            made.set()

    thread = threading.Thread(target=make)
    rounds = 0
    thread.start()
    while not made.is_set():
        vector = SharedVector("small", create=False, directory=directory)
        view = vector.get(0)
        in_child(lambda view=view: view.sum())
        del view
        vector.close()
        rounds += 1
    thread.join()
    assert os.stat(directory / "large").st_blocks * 512 >= 62 * (16 << 20)
    gc.collect()
    assert rounds >= 5


def _interrupt(seconds: float) -> None:
    """SIGINT to this process as soon as it waits in a call without the GIL, and again until it has
    an effect: one that comes before the call is the test's own."""
    for _ in range(int(seconds / 0.05)):
        time.sleep(0.05)
        if interrupted.is_set():
            return
        os.kill(os.getpid(), signal.SIGINT)


interrupted = threading.Event()


class Interrupted(Exception):
    """Raised by the handler of SIGINT."""


def _raise(signum: int, frame: object) -> None:
    interrupted.set()
    raise Interrupted


@pytest.mark.parametrize("flags", [{}, {"exclusive": True}, {"replace": True}])
def test_who_waits_for_a_creator_can_be_interrupted(
    directory: Path, flags: dict[str, bool]
) -> None:
    before = signal.signal(signal.SIGINT, _raise)
    interrupted.clear()
    try:
        with (directory / ".name.create").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            thread = threading.Thread(target=_interrupt, args=(20.0,))
            began = time.monotonic()
            with pytest.raises(Interrupted):
                thread.start()
                _core.Segment("name", slot_count=1, directory=directory, timeout=60.0, **flags)
            assert time.monotonic() - began < 30
            thread.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reservation_of_memory_can_be_interrupted(directory: Path) -> None:
    """Where it cannot, the segment is there when the handler's exception comes."""
    before = signal.signal(signal.SIGINT, _raise)
    interrupted.clear()
    thread = threading.Thread(target=_interrupt, args=(20.0,))
    try:
        with pytest.raises(Interrupted):
            thread.start()
            _core.Segment("large", slot_count=126, chunk_size=16 << 20, directory=directory)
        thread.join()
        assert not list(directory.iterdir())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_child_forked_beside_a_waiting_thread_closes_its_handle(directory: Path) -> None:
    """The call that the other thread is in is the parent's: it must not keep the child's maps."""
    vector = SharedVector("beside", slot_count=1, chunk_size=1 << 20, directory=directory)
    inode = str((directory / "beside").stat().st_ino)
    held = [vector.reserve((4,)) for _ in range(3)]
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        with pytest.raises(_core.InUseError):
            vector.reserve((4,), timeout=3.0)

    def close() -> None:
        held.clear()  # the parent's
        gc.collect()
        vector.close()
        maps = Path("/proc/self/maps").read_text().splitlines()
        assert inode not in [line.split()[4] for line in maps]

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    while thread.is_alive():  # most of the forks meet it waiting
        assert in_child(close) == 0
    thread.join()
    for reservation in held:
        reservation.cancel()
    vector.close()
