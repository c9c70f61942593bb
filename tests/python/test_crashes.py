"""`kill -9` at every part of a pool: nobody hangs, nobody sees damage, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pool_support import (
    Constant,
    Stubborn,
    alive,
    ended,
    files,
    refreshes,
    run,
    running,
    spec,
    start,
    supervisors,
    unique,
    wait_for,
    workers,
)

from sharedvector import PoolHandle, SharedVector, _core, ensure_pool, remove_shared_memory

pytestmark = pytest.mark.slow

OWNER = """
    import os, sys, time
    import pool_support
    from sharedvector import ensure_pool
    loader = getattr(pool_support, sys.argv[2])()
    handle = ensure_pool(
        sys.argv[1], 4, producer=pool_support.spec(loader, num_producers=2), ready_timeout=50
    )
    print(handle.is_owner, flush=True)
    time.sleep(600)
"""


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended since it was seen
            os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    """Stop a process, and wait until it has."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")


def family(pid: int) -> tuple[int, list[int]]:
    """The supervisor of an owner, and its workers."""
    found = wait_for(lambda: supervisors(pid))
    assert len(found) == 1
    return found[0], wait_for(lambda: workers(found[0]))


@pytest.fixture
def handle() -> Iterator[PoolHandle]:
    producer = spec(num_producers=2)
    with ensure_pool(unique("kill"), 4, producer=producer, ready_timeout=50) as made:
        yield made


# ---- the producer's processes ------------------------------------------------------------------


def test_a_killed_worker_is_replaced(handle: PoolHandle) -> None:
    vector = handle.attach()
    for _ in range(5):
        supervisor, found = family(os.getpid())
        kill(*found)
        assert refreshes(vector)
        assert family(os.getpid())[0] == supervisor
    assert vector.counter_add(_core.COUNTER_RESTARTS, 0) >= 5
    assert (vector.write_counts() > 1).all() or refreshes(vector, count=8)


def test_a_killed_supervisor_is_replaced_with_its_workers(handle: PoolHandle) -> None:
    vector = handle.attach()
    for _ in range(7):  # more than would count as failing
        supervisor, found = family(os.getpid())
        kill(supervisor)
        wait_for(lambda: not any(alive(pid) for pid in found))  # noqa: B023
        assert refreshes(vector)
    assert not vector.retired
    assert handle.is_owner


def test_stopped_processes_do_not_hold_up_the_end() -> None:
    producer = spec(producer_join_timeout=0.5)
    handle = ensure_pool(unique("frozen"), 4, producer=producer, ready_timeout=50)
    supervisor, found = family(os.getpid())
    for pid in (supervisor, *found):
        freeze(pid)
    began = time.monotonic()
    handle.close()
    assert time.monotonic() - began < 60
    assert not alive(supervisor)
    wait_for(lambda: not any(alive(pid) for pid in found))
    assert files(handle.name) == []


def filled(name: str) -> int:
    """How many slots of a pool are filled; 0 where there is none yet."""
    try:
        return SharedVector(name, create=False).size()
    except FileNotFoundError:
        return 0


def test_a_supervisor_killed_while_filling_is_replaced(tmp_path: Path) -> None:
    name, gate = unique("early"), tmp_path / "gate"
    code = """
        import sys
        from pool_support import Gated, spec
        from sharedvector import ensure_pool
        producer = spec(Gated(sys.argv[2], free=2))
        with ensure_pool(sys.argv[1], 6, producer=producer, ready_timeout=100) as handle:
            print(len(handle.attach()))
    """
    process = start(code, name, str(gate))
    wait_for(lambda: filled(name) >= 1)
    kill(family(process.pid)[0])
    gate.touch()
    status, out, err = ended(process)
    assert (status, out) == (0, "6\n"), err


# ---- the owner ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", ["Constant", "Stubborn"])
def test_a_killed_owner_leaves_nothing_and_the_next_one_takes_over(loader: str) -> None:
    assert {Constant.__name__, Stubborn.__name__} >= {loader}
    name = unique("owner")
    with running(OWNER, name, loader) as owner:
        supervisor, found = family(owner.pid)
        follower = ensure_pool(name, 4, mode="attach", ready_timeout=50)
        vector = follower.attach()
        array = vector.get(0)
        value = float(array[0, 0])
        kill(owner.pid)
        wait_for(lambda: files(name) == [])
        wait_for(lambda: not any(alive(pid) for pid in (supervisor, *found)))
    assert vector.retired and "died" in vector.retired_reason
    assert float(array[0, 0]) == value and len(vector) == 4
    assert follower.stats().slots == 4
    with ensure_pool(name, 4, producer=spec(), ready_timeout=50) as successor:
        assert successor is not follower
        assert successor.is_owner and successor.generation != follower.generation
        assert refreshes(successor.attach())
    assert float(array[0, 0]) == value


def test_without_pidfd_the_owners_death_is_seen_by_its_lock() -> None:
    name = unique("nopidfd")
    code = OWNER.replace("import os, sys, time", "import os, sys, time; del os.pidfd_open")
    with running(code, name, "Constant") as owner:
        supervisor, found = family(owner.pid)
        kill(owner.pid)
        wait_for(lambda: files(name) == [])
        wait_for(lambda: not any(alive(pid) for pid in (supervisor, *found)))


def test_all_killed_at_once_the_next_takes_the_leftovers_over() -> None:
    name = unique("scancel")
    with running(OWNER, name, "Constant") as owner:
        supervisor, found = family(owner.pid)
        freeze(supervisor)  # so that it cannot clean up in between
        kill(owner.pid, supervisor, *found)
        owner.wait(60)
        assert name in files(name) and f"{name}.ready" in files(name)
    with ensure_pool(name, 4, producer=spec(), ready_timeout=50) as successor:
        assert successor.is_owner and refreshes(successor.attach())
    assert files(name) == []


def test_an_owner_killed_while_filling_is_replaced_at_once(tmp_path: Path) -> None:
    name, gate = unique("ddp"), tmp_path / "gate"
    code = """
        import sys
        from pool_support import Gated, spec
        from sharedvector import ensure_pool
        producer = spec(Gated(sys.argv[2], free=1))
        handle = ensure_pool(sys.argv[1], 6, producer=producer, ready_timeout=600)
        print(handle.is_owner, handle.attach().generation, flush=True)
        sys.stdin.readline()
        handle.close()
    """
    ranks = [start(code, name, str(gate), stdin=-1) for _ in range(3)]
    try:
        wait_for(lambda: filled(name) >= 1)
        (owner,) = [rank for rank in ranks if supervisors(rank.pid)]
        owner.kill()
        gate.touch()
        survivors = [rank for rank in ranks if rank is not owner]
        began = time.monotonic()
        lines = [rank.stdout.readline().split() for rank in survivors]  # type: ignore[union-attr]
        assert time.monotonic() - began < 100
        assert sorted(who for who, _ in lines) == ["False", "True"]
        assert len({generation for _, generation in lines}) == 1
    finally:
        for rank in ranks:
            ended(rank)
    wait_for(lambda: files(name) == [])


def test_the_old_supervisor_touches_nothing_of_a_new_owner() -> None:
    name = unique("heir")
    with running(OWNER, name, "Constant") as owner:
        supervisor, found = family(owner.pid)
        freeze(supervisor)
        kill(owner.pid)
        owner.wait(60)
        with ensure_pool(name, 4, producer=spec(), ready_timeout=50) as successor:
            os.kill(supervisor, signal.SIGCONT)
            assert successor.is_owner
            wait_for(lambda: not any(alive(pid) for pid in (supervisor, *found)))
            assert files(name) == sorted([name, f"{name}.lock", f"{name}.ready"])
            assert refreshes(successor.attach())
            assert successor.attach().generation == successor.generation
    assert files(name) == []


# ---- readers and writers -----------------------------------------------------------------------


def test_a_killed_reader_gives_its_buffers_back(handle: PoolHandle) -> None:
    code = """
        import sys, time
        from sharedvector import ensure_pool
        vector = ensure_pool(sys.argv[1], 4, mode="attach", ready_timeout=50).attach()
        held = []
        for _ in range(50):  # more views than there are spare buffers
            held += [vector.get(slot) for slot in range(4)]
            time.sleep(0.01)
        print("held", flush=True)
        time.sleep(600)
    """
    vector = handle.attach()
    with running(code, handle.name) as reader:
        assert any(vector.get_chunk_ref_count(slot) for slot in range(4))
        kill(reader.pid)
        reader.wait(60)
        assert refreshes(vector, count=10)
    wait_for(lambda: not any(vector.get_chunk_ref_count(slot) for slot in range(4)))


WRITER = """
    import sys, time
    import numpy as np
    from sharedvector import SharedVector
    vector = SharedVector(sys.argv[1], create=False)
    chunks = [np.full(1 << 14, value, np.float32) for value in range(16)]
    print("writes", flush=True)
    turn = 0
    while True:
        turn += 1
        vector.replace(turn % 4, chunks[turn % 16], refuse=False)
"""


def test_writers_killed_at_any_moment_damage_nothing() -> None:
    name = unique("writer")
    vector = SharedVector(name, chunk_size=1 << 16, slot_count=4, spare_buffers=2)
    for value in range(4):
        vector.append(np.full(1 << 14, value, np.float32))
    pause = np.random.default_rng(3)
    try:
        for _ in range(25):
            with running(WRITER, name) as writer:
                deadline = time.monotonic() + float(pause.uniform(0, 0.02))
                while time.monotonic() < deadline:
                    _all_whole(vector)
                writer.kill()
                writer.wait(60)
            began = time.monotonic()
            for slot in range(4):
                vector.replace(slot, np.full(1 << 14, slot, np.float32), refuse=False, timeout=30)
            assert time.monotonic() - began < 30
            _all_whole(vector)
            vector.check()
    finally:
        vector.close()
        remove_shared_memory(name)


def _all_whole(vector: SharedVector) -> None:
    for slot in range(4):
        array = vector.get(slot)
        assert array.size == 1 << 14
        assert array[0] == array[-1] == array.min() == array.max()


def test_killed_in_the_middle_of_an_election_nobody_waits(tmp_path: Path) -> None:
    """Processes that are killed while they elect never keep the next from becoming the owner."""
    name = unique("elect")
    code = """
        import sys
        from pool_support import spec
        from sharedvector import ensure_pool
        print("go", flush=True)
        ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50)
    """
    pause = np.random.default_rng(5)
    for _ in range(6):
        process = start(code, name)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(float(pause.uniform(0, 0.5)))
        process.kill()
        _reap(process)
    status, out, err = run(code, name)
    assert (status, out) == (0, "go\n"), err
    wait_for(lambda: files(name) == [])


def _reap(process: subprocess.Popen[str]) -> None:
    process.wait(60)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
