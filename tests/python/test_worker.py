"""Worker processes: with one worker or several threads, killed, failed, stopped, limited."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from pool_support import (
    Constant,
    Holder,
    Into,
    Limits,
    OneHangs,
    OneWalksOut,
    Threaded,
    Unloadable,
    alive,
    claims,
    counter,
    files,
    refreshes,
    spec,
    supervisors,
    unique,
    wait_for,
    workers,
)

from sharedvector import (
    PoolHandle,
    PoolSpawnError,
    ProducerSpec,
    SharedVector,
    ZarrLoader,
    _core,
    ensure_pool,
)


def read_all(vector: SharedVector) -> np.ndarray[Any, Any]:
    """The first numbers of every chunk, which count as read."""
    return np.array([chunk.flat[:3] for chunk in vector])


# ---- chunks in place ---------------------------------------------------------------------------


def test_chunks_are_decoded_into_their_slots_by_processes(handles: list[PoolHandle]) -> None:
    producer = spec(Into(40), num_producers=4)
    handles.append(ensure_pool(unique("into"), 8, producer=producer, ready_timeout=50))
    vector = handles[0].attach()
    assert vector.spare_buffers == 1  # of 16 that they could use
    for _ in range(10):
        read_all(vector)
        assert refreshes(vector)
    for slot in range(8):
        array, meta = vector.get_with_meta(slot)
        view: Any = array.base
        assert (array == view.source_index + 1).all() and meta.shape == (2,)
    del array, view
    assert counter(vector, _core.COUNTER_ERRORS) == 0


def test_a_killed_worker_gives_its_buffers_back(handles: list[PoolHandle], tmp_path: Path) -> None:
    producer = spec(Holder(str(tmp_path / "held")), spare_buffers=2)
    handles.append(ensure_pool(unique("held"), 8, producer=producer, ready_timeout=50))
    vector = handles[0].attach()
    wait_for(lambda: claims(vector) == 2)  # which are all that are spare
    (pid,) = workers()
    time.sleep(0.1)
    assert claims(vector) == 2
    os.kill(pid, signal.SIGKILL)
    with vector.reserve((4, 8), timeout=60) as first, vector.reserve((4, 8), timeout=60) as second:
        first.array[...] = second.array[...] = 50
        first.publish(0)
    assert claims(vector, live=False) == 0
    wait_for(lambda: workers() not in ([], [pid]))
    assert counter(vector, _core.COUNTER_RESTARTS) == 1


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_volumes_that_are_cut_short_and_written_again(
    handles: list[PoolHandle], tmp_path: Path, kind: Literal["process", "thread"]
) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    volume = np.random.default_rng(0).integers(-(2**15), 2**15, (8, 512, 512), np.int16)
    for number in range(3):
        place = tmp_path / "volumes" / str(number)
        array = zarr.create_array(place, shape=volume.shape, dtype="int16", chunks=(4, 512, 512))
        array[...] = volume
    assert array.nbytes_stored() > 4 * 2**20  # what is mapped is that large
    producer = ProducerSpec(
        loader=ZarrLoader(tmp_path / "volumes", 4, dtype="int16", seed=0),
        num_producers=2,
        producer_kind=kind,
        chunk_size=4 * 512 * 512 * 2,
        dtype="int16",
        sleep_seconds=0,
    )
    handles.append(ensure_pool(unique("cut"), 6, producer=producer, ready_timeout=50))
    vector = handles[0].attach()
    count = 2 if kind == "process" else 1
    before = wait_for(lambda: workers() if len(workers()) == count else [])
    paths = [path for path in (tmp_path / "volumes").rglob("c/*/0/0") if path.is_file()]
    assert len(paths) == 6
    whole = {path: path.read_bytes() for path in paths}
    began = time.monotonic()
    number = 0
    while (passed := time.monotonic() - began) < 5 or not counter(vector, _core.COUNTER_ERRORS):
        assert passed < 120, "no worker has met a volume that was cut short"
        path = paths[number % len(paths)]
        size = len(whole[path]) * (number % 7) // 7
        os.truncate(path, size)
        time.sleep(0.002)
        with path.open("rb+") as file:
            file.seek(size)
            file.write(whole[path][size:])
        number += 1
        time.sleep(0.02)  # what fails too often is tried less and less
        for slot in range(6):
            chunk = vector.get(slot)
            assert any(
                np.array_equal(chunk[:, ::64, ::64], volume[part][:, ::64, ::64])
                for part in (slice(0, 4), slice(4, 8), slice(3, None, -1), slice(7, 3, -1))
            )
    del chunk  # with a view of it, the one spare buffer would soon be all that there is
    assert refreshes(vector)
    assert workers() == before
    assert counter(vector, _core.COUNTER_RESTARTS) == 0


# ---- threads -----------------------------------------------------------------------------------


def start_threads(loader: Any, **settings: Any) -> tuple[PoolHandle, SharedVector]:
    producer = spec(loader, num_producers=3, sleep_seconds=0.001, **settings)
    handle = ensure_pool(unique("threads"), 8, producer=producer, ready_timeout=50)
    return handle, handle.attach()


def all_three(vector: SharedVector, count: int = 3) -> set[tuple[float, ...]]:
    """Worker, process and thread of every chunk, once they are from all three workers.

    Args:
        vector: the pool.
        count: of different ones to wait for.
    """

    def look() -> set[tuple[float, ...]]:
        found = {tuple(float(number) for number in told) for told in read_all(vector)}
        return (
            found if {place[0] for place in found} == {0, 1, 2} and len(found) <= count else set()
        )

    found: set[tuple[float, ...]] = wait_for(look)
    return found


@pytest.mark.parametrize(("kind", "processes"), [("auto", 1), ("process", 3)])
def test_workers_are_threads_where_the_loader_or_the_caller_says_so(
    handles: list[PoolHandle], kind: Any, processes: int
) -> None:
    handle, vector = start_threads(Threaded(), producer_kind=kind)
    handles.append(handle)
    # Each loader knows the number of its worker, and is called by one thread alone.
    places = all_three(vector)
    assert len({process for _, process, _ in places}) == processes
    assert len({thread for _, _, thread in places}) == 3
    assert len(workers()) == processes


def test_any_loader_runs_in_threads_if_the_caller_wants(handles: list[PoolHandle]) -> None:
    handle, vector = start_threads(Into(40), producer_kind="thread")
    handles.append(handle)
    for _ in range(5):
        read_all(vector)
        assert refreshes(vector)
    assert len(workers()) == 1
    assert counter(vector, _core.COUNTER_ERRORS) == 0


def test_a_killed_process_starts_again_with_all_its_threads(handles: list[PoolHandle]) -> None:
    handle, vector = start_threads(Threaded())
    handles.append(handle)
    before = all_three(vector)
    (pid,) = workers()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not before & all_three(vector, 6))
    assert counter(vector, _core.COUNTER_RESTARTS) == 1


def test_a_thread_that_fails_is_told_and_all_start_again(
    handles: list[PoolHandle], capfd: pytest.CaptureFixture[str]
) -> None:
    handle, vector = start_threads(OneWalksOut())
    handles.append(handle)
    wait_for(lambda: [read_all(vector), counter(vector, _core.COUNTER_RESTARTS)][1])
    all_three(vector, 8)  # again, or still: of every one there is a chunk
    assert refreshes(vector)
    told = capfd.readouterr().err
    assert "producer worker 1: the loader ended it: KeyboardInterrupt: enough" in told
    assert "producer worker 1 ends its process, all 3 workers of which start again" in told
    assert "ended (exit status 1; the loader ended it: KeyboardInterrupt: enough)" in told


def test_a_loader_that_no_thread_can_make_ends_the_start() -> None:
    producer = spec(Unloadable(), num_producers=3, producer_kind="thread")
    with pytest.raises(PoolSpawnError, match="cannot be made in the producer process"):
        ensure_pool(unique("unmade"), 4, producer=producer, ready_timeout=50)
    assert supervisors() == []


def test_a_thread_that_hangs_does_not_hold_up_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    # Its threads get four fifths of that, so that there is a second left to end in.
    handle, vector = start_threads(OneHangs(), producer_join_timeout=6.0)
    try:
        wait_for(lambda: [read_all(vector), counter(vector, _core.COUNTER_LOADS) > 30][1])
        (pid,) = workers()
        time.sleep(0.5)
    finally:
        began = time.monotonic()
        handle.close()
    assert time.monotonic() - began < 60
    assert not alive(pid)
    assert "killed" not in capfd.readouterr().err  # it has ended by itself
    assert files(handle.name) == []


# ---- surroundings ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_libraries_in_workers_start_no_threads_unless_the_user_says_so(
    handles: list[PoolHandle], monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("BLOSC_NTHREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    producer = spec(Limits(), producer_kind=kind)
    handles.append(ensure_pool(unique("limits"), 2, producer=producer, ready_timeout=50))
    assert handles[0].attach().get(0).tolist() == [1, 3, 1]
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_first_worker_starts_alone(handles: list[PoolHandle]) -> None:
    producer = spec(Constant(), num_producers=4)
    handles.append(ensure_pool(unique("first"), 4, producer=producer, ready_timeout=50))
    wait_for(lambda: len(workers()) == 4)
    pids = workers()
    began = [
        int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) for pid in pids
    ]
    first, second, *_ = sorted(began)
    assert second - first >= 2  # hundredths of a second: no NumPy is imported in less
