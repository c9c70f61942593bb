"""The ways of doing the benchmark's job: its workers, what is left out, what is refused."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from sharedvector.cli.bench import jobs, share
from sharedvector.cli.bench.jobs import METHODS, Job, Workers


@pytest.fixture(scope="module", autouse=True)
def no_tracker_is_left() -> Iterator[None]:
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, "fork") as two:
        yield two


def note_pid(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()


def die() -> None:
    os._exit(3)


def fail() -> None:
    raise MemoryError("no memory for a copy")


def test_each_runs_in_every_worker(workers: Workers, tmp_path: Path) -> None:
    for _ in range(3):
        workers.each(note_pid, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_each_passes_errors_on_and_the_workers_go_on(workers: Workers) -> None:
    with pytest.raises(MemoryError, match="no memory for a copy"):
        workers.each(fail)
    workers.each(time.sleep, 0)


class SlowToPickle:
    """Tells when it is being pickled, and when that is over."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        self.begun.set()
        time.sleep(0.3)
        self.ended.set()
        return SlowToPickle, ()


def test_an_interrupted_each_leaves_nothing_to_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller closes the block that is sent. A task that cannot be pickled after its pool has
    begun to shut down keeps the pool waiting for ever."""
    sent = SlowToPickle()

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            assert sent.begun.wait(60)
            raise KeyboardInterrupt

    with Workers(2, "fork") as two:
        monkeypatch.setattr(two, "_arrived", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            two.each(time.sleep, sent)
        assert sent.ended.is_set()


def test_a_worker_that_dies_is_an_error_at_once() -> None:
    with Workers(2, "fork") as two:
        began = time.monotonic()
        with pytest.raises(BrokenProcessPool):
            two.each(die)
        assert time.monotonic() - began < jobs.LIMIT / 2


def test_every_method_gives_the_sums(workers: Workers, tmp_path: Path) -> None:
    with Job(workers, 80_080, tmp_path) as job:
        assert sum(job.sums) == float(sum(number % 251 for number in range(10_010)))
        for method in METHODS:
            with method.given(job) as given:
                sums = method.run(job, given)
            assert sums == ([0.0, 0.0] if method.key == "empty" else job.sums), method.label
    assert not list(tmp_path.iterdir())


def test_too_large_for_copies_is_left_out_and_said(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs._core, "memory_free", lambda: (50_000_000, "the machine", None))
    monkeypatch.setattr(jobs, "_WHOLE_BYTES", 10_000_000)
    measured = share.measure(workers, 8_000_000, 1)
    outcomes = measured.outcomes
    for key in ("loaded", "loads"):
        assert not outcomes[key].seconds
        assert outcomes[key].note == "left out: 2 copies take 16 MB"
    assert outcomes["whole"].note == "one round of 1 of 2 tasks, times 2"
    assert len(outcomes["whole"].seconds) == 1


def test_no_room_is_told_before_the_array_is_shared(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = os.statvfs("/dev/shm")
    full = os.statvfs_result((*state[:4], 1, *state[5:]))
    job = Job(workers, 500_000, tmp_path)
    with tempfile.TemporaryDirectory(prefix=f"svtest-{os.getpid()}-", dir="/dev/shm") as apart:
        monkeypatch.setenv("SHAREDVECTOR_SHM_DIR", apart)
        with monkeypatch.context() as patched:
            patched.setattr(os, "statvfs", lambda path: full)
            with pytest.raises(OSError, match=r"needs 1 MB in /dev/shm.*, 0 MB are free: take a"):
                job.__enter__()
        assert not os.listdir(apart)
    assert not list(tmp_path.iterdir())
