"""However processes end that use a pool: what they must not take with them, and what must stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from core_support import fresh_name
from pool_support import (
    LIMIT,
    alive,
    children,
    files,
    own_words,
    run,
    running,
    spec,
    unique,
    wait_for,
)

from sharedvector import PoolHandle, SharedVector, ensure_pool

OWNER = """
    import os, signal, sys, time
    from pool_support import refreshes, spec
    from sharedvector import ensure_pool
    name = sys.argv[1]
    def make():
        return ensure_pool(name, 4, producer=spec(), ready_timeout=50)
"""


@pytest.fixture(scope="module")
def handle() -> Iterator[PoolHandle]:
    with ensure_pool(unique("endings"), 8, producer=spec(), ready_timeout=50) as made:
        yield made


def owner(body: str, name: str) -> str:
    """What `body` prints, run in a process that can make() a pool; it must end well and quietly."""
    status, out, err = run(textwrap.dedent(OWNER) + textwrap.dedent(body), name)
    assert status == 0 and "Traceback" not in err, err
    assert files(name) == []
    return out


# ---- those attached ----------------------------------------------------------------------------

ENDINGS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('mine')", 1),
    "os._exit": ("os._exit(4)", 4),
    "tracker": (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "block = SharedMemory(create=True, size=8); block.close(); block.unlink()",
        0,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_who_is_attached_takes_nothing_with_it(ending: str) -> None:
    line, wanted = ENDINGS[ending]
    code = "import os, sys\nfrom sharedvector import SharedVector\n"
    code += "view = SharedVector(sys.argv[1], create=False).get(0)\n" + line
    with (
        fresh_name() as name,
        SharedVector(name, chunk_size=64, slot_count=2) as vector,
    ):
        vector.append(np.arange(8, dtype=np.float32))
        status, _, err = run(code, name)
        assert status == wanted, err
        with SharedVector(name, create=False) as again:
            assert again.inode == vector.inode and again.get(0).tolist() == list(range(8))
        assert vector.get_chunk_ref_count(0) == 0
        vector.replace(0, np.ones(8, np.float32))


def test_a_fork_that_exits_the_usual_way_keeps_the_parents_pin() -> None:
    """sys.exit() runs the destructors of what the child inherited."""
    code = """
        import os, sys
        from sharedvector import InUseError, SharedVector
        vector = SharedVector(sys.argv[1], create=False)
        view = vector.get(0)
        child = os.fork()
        if child == 0:
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert vector.get_chunk_ref_count(0) == 1
        try:
            vector.replace(0, view.copy())
        except InUseError:
            print("pinned")
        del view
        vector.replace(0, vector.get(1).copy())
    """
    with fresh_name() as name, SharedVector(name, chunk_size=64, slot_count=2) as vector:
        for value in range(2):
            vector.append(np.full(8, value, np.float32))
        assert run(code, name)[:2] == (0, "pinned\n")
        assert vector.get(0).tolist() == [1] * 8


# ---- forks of an owner -------------------------------------------------------------------------

FORKS = {
    "multiprocessing": "worker = multiprocessing.get_context('fork').Process(target=int)\n"
    "worker.start(); worker.join(); status = worker.exitcode",
    "os._exit": "child = os.fork()\nif child == 0: os._exit(0)\nstatus = os.waitpid(child, 0)[1]",
    "sys.exit": "child = os.fork()\nif child == 0: sys.exit(0)\nstatus = os.waitpid(child, 0)[1]",
}


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_of_an_owner_ends_nothing(fork: str) -> None:
    """Neither a pool nor a service, although the child inherits both and their exit functions."""
    name = unique("forks")
    body = (
        "import multiprocessing\n"
        "from pool_support import Constant\n"
        "from sharedvector import ProducerService, SharedVector\n"
        "service = ProducerService(name + 's', Constant(), 8, 2, 4096, num_producers=1)\n"
        "service.start()\n"
        "handle = make()\n"
        f"{FORKS[fork]}\n"
        "assert status == 0 and handle.is_owner and service.started\n"
        "print(refreshes(handle.attach()), refreshes(SharedVector(name + 's', create=False)))\n"
    )
    assert owner(body, name) == "True True\n"


# ---- signals -----------------------------------------------------------------------------------


def test_signals_are_the_programs_own() -> None:
    body = """
        hits = []
        signal.signal(signal.SIGTERM, lambda number, frame: hits.append(number))
        handle = make()
        os.kill(os.getpid(), signal.SIGTERM)
        assert refreshes(handle.attach()) and hits == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)
        assert refreshes(handle.attach()) and len(hits) == 1
        later = lambda number, frame: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, later)
        handle.close()
        assert all(signal.getsignal(n) is later for n in (signal.SIGTERM, signal.SIGINT))
        print("kept")
    """
    assert owner(body, unique("own")) == "kept\n"


def test_an_interrupt_of_the_whole_group_ends_nothing_but_what_waits() -> None:
    body = """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        handle = make()
        try:
            os.killpg(0, signal.SIGINT)
            time.sleep(50)
        except KeyboardInterrupt:
            print("interrupted")
        print(refreshes(handle.attach()))
        handle.close()
        with make() as again:
            print(again.is_owner, refreshes(again.attach()))
    """
    assert owner(body, unique("group")) == "interrupted\nTrue\nTrue True\n"


def test_an_owner_dies_of_a_signal_as_anybody_and_nothing_is_left() -> None:
    name = unique("sigterm")
    body = "handle = make()\nprint('up', flush=True)\ntime.sleep(60)\n"
    with running(textwrap.dedent(OWNER) + body, name) as process:
        (supervisor,) = children(process.pid)
        process.terminate()
        assert process.wait(LIMIT) == -signal.SIGTERM
    wait_for(lambda: not alive(supervisor) and files(name) == [])


# ---- workers of a DataLoader -------------------------------------------------------------------

TRAIN = """
    import sys, torch, warnings
    from torch.utils.data import DataLoader
    from sharedvector import SharedMemoryDataset, ensure_pool

    # Two workers are more than a machine with one processor is advised to have.
    warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")
    if __name__ == "__main__":
        torch.set_num_threads(1)
        handle = ensure_pool(sys.argv[1], 8, mode="attach", ready_timeout=150)
        loader = DataLoader(
            SharedMemoryDataset.from_pool(handle), batch_size=2, num_workers=2, shuffle=True,
            persistent_workers=True, multiprocessing_context="fork", timeout=150,
        )
        for epoch in range(2):
            for batch in loader:
                data = batch["data"].flatten(1)
                assert (data == data[:, :1]).all() and (data >= 1).all()
        for batch in loader:
            break
        print(len(loader))
"""


@pytest.mark.slow
def test_forked_workers_of_a_data_loader_keep_no_slot_from_being_refreshed(
    handle: PoolHandle, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    command = [sys.executable, str(script), handle.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert (done.returncode, done.stdout, own_words(done.stderr)) == (0, "4\n", "")
    vector = handle.attach()
    assert [vector.get_chunk_ref_count(slot) for slot in range(8)] == [0] * 8
    before = vector.write_counts()
    vector.gather(range(8))  # what was read is replaced first
    wait_for(lambda: (vector.write_counts() > before).all())
