"""`ProducerService`: an owner as an object, and as a job step that ends by a signal."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_support import (
    AllBad,
    Constant,
    Held,
    children,
    ended,
    files,
    refreshes,
    run,
    running,
    start,
    supervisors,
    unique,
    wait_for,
)

from sharedvector import (
    PoolBusyError,
    PoolSpawnError,
    PoolStalledError,
    ProducerService,
    SharedVector,
    ensure_pool,
    stats_capacity_for,
)
from sharedvector.coordination import OwnerLock
from sharedvector.service import partition


def service(tag: str, **settings: Any) -> ProducerService:
    arguments: dict[str, Any] = {
        "name": unique(tag),
        "loader": Constant(),
        "source_size": 8,
        "slot_count": 4,
        "chunk_size": 4096,
        "num_producers": 1,
        **settings,
    }
    return ProducerService(**arguments)


def test_partition_cuts_a_range_into_pieces() -> None:
    assert partition(10, 3) == [(0, 4), (4, 7), (7, 10)]
    assert partition(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]
    assert partition(0, 2) == [(0, 0), (0, 0)]
    small: Any = np.uint8
    assert partition(small(200), small(3)) == [(0, 67), (67, 134), (134, 200)]
    with pytest.raises(ZeroDivisionError):
        partition(5, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_producers": 0},
        {"source_size": 0},
        {"slot_count": 0},
        {"chunk_size": 0},
        {"sleep_seconds": -0.1},
        {"producer_join_timeout": float("nan")},
        {"dtype": "unknown"},
        {"spare_buffers": 0},
        {"name": "a/b"},
    ],
)
def test_impossible_settings_are_refused_at_construction(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        service("bad", **settings)


def test_its_life() -> None:
    one = service("life", slot_count=16, num_producers=4)
    name = one.name
    assert not one.started
    with pytest.raises(RuntimeError, match="start"):
        one.stats()
    one.stop()  # nothing to stop
    one.start()
    one.start()  # nothing to do
    assert one.started
    vector = SharedVector(name, create=False)
    assert len(vector) == vector.capacity == 16
    assert vector.spare_buffers == 2  # an eighth of the slots
    assert vector.stats["sample_capacity"] == stats_capacity_for(16)
    assert vector.generation == one.generation
    assert one.stats().slots == 16
    assert refreshes(vector)
    one.stop()
    one.stop()
    assert not one.started
    assert files(name) == [] == supervisors()
    with pytest.raises(RuntimeError):
        one.stats()


def test_it_can_be_started_again_with_another_generation() -> None:
    one = service("twice")
    with one:
        first = one.generation
        vector = SharedVector(one.name, create=False)
    with one:
        assert one.generation != first
        assert SharedVector(one.name, create=False).generation == one.generation
    assert vector.generation == first and vector.retired
    chosen = service("chosen", generation="my-own")
    assert chosen.generation == "my-own"
    with chosen:
        assert SharedVector(chosen.name, create=False).generation == "my-own"


def test_fewer_slots_than_workers_mean_fewer_workers() -> None:
    with service("few", slot_count=2, num_producers=5) as one:
        (supervisor,) = supervisors()
        assert len(wait_for(lambda: children(supervisor))) <= 2
        assert one.stats().slots == 2


def test_a_living_owner_is_not_disturbed() -> None:
    one = service("busy")
    two = service("busy", name=one.name)
    with one:
        began = time.monotonic()
        with pytest.raises(PoolBusyError, match=f"process {os.getpid()}"):
            two.start()
        assert time.monotonic() - began < 40
        two.stop()
        assert refreshes(SharedVector(one.name, create=False))
        with ensure_pool(one.name, 4, mode="attach", ready_timeout=20) as handle:
            assert not handle.is_owner
    with two:
        assert two.started


def test_a_living_owner_with_another_lock_directory_is_not_disturbed(tmp_path: Path) -> None:
    one = service("dirs")
    two = service("dirs", name=one.name, lock_dir=tmp_path)
    with one:
        began = time.monotonic()
        with pytest.raises(PoolBusyError, match="another lock directory"):
            two.start()
        assert time.monotonic() - began < 40
        assert not two.started and list(tmp_path.iterdir()) == []
        assert refreshes(SharedVector(one.name, create=False))
    with two:
        assert two.started


def test_a_start_that_fails_leaves_nothing() -> None:
    one = service("fails", loader=AllBad())
    with pytest.raises(PoolSpawnError, match=r"source \d: OSError: volume-00\d is truncated"):
        one.start()
    assert not one.started
    assert files(one.name) == [] == supervisors()


def test_a_fork_stops_nothing() -> None:
    with service("fork") as one:
        pid = os.fork()
        if pid == 0:
            started = one.started
            one.stop()
            os._exit(1 if started else 0)
        assert os.waitpid(pid, 0)[1] == 0
        assert one.started and refreshes(SharedVector(one.name, create=False))


def test_stop_from_another_thread_ends_a_start() -> None:
    one = service("halfway", loader=Constant(delay=600))

    def stop() -> None:
        wait_for(supervisors)
        one.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(PoolSpawnError, match="stopped while being filled"):
        one.start()
    stopper.join()
    assert files(one.name) == [] == supervisors()


def test_a_second_thread_that_stops_waits_until_the_pool_is_gone() -> None:
    one = service("both")
    one.start()
    held = Held(one._reign, "_end_supervisor")
    first = threading.Thread(target=one.stop)
    first.start()
    held.meet()
    seen: list[tuple[list[str], list[int]]] = []

    def stop() -> None:
        one.stop()
        seen.append((files(one.name), supervisors()))

    second = threading.Thread(target=stop)
    second.start()
    second.join(0.5)
    assert second.is_alive() and not seen
    held.let_go()
    for thread in (first, second):
        thread.join(60)
    assert seen == [([], [])]


def test_a_start_that_is_stopped_returns_when_the_pool_is_gone() -> None:
    one = service("stopped", loader=Constant(delay=600))
    seen: list[tuple[list[str], list[int]]] = []

    def start_it() -> None:
        with pytest.raises(PoolSpawnError, match="stopped while being filled"):
            one.start()
        seen.append((files(one.name), supervisors()))

    first = threading.Thread(target=start_it)
    first.start()
    wait_for(supervisors)
    held = Held(one._reign, "_end_supervisor")
    second = threading.Thread(target=one.stop)
    second.start()
    held.meet()
    first.join(0.5)
    assert first.is_alive() and not seen
    held.let_go()
    for thread in (first, second):
        thread.join(60)
    assert seen == [([], [])]


def test_run_ends_by_stop_and_puts_no_handler_into_other_threads() -> None:
    one = service("thread")
    thread = threading.Thread(target=one.run)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    wait_for(lambda: one.started)
    assert len(SharedVector(one.name, create=False)) == 4
    assert signal.getsignal(signal.SIGTERM) is before
    one.stop()
    thread.join(60)
    assert not thread.is_alive() and files(one.name) == []


RUN = """
    import signal, sys
    from pool_support import Constant
    from sharedvector import ProducerService
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    service = ProducerService(
        sys.argv[1], Constant(delay=float(sys.argv[2])), 8, 4, 4096, num_producers=2
    )
    print("up", flush=True)
    service.run()
    print([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", ["ready", "filling"])
def test_run_ends_cleanly_by_a_signal_to_the_group(number: signal.Signals, when: str) -> None:
    name = unique("signal")
    process = start(RUN, name, "0" if when == "ready" else "60")
    wait_for(lambda: (f"{name}.ready" if when == "ready" else name) in files(name))
    os.killpg(process.pid, number)
    status, out, err = ended(process)
    assert (status, out) == (0, "up\nTrue\n"), err
    assert "Traceback" not in err
    assert files(name) == []


ENDINGS = {
    "return": "",
    "exception": "raise RuntimeError('mine')",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(4)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT); time.sleep(600)",
    "exec": "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'])",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_the_owner_ends_the_pool_ends_with_it(ending: str) -> None:
    name = unique("ends")
    code = f"""
        import os, signal, sys, time
        from pool_support import Constant
        from sharedvector import ProducerService
        service = ProducerService(sys.argv[1], Constant(), 8, 4, 4096, num_producers=1)
        service.start()
        print("up", flush=True)
        sys.stdin.readline()
        {ENDINGS[ending]}
    """
    process = start(code, name, stdin=-1)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "up\n"
    vector = SharedVector(name, create=False)
    process.stdin.close()
    process.stdin = None
    wait_for(lambda: files(name) == [])
    assert vector.retired and len(vector) == 4 and vector.get(0).size
    if ending == "exec":
        process.kill()
    ended(process)


def test_a_pool_without_room_for_its_marker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker's page is the last that a pool needs; without it nobody could attach."""

    def full(_lock: OwnerLock) -> None:
        raise OSError(errno.ENOSPC, "cannot write the marker: No space left on device")

    monkeypatch.setattr(OwnerLock, "write_ready", full)
    one = service("unmarked")
    with pytest.raises(PoolSpawnError, match=r"marked as ready.*No space left"):
        one.start()
    assert files(one.name) == [] == supervisors()


def test_a_producer_that_always_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one = service("hopeless")
    one.start()
    vector = SharedVector(one.name, create=False)
    follower = ensure_pool(one.name, 4, mode="attach", ready_timeout=20)
    # From now on a supervisor cannot even start.
    monkeypatch.setattr("sys.executable", "/bin/false")
    for pid in supervisors():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: vector.retired)
    assert "given up" in vector.retired_reason
    with pytest.raises(PoolStalledError, match="given up"):
        follower.attach()
    follower.close()
    with pytest.raises(PoolStalledError, match=r"given its|given up"):
        ensure_pool(one.name, 4, mode="attach", ready_timeout=20)
    one.stop()
    assert files(one.name) == []


def test_run_says_that_its_producer_was_given_up() -> None:
    code = """
        import os, signal, sys, threading
        from pool_support import Constant, supervisors, wait_for
        from sharedvector import PoolStalledError, ProducerService
        service = ProducerService(sys.argv[1], Constant(), 8, 4, 4096, num_producers=1)
        def spoil():
            wait_for(lambda: service.started and os.path.exists(sys.argv[2]))
            sys.executable = "/bin/false"
            for pid in supervisors():
                os.kill(pid, signal.SIGKILL)
        threading.Thread(target=spoil, daemon=True).start()
        try:
            service.run()
        except PoolStalledError as error:
            print("stalled", error)
    """
    name = unique("spoiled")
    from sharedvector import PoolPaths

    status, out, err = run(code, name, str(PoolPaths.for_name(name).marker))
    assert status == 0, err
    assert out.startswith("stalled") and "5 times" in out
    assert files(name) == []


def test_two_services_in_one_process() -> None:
    with service("one") as one, service("two") as two:
        assert refreshes(SharedVector(one.name, create=False))
        assert refreshes(SharedVector(two.name, create=False))
    assert supervisors() == []


def test_a_fork_keeps_no_pool_alive() -> None:
    name = unique("sleeper")
    code = """
        import os, sys, time
        from pool_support import Constant
        from sharedvector import ProducerService
        service = ProducerService(sys.argv[1], Constant(), 8, 4, 4096, num_producers=1)
        service.start()
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        time.sleep(600)
    """
    with running(code, name) as owner:
        os.kill(owner.pid, signal.SIGKILL)
        wait_for(lambda: files(name) == [])
        os.kill(int(owner.first_line), signal.SIGKILL)  # type: ignore[attr-defined]
