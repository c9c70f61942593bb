"""`ensure_pool`, its modes and refusals, and the handle that it gives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import pty
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import descriptors, in_child
from pool_support import (
    AllBad,
    Constant,
    Empty,
    Gated,
    Held,
    OneBad,
    alive,
    children,
    ended,
    files,
    own_words,
    refreshes,
    run,
    spec,
    start,
    supervisors,
    unique,
    wait_for,
)

from sharedvector import (
    OwnerLock,
    PoolGoneError,
    PoolHandle,
    PoolPaths,
    PoolSpawnError,
    PoolStalledError,
    ProducerSpec,
    SharedVector,
    ZarrLoader,
    ensure_pool,
    pool,
    remove_shared_memory,
)


@pytest.fixture
def owner() -> Iterator[PoolHandle]:
    """A pool of four slots that this process owns."""
    with ensure_pool(unique("own"), 4, producer=spec(), ready_timeout=50) as handle:
        yield handle


FOLLOWER = """
    import sys
    from pool_support import spec
    from sharedvector import ensure_pool
    handle = ensure_pool(sys.argv[1], int(sys.argv[2]), mode="attach", ready_timeout=30)
    print(handle.is_owner, len(handle.attach()), handle.generation)
    handle.close()
"""


# ---- the specification -------------------------------------------------------------------------


def test_the_specification_is_frozen_and_counts_its_sources() -> None:
    producer = ProducerSpec(Constant(5), 4096)
    assert producer.resolve_source_size() == 5
    assert ProducerSpec(Constant(5), 4096, source_size=3).resolve_source_size() == 3
    assert producer == ProducerSpec(producer.loader, 4096)
    with pytest.raises(AttributeError):
        producer.chunk_size = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        ProducerSpec(object(), 4096).resolve_source_size()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_producers": 0},
        {"chunk_size": 0},
        {"source_size": 0},
        {"sleep_seconds": -1},
        {"producer_join_timeout": -1},
        {"spare_buffers": 0},
        {"dtype": "no such dtype"},
        {"dtype": "O"},
    ],
)
def test_impossible_settings_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ensure_pool(unique("bad"), 4, producer=spec(**settings))


@pytest.mark.parametrize("mode", ["auto", "spawn"])
def test_a_mode_that_may_make_the_pool_needs_a_producer(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"needs producer=ProducerSpec"):
        ensure_pool(unique("none"), 4, mode=mode)


def test_an_open_pool_needs_no_producer_again(owner: PoolHandle) -> None:
    assert ensure_pool(owner.name, owner.slot_count) is owner


def test_a_file_that_is_no_segment_is_replaced_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = unique("foreign")
    path = PoolPaths.for_name(name).segment
    path.write_text("somebody's")
    with ensure_pool(name, 2, producer=spec(), ready_timeout=50):
        assert f"{path}, which is no segment of this version, is replaced by a pool" in caplog.text


def test_the_shortest_program(tmp_path: Path) -> None:
    """Nothing but a loader: dtype and chunk size are those of its volumes."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    for volume, depth in (("a", 3), ("b", 4)):
        zarr.create_array(tmp_path / volume, data=np.full((depth, 5, 6), depth, np.int16))
    producer = ProducerSpec(loader=ZarrLoader(tmp_path))
    with ensure_pool(unique("short"), slot_count=2, producer=producer, ready_timeout=50) as handle:
        vector = handle.attach()
        assert (vector.dtype, vector.chunk_size) == ("int16", 4 * 5 * 6 * 2)
        assert {view.shape[0] for view in vector} <= {3, 4}


def test_other_refusals_at_once() -> None:
    with pytest.raises(ValueError, match="mode should be"):
        ensure_pool(unique("mode"), 4, producer=spec(), mode="attack")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slot_count"):
        ensure_pool(unique("slots"), 0, producer=spec())


@pytest.mark.parametrize("slots", ["8", None, 2.5, True])
def test_slots_are_counted_in_every_mode(slots: Any) -> None:
    with pytest.raises(TypeError, match="slot_count should be an integer"):
        ensure_pool(unique("slots"), slots, mode="attach", ready_timeout=0)
    for count in (0, -1):
        with pytest.raises(ValueError, match="slot_count should be 1 or more"):
            ensure_pool(unique("slots"), count, mode="attach", ready_timeout=0)


@pytest.mark.parametrize("field", ["ready_timeout", "poll_interval"])
def test_times_that_never_come(field: str) -> None:
    for value, error in ((float("nan"), ValueError), ("1", TypeError)):
        settings: dict[str, Any] = {"mode": "attach", field: value}
        with pytest.raises(error, match=f"{field} should be"):
            ensure_pool(unique("never"), 1, **settings)


def test_a_time_that_is_over_is_one_look(owner: PoolHandle) -> None:
    with pytest.raises(TimeoutError, match="no ready marker"):
        ensure_pool(unique("over"), 1, mode="attach", ready_timeout=-3, poll_interval=-1)
    status, out, err = run(
        """
        import sys
        from sharedvector import ensure_pool
        with ensure_pool(sys.argv[1], 4, mode="attach", ready_timeout=-3) as handle:
            print(len(handle.attach()))
        """,
        owner.name,
    )
    assert (status, out) == (0, "4\n"), err


def test_a_producer_that_is_none_is_named() -> None:
    producer: Any = Constant()
    with pytest.raises(TypeError, match=r"producer should be a ProducerSpec, got <.*Constant"):
        ensure_pool(unique("spec"), 4, producer=producer)


def test_numpys_numbers_will_do_everywhere() -> None:
    producer = spec(
        chunk_size=np.int64(4096),
        source_size=np.uint8(8),
        num_producers=np.int16(2),
        spare_buffers=np.uint8(1),
        sleep_seconds=np.float32(0.01),
        producer_join_timeout=np.float64(5),
    )
    name = unique("numpy")
    slots, limit, pause = np.int64(4), np.float64(50), np.float32(0.1)
    with ensure_pool(
        name,
        slots,
        producer=producer,
        ready_timeout=limit,
        poll_interval=pause,  # type: ignore[arg-type]
    ) as handle:
        assert type(handle.slot_count) is int and refreshes(handle.attach())


def test_another_producer_in_the_same_process(owner: PoolHandle) -> None:
    assert ensure_pool(owner.name, 4, producer=spec()) is owner
    for settings in ({"dtype": "int16"}, {"chunk_size": 1 << 20}):
        with pytest.raises(ValueError, match=f"pool '{owner.name}' holds"):
            ensure_pool(owner.name, 4, producer=spec(**settings))
    assert not owner.closed


def test_a_pool_within_a_pool_is_closed_by_the_outer(owner: PoolHandle) -> None:
    with pool(owner.name, 4, producer=spec()) as inner:
        assert inner is owner
    assert not owner.closed and refreshes(owner.attach())
    name = unique("nested")
    with pool(name, 2, producer=spec(), ready_timeout=50) as outer:
        with pool(name, 2, mode="attach"):
            pass
        assert not outer.closed
    assert outer.closed and files(name) == []
    with pytest.raises(ValueError):
        ensure_pool("a/b", 4, mode="attach")


def test_of_blocks_that_share_a_pool_the_last_to_end_closes_it() -> None:
    name = unique("blocks")
    first = pool(name, 2, producer=spec(), ready_timeout=50)
    second = pool(name, 2, mode="attach", ready_timeout=50)
    handle = first.__enter__()
    assert second.__enter__() is handle
    with pool(name, 2, mode="attach") as third:
        assert third is handle
    first.__exit__(None, None, None)
    assert not handle.closed and handle.is_owner and refreshes(handle.attach())
    with pytest.raises(ValueError, match="slot_count=2"), pool(name, 3, mode="attach"):
        pass  # which is not counted
    second.__exit__(None, None, None)
    assert handle.closed and files(name) == []
    with pool(name, 2, producer=spec(), ready_timeout=50) as again:
        assert again is not handle and again.is_owner


def test_with_blocks_of_two_components_share_the_pool() -> None:
    name = unique("components")

    def call() -> PoolHandle:
        return ensure_pool(name, 2, producer=spec(), ready_timeout=50)

    with call() as first:
        with call() as second, pool(name, 2, mode="attach"):
            assert second is first
        assert not first.closed and refreshes(first.attach())
        call()  # within a block it is no user of its own
    assert first.closed and files(name) == []
    kept = call()
    with call():
        pass
    with pool(name, 2, mode="attach"):
        pass
    assert not kept.closed and refreshes(kept.attach())
    with kept:
        assert call() is kept
    assert kept.closed and files(name) == []
    with call() as closed, call():
        closed.close()
        assert files(name) == []


HANDLER = """
    import os, signal, sys
    from pool_support import Constant, spec
    from sharedvector import PoolBusyError, ensure_pool

    class Signalling(Constant):
        def __reduce__(self):
            if sys.argv[2] == "pickling":
                os.kill(os.getpid(), signal.SIGALRM)
            return Constant, (8, (4, 8), 0.2)

    def call():
        return ensure_pool(sys.argv[1], 4, producer=spec(Signalling()), ready_timeout=50)

    def handle(number, frame):
        try:
            found.append(call())
        except PoolBusyError as error:
            print(error)

    found = []
    signal.signal(signal.SIGALRM, handle)
    if sys.argv[2] == "waiting":
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    with call() as made:
        print(made.is_owner, all(one is made for one in found), len(found))
"""


def test_a_handler_that_interrupts_the_same_call_waits_with_it() -> None:
    status, out, err = run(HANDLER, unique("handler"), "waiting")
    assert (status, out) == (0, "True True 1\n"), err


def test_a_handler_that_interrupts_the_pickling_of_the_same_call_is_told_so() -> None:
    began = time.monotonic()
    status, out, err = run(HANDLER, unique("handler"), "pickling")
    assert status == 0 and "is being made by this very thread" in out, err
    assert out.endswith("True True 0\n")
    assert time.monotonic() - began < 45  # and not after the time-out


def test_a_forgotten_block_may_be_collected_anywhere() -> None:
    """Its end must not wait for what the thread that it interrupts is at."""
    code = """
        import gc, sys, threading
        from pool_support import spec
        from sharedvector import ensure_pool, pool
        from sharedvector._pool.api import _registry

        class Trainer:
            pass

        class Collecting(dict):
            def setdefault(self, key, value):
                gc.collect()
                return super().setdefault(key, value)

        name = sys.argv[1]
        trainer = Trainer()
        trainer.itself = trainer
        trainer.block = pool(name, 2, producer=spec(), ready_timeout=100)
        handle = trainer.block.__enter__()
        gc.disable()
        del trainer
        _registry._gates = Collecting(_registry._gates)
        with pool(name + "x", 2, producer=spec(), ready_timeout=100) as other:
            print(handle.closed, other.is_owner)
    """
    name = unique("forgotten")
    status, out, err = run(code, name)
    assert (status, out) == (0, "True True\n"), err
    assert files(name) == [] and files(name + "x") == []


def test_a_block_that_begins_while_the_last_one_ends_has_a_pool_of_its_own() -> None:
    name = unique("overlap")
    block = pool(name, 2, producer=spec(), ready_timeout=50)
    handle = block.__enter__()
    held = Held(handle._reign, "_clear_marker")
    last = threading.Thread(target=block.__exit__, args=(None, None, None))
    last.start()
    held.meet()
    found: list[tuple[bool, bool]] = []

    def begin() -> None:
        with pool(name, 2, producer=spec(), ready_timeout=50) as other:
            found.append((other is handle, other.is_owner and refreshes(other.attach())))

    other = threading.Thread(target=begin)
    other.start()
    other.join(0.3)  # it waits for its turn, or is on its way there
    held.let_go()
    for thread in (last, other):
        thread.join(60)
    assert found == [(False, True)]
    assert files(name) == []


def test_a_second_thread_that_closes_waits_until_the_pool_is_gone() -> None:
    name = unique("both")
    handle = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    (supervisor,) = supervisors()
    held = Held(handle._reign, "_end_supervisor")
    first = threading.Thread(target=handle.close)
    first.start()
    held.meet()
    seen: list[tuple[list[str], bool]] = []

    def close() -> None:
        handle.close()
        seen.append((files(name), alive(supervisor)))

    second = threading.Thread(target=close)
    second.start()
    assert in_child(handle.close) == 0  # which does not wait for a thread that it does not have
    second.join(0.5)
    assert second.is_alive() and not seen
    held.let_go()
    for thread in (first, second):
        thread.join(60)
    assert seen == [([], False)]


def test_a_second_thread_that_closes_does_not_wait_for_ever() -> None:
    handle = ensure_pool(unique("hung"), 2, producer=spec(), ready_timeout=50)
    assert handle._turn_limit == 20.0  # 5 of them for the producer
    handle._turn_limit = 0.1
    held = Held(handle._reign, "_end_supervisor")
    first = threading.Thread(target=handle.close)
    first.start()
    held.meet()
    handle.close()
    assert first.is_alive()
    held.let_go()
    first.join(60)
    assert files(handle.name) == []


# ---- the owner ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "spawn"])
def test_makes_a_pool_and_takes_it_down(mode: Any) -> None:
    name = unique("make")
    handle = ensure_pool(name, 4, producer=spec(), mode=mode, ready_timeout=50)
    assert handle.is_owner and not handle.closed
    assert (handle.name, handle.slot_count) == (name, 4)
    assert handle.lock_dir == PoolPaths.for_name(name).lock_dir
    assert repr(handle) == f"PoolHandle(name={name!r}, slot_count=4, owner)"
    assert files(name) == sorted([name, f"{name}.lock", f"{name}.ready"])
    vector = handle.attach()
    assert len(vector) == vector.capacity == 4
    assert vector.generation == handle.generation
    assert refreshes(vector)
    array = vector.get(1)
    value = float(array[0, 0])
    handle.close()
    handle.close()
    assert handle.closed and not handle.is_owner
    assert "closed" in repr(handle)
    assert files(name) == []
    assert supervisors() == []
    assert float(array[0, 0]) == value  # those attached keep their data
    assert vector.retired and "closed" in vector.retired_reason


def test_the_files_of_coordination_may_lie_elsewhere(tmp_path: Path) -> None:
    name = unique("dir")
    with ensure_pool(name, 2, producer=spec(), lock_dir=tmp_path, ready_timeout=50) as handle:
        assert handle.lock_dir == tmp_path
        assert files(name) == [name]
        assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.lock", f"{name}.ready"]
    assert files(name) == [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["_clear_marker", "_remove_segment", "_end_supervisor", "_ended"])
def test_an_interrupt_at_any_step_of_the_end_leaves_the_rest_done(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("steps")
    handle = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    reign: Any = handle._reign
    (supervisor,) = supervisors()

    def interrupt(*arguments: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(reign, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        handle.close()
    assert not handle.is_owner and f"{name}.lock" not in files(name)
    handle.close()
    assert files(name) == []
    assert not alive(supervisor)


def test_a_relative_directory_of_coordination_is_found_again_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    name = unique("reldir")
    with ensure_pool(name, 2, producer=spec(), lock_dir="locks", ready_timeout=50) as handle:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert handle.lock_dir == tmp_path / "locks"
        locks = sorted(path.name for path in handle.lock_dir.iterdir())
        assert locks == [f"{name}.lock", f"{name}.ready"]
        again = ensure_pool(name, 2, mode="attach", lock_dir=handle.lock_dir, ready_timeout=5)
        assert again is handle
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_pool_that_lives_with_another_lock_directory_is_not_replaced(
    owner: PoolHandle, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pytest.raises(PoolSpawnError, match=r"has a living owner.*another lock directory"):
        ensure_pool(owner.name, 4, producer=spec(), lock_dir=tmp_path, ready_timeout=50)
    assert time.monotonic() - began < 40
    assert list(tmp_path.iterdir()) == []
    assert not owner.attach().retired and refreshes(owner.attach())


def test_a_vector_in_use_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    name = unique("byhand")
    vector = SharedVector(name, chunk_size=64, slot_count=2)
    vector.append(np.full(4, 7, np.float32))
    with ensure_pool(name, 2, producer=spec(), ready_timeout=50) as handle:
        assert handle.attach().generation != vector.generation
    assert vector.get(0).tolist() == [7, 7, 7, 7]
    (text,) = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert "in use, is replaced by the pool" in text


def test_leftovers_are_replaced() -> None:
    name = unique("left")
    paths = PoolPaths.for_name(name)
    paths.segment.write_bytes(bytes(1 << 20))
    paths.marker.write_text("nonsense")
    with ensure_pool(name, 2, producer=spec(), ready_timeout=50) as handle:
        assert handle.is_owner and len(handle.attach()) == 2
    assert files(name) == []


def test_no_signal_handler_is_installed_and_any_thread_will_do() -> None:
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD]
    before = [signal.getsignal(number) for number in numbers]
    box: list[PoolHandle] = []
    name = unique("thread")
    thread = threading.Thread(
        target=lambda: box.append(ensure_pool(name, 2, producer=spec(), ready_timeout=50))
    )
    thread.start()
    thread.join(60)
    (handle,) = box
    assert [signal.getsignal(number) for number in numbers] == before
    time.sleep(1)  # a parent-death signal would have come with the end of the thread
    assert refreshes(handle.attach())
    handle.close()


def test_the_context_manager_closes_in_any_case() -> None:
    name = unique("with")
    with (
        pytest.raises(RuntimeError, match="mine"),
        pool(name, 2, producer=spec(), ready_timeout=50) as handle,
    ):
        assert handle.is_owner
        raise RuntimeError("mine")
    assert handle.closed and files(name) == []


def test_more_workers_than_slots_and_a_dtype_of_choice() -> None:
    producer = spec(Constant(dtype="int16"), dtype="int16", num_producers=6)
    with ensure_pool(unique("few"), 2, producer=producer, ready_timeout=50) as handle:
        vector = handle.attach()
        assert vector.dtype == "int16"
        assert vector.get(0).dtype == np.int16
        assert vector.spare_buffers == 1
        (supervisor,) = supervisors()
        assert len(wait_for(lambda: children(supervisor))) <= 2


def test_spare_buffers_of_choice() -> None:
    producer = spec(spare_buffers=3)
    with ensure_pool(unique("spare"), 2, producer=producer, ready_timeout=50) as handle:
        assert handle.attach().spare_buffers == 3


# ---- starts that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "settings", "words"),
    [
        (AllBad(), {}, r"source \d: OSError: volume-00\d is truncated"),
        (Empty(), {}, r"no chunk from any of 8 sources .*empty list.*0/4 slots"),
        (Constant(dtype="float64"), {}, r"source \d: .*float64.*float32"),
        (Constant(shape=(2000,)), {}, r"source \d: .*8000 bytes.*4096 bytes"),
        (AllBad(5000), {"num_producers": 2}, r"of 5000 sources .*truncated"),
    ],
)
def test_when_nothing_can_be_loaded_the_start_fails_in_seconds(
    loader: Any, settings: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("fails")
    began = time.monotonic()
    with pytest.raises(PoolSpawnError, match=words):
        ensure_pool(name, 4, producer=spec(loader, **settings), ready_timeout=600)
    assert time.monotonic() - began < 100
    assert files(name) == []
    assert supervisors() == []


def test_one_bad_source_costs_nothing() -> None:
    with ensure_pool(unique("one"), 4, producer=spec(OneBad()), ready_timeout=50) as handle:
        vector = handle.attach()
        assert refreshes(vector, count=12)


def test_a_slow_loader_ends_in_a_timeout_with_the_last_reason() -> None:
    name = unique("slow")
    with pytest.raises(TimeoutError, match=r"0/4 slots filled"):
        ensure_pool(name, 4, producer=spec(Constant(delay=30)), ready_timeout=1.5)
    assert files(name) == []
    with pytest.raises(TimeoutError, match="nobody owns the pool"):
        ensure_pool(name, 4, mode="attach", ready_timeout=0.2)


WAITS = """
    import sys
    from pool_support import spec
    from sharedvector import ensure_pool
    name, mode = sys.argv[1:]
    with ensure_pool(name, 2, mode=mode, producer=spec(), ready_timeout=100) as handle:
        print(handle.is_owner)
"""


def told_to_wait(name: str, mode: str, go: Callable[[], object]) -> str:
    """What a process says while it waits for a pool; it ends once ``go`` has been called."""
    process = start(WAITS, name, mode)
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if f"waiting for pool {name!r}" in line:
            break
    go()
    told += process.stderr.read()
    status, out, _ = ended(process)
    assert (status, out) == (0, f"{mode == 'auto'}\n"), told
    return told


def test_waiting_for_what_nobody_makes_is_told(handles: list[PoolHandle]) -> None:
    name = unique("waits")

    def go() -> None:
        handles.append(ensure_pool(name, 2, producer=spec(), ready_timeout=50))

    err = told_to_wait(name, "attach", go)
    (line,) = [text for text in err.splitlines() if "waiting for pool" in text]
    assert "WARNING" in line and "nobody owns the pool" in line


def test_waiting_for_another_owner_is_told() -> None:
    name = unique("other")
    lock = OwnerLock.try_acquire(PoolPaths.for_name(name))
    assert lock is not None
    try:
        err = told_to_wait(name, "auto", lock.release)
    finally:
        lock.release()
    (line,) = [text for text in err.splitlines() if "waiting for pool" in text]
    assert "INFO" in line and f"process {os.getpid()}, is filling it" in line


def test_no_room_is_an_error_that_says_so() -> None:
    name = unique("room")
    disk = os.statvfs(PoolPaths.for_name(name).segment.parent)
    too_much = disk.f_frsize * disk.f_blocks // 32  # 64 of them are twice what there is
    with pytest.raises(PoolSpawnError, match=r"bytes.*free.*--shm-size"):
        ensure_pool(name, 64, producer=spec(chunk_size=too_much), ready_timeout=30)
    assert files(name) == []


def test_an_interrupt_while_filling_leaves_nothing() -> None:
    name = unique("interrupt")
    code = """
        import sys
        from pool_support import Constant, spec
        from sharedvector import ensure_pool
        print("go")
        try:
            ensure_pool(sys.argv[1], 4, producer=spec(Constant(delay=60)), ready_timeout=50)
        except KeyboardInterrupt:
            print("interrupted")
    """
    process = start(code, name)
    wait_for(lambda: supervisors(process.pid))
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = ended(process)
    assert (status, out) == (0, "go\ninterrupted\n"), err
    assert "Traceback" not in err
    assert files(name) == []


# ---- twice in one process ----------------------------------------------------------------------


def test_a_second_call_returns_the_same_handle(owner: PoolHandle) -> None:
    name = owner.name
    assert ensure_pool(name, 4, producer=spec()) is owner
    assert ensure_pool(name, 4, mode="attach", ready_timeout=5) is owner
    with pytest.raises(ValueError, match=r"slot_count=4.*5"):
        ensure_pool(name, 5, producer=spec())
    with pytest.raises(ValueError, match=r"slot_count=4.*3"):
        ensure_pool(name, 3, mode="attach")


def test_threads_at_once_get_one_handle() -> None:
    name = unique("threads")
    box: list[PoolHandle] = []
    threads = [
        threading.Thread(
            target=lambda: box.append(ensure_pool(name, 2, producer=spec(), ready_timeout=50))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(box) == 4 and len({id(handle) for handle in box}) == 1
    box[0].close()


def test_a_thread_does_not_wait_longer_than_it_was_told(tmp_path: Path) -> None:
    name = unique("patience")
    gate = tmp_path / "gate"
    producer = spec(Gated(str(gate)))
    first = threading.Thread(
        target=lambda: ensure_pool(name, 2, producer=producer, ready_timeout=100)
    )
    first.start()
    wait_for(lambda: name in files(name))
    for limit in (0.1, 0, -1):
        with pytest.raises(TimeoutError, match="another thread"):
            ensure_pool(name, 2, producer=producer, ready_timeout=limit)
    gate.touch()
    first.join(100)
    ensure_pool(name, 2, mode="attach", ready_timeout=50).close()
    assert files(name) == []


def test_an_interrupted_import_of_the_caller_does_not_hold_up_the_end() -> None:
    """An exception in the middle of an import may leave the module locked for all other threads."""
    code = """
        import importlib, sys
        from pool_support import spec
        from sharedvector import ensure_pool
        from sharedvector._pool import api
        handle = ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50)
        importlib._bootstrap._get_module_lock("colorsys").acquire()
        api.collect_stats = lambda vector: importlib.import_module("colorsys")
        handle.close()
        print(handle.stats().__name__)
    """
    status, out, err = run(code, unique("import"))
    assert (status, out) == (0, "colorsys\n"), err


def test_after_close_a_new_pool_can_be_made() -> None:
    name = unique("again")
    first = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    first.close()
    with ensure_pool(name, 3, producer=spec(), ready_timeout=50) as second:
        assert second is not first
        assert second.is_owner and second.slot_count == 3
        assert second.generation != first.generation


# ---- followers ---------------------------------------------------------------------------------


def test_a_follower_ends_nothing(owner: PoolHandle) -> None:
    status, out, err = run(FOLLOWER, owner.name, "4")
    assert (status, out) == (0, f"False 4 {owner.generation}\n"), err
    assert refreshes(owner.attach())


def test_fewer_slots_than_there_are_will_do(owner: PoolHandle) -> None:
    status, out, err = run(FOLLOWER, owner.name, "2")
    assert (status, out) == (0, f"False 4 {owner.generation}\n"), err


REFUSED = """
    import sys, time
    from pool_support import Constant, spec
    from sharedvector import ensure_pool
    began = time.monotonic()
    for slots, settings in (
        (5, {}), (4, {"dtype": "int16"}), (4, {"chunk_size": 8192}), (4, {"chunk_size": 1024})
    ):
        try:
            ensure_pool(sys.argv[1], slots, producer=spec(**settings), ready_timeout=600).close()
            print("follows")
        except ValueError as error:
            print("ValueError", error)
    assert time.monotonic() - began < 50
"""


def test_what_a_ready_pool_cannot_hold_is_refused_at_once(owner: PoolHandle) -> None:
    status, out, err = run(REFUSED, owner.name)
    slots, dtype, size, fits = out.splitlines()
    assert status == 0, err
    assert "4 slots" in slots and "5" in slots
    assert "float32" in dtype and "int16" in dtype
    assert "4096" in size and "8192" in size
    assert fits == "follows"


def test_five_at_once_have_one_owner_and_one_generation() -> None:
    name = unique("five")
    code = """
        import sys
        from pool_support import Constant, spec
        from sharedvector import ensure_pool
        handle = ensure_pool(
            sys.argv[1], 4, producer=spec(Constant(delay=0.05)), ready_timeout=50
        )
        print(handle.is_owner, handle.attach().generation, flush=True)
        sys.stdin.readline()
        handle.close()
    """
    processes = [start(code, name, stdin=-1) for _ in range(5)]
    lines = [process.stdout.readline().split() for process in processes]  # type: ignore[union-attr]
    for process in processes:
        status, _, err = ended(process)
        assert status == 0, err
    assert sorted(owner for owner, _ in lines) == ["False"] * 4 + ["True"]
    assert len({generation for _, generation in lines}) == 1
    assert files(name) == []


def test_a_pool_made_by_hand_can_be_followed() -> None:
    name = unique("hand")
    vector = SharedVector(name, chunk_size=4096, slot_count=2)
    vector.append(np.zeros(3, np.float32))
    vector.append(np.ones(3, np.float32))
    from sharedvector.coordination import clear_marker, write_marker

    paths = PoolPaths.for_name(name)
    write_marker(paths, "by-hand")
    try:
        with ensure_pool(name, 2, mode="attach", ready_timeout=5) as handle:
            assert handle.attach().get(1).sum() == 3
    finally:
        clear_marker(paths)
        remove_shared_memory(name)


# ---- the handle --------------------------------------------------------------------------------


def test_a_pickled_handle_is_a_follower(owner: PoolHandle) -> None:
    copy = pickle.loads(pickle.dumps(owner))
    assert not copy.is_owner and not copy.closed
    assert (copy.name, copy.slot_count, copy.generation) == (
        owner.name,
        4,
        owner.generation,
    )
    assert len(copy.attach()) == 4
    assert copy.stats().slots == 4
    copy.close()
    assert refreshes(owner.attach())


def test_the_handle_in_a_fork_is_a_follower(owner: PoolHandle) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert not owner.is_owner
            again = ensure_pool(owner.name, 4, producer=spec(), ready_timeout=10)
            assert again is not owner and not again.is_owner
            assert len(again.attach()) == 4 == len(owner.attach())
            owner.close()
            again.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert owner.is_owner and not owner.closed
    assert refreshes(owner.attach())


def test_a_fork_never_becomes_the_owner_of_its_parents_pool() -> None:
    name = unique("heir")
    handle = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(go)
            os.read(ready, 1)
            began = time.monotonic()
            ensure_pool(name, 2, producer=spec(), ready_timeout=600)
        except PoolSpawnError as error:
            status = 0 if "forked child" in str(error) and time.monotonic() - began < 100 else 2
        finally:
            os._exit(status)
    os.close(ready)
    handle.close()
    os.close(go)
    assert os.waitpid(pid, 0)[1] == 0
    assert files(name) == []


def test_after_the_end_the_handle_says_so() -> None:
    name = unique("gone")
    handle = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    follower = pickle.loads(pickle.dumps(handle))
    stranger = pickle.loads(pickle.dumps(handle))
    assert follower.stats().slots == 2
    handle.close()
    for one in (handle, follower):
        assert one.stats().slots == 2  # the last ones
        with pytest.raises(PoolGoneError, match="gone") as caught:
            one.attach()
        assert isinstance(caught.value, PoolStalledError)
    with pytest.raises(FileNotFoundError):  # what 0.1.0 raised
        stranger.stats()
    again = ensure_pool(name, 2, producer=spec(), ready_timeout=50)
    with again, pytest.raises(PoolStalledError, match="made anew"):
        follower.attach()


def test_statistics_count_the_readers(owner: PoolHandle) -> None:
    vector = owner.attach()
    before = owner.stats()
    for _ in range(50):
        vector.get(0)
    wait_for(lambda: owner.stats().reads_at_replace_total > before.reads_at_replace_total)
    assert owner.stats().slots == 4


SLOWLY = """
    import sys
    from pool_support import Gated, spec
    from sharedvector import ensure_pool
    producer = spec(Gated(sys.argv[2], free=2))
    ensure_pool(sys.argv[1], 6, producer=producer, ready_timeout=100).close()
"""


def test_progress_is_shown_when_it_takes_long(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    process = start(SLOWLY, unique("progress"), str(gate))
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if "slots filled" in line:
            gate.touch()
    status, out, _ = ended(process)
    assert (status, out) == (0, ""), told
    lines = own_words(told, slow=True).splitlines()
    assert all("INFO" in line and "/6 slots filled" in line for line in lines)
    assert "6/6" not in lines[0] and "6/6" in lines[-1]


def test_progress_is_a_bar_on_a_terminal(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = start(SLOWLY, unique("bar"), str(gate), stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while block := os.read(ours, 4096):
            shown += block
            if b"/6" in shown:
                gate.touch()
    os.close(ours)
    status, out, _ = ended(process)
    assert (status, out) == (0, ""), shown
    assert b"6/6" in shown and b"slot" in shown and b"\r" in shown


def test_no_descriptor_and_no_thread_is_left_behind() -> None:
    def held() -> tuple[int, int]:
        return descriptors(), threading.active_count()

    name = unique("tidy")
    ensure_pool(name, 2, producer=spec(), ready_timeout=50).close()
    before = held()
    for _ in range(2):
        ensure_pool(name, 2, producer=spec(), ready_timeout=50).close()
    with pytest.raises(PoolSpawnError):
        ensure_pool(name, 2, producer=spec(Empty()), ready_timeout=50)
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1]


def test_orphans_are_named_in_one_line_with_what_removes_them(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    orphan = unique("orphan")
    code = """
        import os, signal, sys
        from sharedvector import SharedVector
        vector = SharedVector(sys.argv[1], chunk_size=1 << 20, slot_count=2, owned=True)
        print("made", flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended(start(code, orphan, stdin=-1))
    try:
        with ensure_pool(unique("next"), 2, producer=spec(), ready_timeout=50):
            pass
        (line,) = [r.getMessage() for r in caplog.records if "orphans" in r.getMessage()]
        assert "MiB" in line and orphan in line and line.endswith("python -m sharedvector sweep")
        caplog.clear()
        with ensure_pool(
            unique("apart"), 2, producer=spec(), ready_timeout=50, lock_dir=tmp_path / "a b"
        ):
            pass
        (line,) = [r.getMessage() for r in caplog.records if "orphans" in r.getMessage()]
        assert line.endswith(f"sharedvector sweep --lock-dir '{tmp_path}/a b'")
    finally:
        remove_shared_memory(orphan)


def test_what_is_run_beside_is_not_in_the_errors_of_a_program() -> None:
    code = """
        import os, signal, sys
        from pool_support import spec
        from sharedvector import SharedVector, ensure_pool
        if os.fork() == 0:
            kept = [SharedVector(n, chunk_size=9, slot_count=2, owned=True) for n in sys.argv[2:]]
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
        ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50).close()
    """
    mine, other = unique("mine"), f"svpool{os.getpid()}0-other"
    try:
        status, out, err = run(code, unique("beside"), mine, other)
        (line,) = err.splitlines()
        assert (status, out) == (0, "") and line.startswith("orphans of dead processes take ")
        assert mine in line
    finally:
        for name in (mine, other):
            remove_shared_memory(name)


def test_an_unguarded_program_runs_once() -> None:
    code = """
        import sys
        from pool_support import spec
        from sharedvector import ensure_pool
        print("once")
        handle = ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50)
        print(len(handle.attach()))
    """
    name = unique("unguarded")
    status, out, err = run(code, name)
    assert (status, out) == (0, "once\n2\n"), err
    assert files(name) == []  # by the end of the interpreter


# ---- files that others remove ------------------------------------------------------------------


def remove_files(name: str, *which: str) -> None:
    """As a clean-up at logout, or the epilogue of a job."""
    paths = PoolPaths.for_name(name)
    for path in which:
        getattr(paths, path).unlink()


@pytest.mark.parametrize(
    "which", [("segment",), ("segment", "lock"), ("segment", "lock", "marker")]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_pool_whose_file_was_removed_can_be_made_anew(
    which: tuple[str, ...], at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("removed")
    first = ensure_pool(name, 4, producer=spec(), ready_timeout=50)
    assert first.stats().name_lost == 0
    vector, (supervisor,) = first.attach(), supervisors()
    wait_for(lambda: supervisor in {row["pid"] for row in vector.rows()})
    remove_files(name, *which)
    assert first.stats().name_lost == 1
    if not at_once:
        wait_for(lambda: f"name of pool {name!r} is lost" in caplog.text)
        assert not first.is_owner and refreshes(vector)
    held = vector.get(0)
    before = held.copy()
    with pytest.raises(PoolGoneError, match="start it again with ensure_pool"):
        first.attach()
    with ensure_pool(name, 4, producer=spec(), ready_timeout=50) as second:
        assert second is not first and second.is_owner and first.closed
        assert refreshes(second.attach()) and second.stats().name_lost == 0
        first.close()
        assert refreshes(second.attach())
    assert (held == before).all()
    assert files(name) == [] == supervisors()


def test_a_follower_of_a_pool_whose_files_were_removed_makes_it_anew(owner: PoolHandle) -> None:
    code = """
        import sys
        from pool_support import refreshes, spec
        from sharedvector import PoolGoneError, ensure_pool
        def call():
            return ensure_pool(sys.argv[1], 4, producer=spec(), ready_timeout=50)
        handle = call()
        print(handle.is_owner, flush=True)
        sys.stdin.readline()
        try:
            handle.attach()
        except PoolGoneError:
            with call() as again:
                print(again is handle, again.is_owner, refreshes(again.attach()))
    """
    process = start(code, owner.name, stdin=-1)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "False\n"
    remove_files(owner.name, "segment")
    process.stdin.write("\n")
    process.stdin.flush()
    status, out, err = ended(process)
    assert (status, out) == (0, "False True True\n"), err


@pytest.mark.parametrize("which", [("lock",), ("marker",), ("lock", "marker")])
def test_lock_and_marker_that_were_removed_are_made_again(
    which: tuple[str, ...], owner: PoolHandle, caplog: pytest.LogCaptureFixture
) -> None:
    remove_files(owner.name, *which)
    status, out, err = run(FOLLOWER.replace('mode="attach"', "producer=spec()"), owner.name, "4")
    assert (status, out) == (0, f"False 4 {owner.generation}\n"), err
    assert owner.is_owner and refreshes(owner.attach())
    for path in which:
        assert f"{getattr(PoolPaths.for_name(owner.name), path)} was removed" in caplog.text
