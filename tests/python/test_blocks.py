"""Blocks among processes: one mapping each, memory that comes back, and only the maker removes."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import os
import pickle
import signal
import subprocess
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_support import (
    LIMIT,
    METHODS,
    PREFIX,
    again,
    blocks,
    die,
    memory_of,
    share,
    total,
)
from core_support import descriptors, held_child
from pool_support import ended, run, running, start
from slices_support import EXECUTORS

from sharedvector import SharedArray, _core, sweep
from sharedvector.arrays import attachments

MIB = 1 << 20
SLOW_START = 150.0  # seconds for processes that import much, several times

# ---- executors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXECUTORS)
def test_every_kind_of_workers_can_use_blocks(kind: str) -> None:
    if kind == "torch-pool":
        pytest.importorskip("torch")
    if kind == "loky":
        pytest.importorskip("joblib")
    code = "import sys, arrays_jobs; arrays_jobs.main(*sys.argv[1:])"
    status, out, err = run(code, kind, f"{PREFIX}j", seconds=SLOW_START)
    assert (status, out) == (0, "done\n"), err
    assert blocks(f"{PREFIX}j") == []


def test_asyncio_awaits_workers_that_read() -> None:
    data = np.arange(12.0).reshape(4, 3)
    with share(data) as shared:
        parts = list(map(shared.__getitem__, range(4)))
        assert asyncio.run(gathered(parts)) == data.sum(axis=1).tolist()


async def gathered(parts: list[SharedArray]) -> list[float]:
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(2) as workers:
        jobs = (loop.run_in_executor(workers, total, part) for part in parts)
        return await asyncio.wait_for(asyncio.gather(*jobs), LIMIT)


# ---- the cache ---------------------------------------------------------------------------------


RECEIVER = """
    import pickle, sys
    from arrays_support import maps_of
    from core_support import descriptors
    from sharedvector.arrays import attachments
    sent = [bytes.fromhex(text) for text in sys.argv[1:]]
    def attached():
        return [name for name, _ in attachments.attached()]
"""


def received(body: str, handles: list[SharedArray], **settings: Any) -> subprocess.Popen[str]:
    """A process that has never seen the handles which are sent to it."""
    sent = [pickle.dumps(handle).hex() for handle in handles]
    return start(textwrap.dedent(RECEIVER) + textwrap.dedent(body), *sent, **settings)


def test_a_process_keeps_the_blocks_that_it_used_last() -> None:
    made = [share(np.full(3, i)) for i in range(attachments.CACHED_BLOCKS + 1)]
    body = """
        assert pickle.loads(sent[0]).array[0] == 0
        before = descriptors()
        for i, one in enumerate(sent):
            handle = pickle.loads(one)
            assert handle.array[0] == i
        assert len(attached()) == attachments.CACHED_BLOCKS == len(sent) - 1
        assert descriptors() == before + attachments.CACHED_BLOCKS - 1
        first, second = (pickle.loads(one).name for one in sent[:2])
        for one in sent:
            pickle.loads(one)
        assert maps_of(first) == 0 and maps_of(second) > 0
        kept = pickle.loads(sent[0])
        for one in sent[1:]:
            pickle.loads(one)
        assert maps_of(first) > 0 and kept.array[0] == 0  # for its handle lives
    """
    status, _, err = ended(received(body, made))
    assert status == 0, err
    for shared in made:
        shared.close()


def test_removed_blocks_are_dropped_when_the_next_one_arrives() -> None:
    first, second = share(np.ones(3)), share(np.ones(3))
    body = """
        pickle.loads(sent[0])
        print(*attached(), flush=True)
        sys.stdin.readline()
        pickle.loads(sent[1])
        print(*attached(), flush=True)
    """
    process = received(body, [first, second], stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == f"{first.name}\n"
    first.close()
    process.stdin.write("go\n")
    process.stdin.flush()
    status, out, err = ended(process)
    assert (status, out) == (0, f"{second.name}\n"), err
    second.close()


def test_what_is_made_and_attached_is_told() -> None:
    gc.collect()  # what earlier tests left to it is not to be told
    attachments._forget_gone()
    with share(np.ones(3)) as shared:
        size = (Path("/dev/shm") / shared.name).stat().st_blocks * 512
        assert [name for name, _ in attachments.made()] == [shared.name]
        assert attachments.made()[0][1] >= 24 and size < 64 * 1024
        again(shared)
        assert attachments.attached() == []
    assert attachments.made() == []


# ---- memory ------------------------------------------------------------------------------------


LARGE = np.ones(32 * MIB, "u1")
LITTLE = MIB


def test_memory_is_free_at_once_when_nobody_looks() -> None:
    shared = share(LARGE)
    with held_child(lambda: again(shared)[:5].array.copy()), memory_of(shared) as taken:
        assert taken() > len(LARGE)
        shared.close()
        assert taken() < LITTLE


def test_memory_stays_while_another_process_looks() -> None:
    shared = share(np.full(4 * MIB, 7, "u1"))
    told, tell = os.pipe()
    done, finish = os.pipe()

    def receive() -> None:
        array = again(shared).array
        os.write(tell, b"y")
        os.read(done, 1)
        assert (array == 7).all()

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            receive()
            status = 0
        finally:
            os._exit(status)
    assert os.read(told, 1) == b"y"
    shared.close()
    os.write(finish, b"y")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for descriptor in (told, tell, done, finish):
        os.close(descriptor)


def test_memory_is_free_when_the_last_view_is_dropped() -> None:
    shared = share(LARGE)
    with held_child(lambda: again(shared)[:5].array.copy()), memory_of(shared) as taken:
        array = shared.array
        shared.close()
        assert array.all() and taken() > len(LARGE)
        del array
        assert taken() < LITTLE


def test_memory_is_free_when_a_worker_has_dropped_its_view() -> None:
    shared = share(LARGE)
    body = """
        array = pickle.loads(sent[0]).array
        print("ready", flush=True)
        sys.stdin.readline()
        assert array.all()
        del array
        print("done", flush=True)
        sys.stdin.readline()
    """
    process = received(body, [shared], stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with memory_of(shared) as taken:
        shared.close()
        assert taken() > len(LARGE)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert taken() < LITTLE
    assert ended(process)[0] == 0


def test_a_reader_that_was_killed_does_not_keep_the_memory() -> None:
    shared = share(LARGE)
    with held_child(lambda: again(shared).array):
        pass
    with memory_of(shared) as taken:
        shared.close()
        assert taken() < LITTLE


def test_views_are_values_after_every_end_of_the_block() -> None:
    maker = """
        import sys, time
        import numpy as np, pickle
        import sharedvector
        shared = sharedvector.share(np.arange(1 << 16), prefix=sys.argv[1])
        print(pickle.dumps(shared).hex(), flush=True)
        time.sleep(60)
    """
    with running(maker, PREFIX) as process:
        shared = pickle.loads(bytes.fromhex(process.first_line))  # type: ignore[attr-defined]
        array, part = shared.array, shared[10:20]
        process.kill()
        process.wait(LIMIT)
        assert [swept.name for swept in sweep(PREFIX)] == [shared.name]
    wanted = np.arange(1 << 16)
    assert np.array_equal(array, wanted) and np.array_equal(part.array, wanted[10:20])
    assert np.array_equal(np.from_dlpack(shared), wanted)
    for other in (copy.copy(shared), copy.deepcopy(shared)):  # by the name it would not be found
        assert np.array_equal(other.array, wanted) and not other.writable
    shared.close()
    assert np.array_equal(array, wanted) and np.array_equal(part.array, wanted[10:20])


# ---- ends --------------------------------------------------------------------------------------

MAKER = """
    import asyncio, atexit, gc, os, signal, subprocess, sys, threading, time, types
    import numpy as np
    import sharedvector
    prefix = sys.argv[1]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and the like ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background this one
    def make():
        return sharedvector.share(np.arange(1000.0), prefix=prefix)
"""
KILL_SELF = "os.kill(os.getpid(), signal.{}); time.sleep(20)"
REMOVED = {
    "return": ("", 0),
    "exception": ("raise RuntimeError('mine')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "SIGINT": (KILL_SELF.format("SIGINT"), -signal.SIGINT),
    "SIGTERM": (KILL_SELF.format("SIGTERM"), -signal.SIGTERM),
    "SIGHUP": (KILL_SELF.format("SIGHUP"), -signal.SIGHUP),
    "thread": (
        "threading.Thread(target=lambda: (time.sleep(0.3), print(shared.array.sum()))).start()",
        0,
    ),
    "daemon thread": (
        """
        def read():
            try:
                while True:
                    shared.array.sum()
            except (ValueError, FileNotFoundError):
                pass  # closed at exit, while it goes on
        threading.Thread(target=read, daemon=True).start(); time.sleep(0.1)
        """,
        0,
    ),
    "SIGTERM in a thread's task": (
        "threading.Thread(target=time.sleep, args=(20,)).start()\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)",
        -signal.SIGTERM,
    ),
    "cycle": ("loop = [shared]; loop.append(loop); del shared", 0),
    "module": ("sys.modules['kept'] = types.ModuleType('kept'); sys.modules['kept'].s = shared", 0),
    "late block": ("atexit.register(lambda: globals().update(late=make()))", 0),
    "handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); more = make()\n"
        + KILL_SELF.format("SIGTERM"),
        5,
    ),
    "ignored": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); more = make()\n"
        "os.kill(os.getpid(), signal.SIGTERM); print(signal.getsignal(signal.SIGTERM))",
        0,
    ),
    "default again": (
        "signal.signal(signal.SIGTERM, lambda *_: None); more = make()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); last = make()\n"
        + KILL_SELF.format("SIGTERM"),
        -signal.SIGTERM,
    ),
    "asyncio": (
        """
        async def main():
            done = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(done.wait(), 20)
            sys.exit(6)
        asyncio.run(main())
        """,
        6,
    ),
    "children": (
        "child = subprocess.Popen(['sleep', '9'], stdout=-3, stderr=-3)\n"
        + KILL_SELF.format("SIGTERM"),
        -signal.SIGTERM,
    ),
    "forked child": (
        """
        for leave in ('os._exit(0)', 'sys.exit(0)', 'shared.close(); sys.exit()',
                      'del shared, array; gc.collect(); os._exit(0)',
                      'os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)',
                      'os.kill(os.getpid(), signal.SIGKILL)',
                      'os.execv("/bin/true", ["true"])'):
            pid = os.fork()
            if pid == 0:
                exec(leave)
            os.waitpid(pid, 0)
            assert os.path.exists('/dev/shm/' + shared.name), leave
            assert shared.array.sum() == 499500
        """,
        0,
    ),
}


def ends(body: str, prefix: str) -> tuple[int, str, str]:
    lines = MAKER + "    shared = make(); array = shared.array\n    print(shared.name)\n"
    return run(textwrap.dedent(lines) + textwrap.dedent(body), prefix)


@pytest.fixture
def strict_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children complain about whatever they can."""
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "error")


@pytest.mark.usefixtures("strict_children")
@pytest.mark.parametrize("ending", REMOVED)
def test_the_maker_removes_its_block_however_it_ends(ending: str) -> None:
    body, wanted = REMOVED[ending]
    prefix = f"{PREFIX}e{list(REMOVED).index(ending)}"
    status, out, err = ends(body, prefix)
    assert status == wanted, err
    assert prefix in out and blocks(prefix) == []
    if wanted in (1, -signal.SIGINT):
        last = err.strip().splitlines()[-1]
        assert last.startswith(("RuntimeError: mine", "KeyboardInterrupt")), err
    elif ending == "children":
        assert all("still running" in line for line in err.splitlines()), err
    else:
        assert err == ""


LEFT = {
    "os._exit": ("os._exit(0)", 0),
    "SIGKILL": (KILL_SELF.format("SIGKILL"), -signal.SIGKILL),
    "exec": ("os.execv('/bin/true', ['true'])", 0),
}


@pytest.mark.parametrize("ending", LEFT)
def test_what_a_maker_had_to_leave_is_swept(ending: str) -> None:
    body, wanted = LEFT[ending]
    prefix = f"{PREFIX}l"
    with share(np.arange(3), prefix=prefix) as living:
        status, _out, err = ends(body, prefix)
        assert status == wanted, err
        orphans = [name for name in blocks(prefix) if name != living.name]
        assert len(orphans) == 1
        assert [(one.name, one.kind) for one in sweep(prefix, True)] == [(orphans[0], "block")]
        assert len(blocks(prefix)) == 2
        swept = sweep(prefix)
        assert [one.name for one in swept] == orphans and swept[0].bytes > 8000
        assert blocks(prefix) == [living.name] and living.array.tolist() == [0, 1, 2]
        assert sweep(prefix) == []


def test_handlers_are_as_they_were_before() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with share(1):
        assert [signal.getsignal(number) for number in numbers] == before


CHILDREN = """
    import multiprocessing, sys
    if sys.argv[3] == "first":  # its exit functions are registered before those of blocks
        import multiprocessing.util
    import numpy as np
    import sharedvector
    from arrays_support import total_after
    shared = sharedvector.share(np.arange(10.0), prefix=sys.argv[1])
    context = multiprocessing.get_context(sys.argv[2])
    process = context.Process(target=total_after, args=(shared, 0.3))
    process.start()
    import multiprocessing.util
    multiprocessing.util.Finalize(None, lambda: print(process.exitcode), exitpriority=-1)
"""


@pytest.mark.usefixtures("strict_children")
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("method", METHODS)
def test_children_that_are_joined_at_exit_still_find_the_block(method: str, order: str) -> None:
    assert run(CHILDREN, PREFIX, method, order) == (0, "0\n", "")
    assert blocks() == []


def test_a_forked_child_outlives_its_parent_and_the_block_is_an_orphan() -> None:
    code = """
        import os, sys, time
        import numpy as np
        import sharedvector
        shared = sharedvector.share(np.arange(10.0), prefix=sys.argv[1])
        array = shared.array
        if os.fork() == 0:
            os.setsid()
            print(os.getpid(), flush=True)
            time.sleep(60)
        os.read(0, 1)
    """
    process = start(code, PREFIX, stdin=-1)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert sweep(PREFIX) == []
        process.kill()
        process.wait(LIMIT)
        assert len(sweep(PREFIX)) == 1 and blocks() == []
    finally:
        os.kill(child, signal.SIGKILL)
        ended(process)


def test_a_worker_that_dies_removes_nothing() -> None:
    with share(np.arange(5.0)) as shared:
        workers = ProcessPoolExecutor(1)
        with pytest.raises(Exception, match="terminated abruptly"):
            workers.submit(die, shared).result(LIMIT)
        workers.shutdown()
        assert blocks() == [shared.name] and shared.array.sum() == 10
        assert sweep(PREFIX) == []


def test_a_handle_that_is_lost_while_it_is_made_is_removed() -> None:
    before = descriptors()
    name = _core.block_name(PREFIX)
    options: dict[str, Any] = {"exclusive": True, "owned": True, "block": True, "dtype": "u1"}
    segment = _core.Segment(name, itemsize=1, chunk_size=100, stats_capacity=1, **options)
    assert blocks() == [name]
    del segment
    gc.collect()
    assert blocks() == [] and descriptors() == before


def test_an_interrupt_while_blocks_are_made_leaves_none() -> None:
    code = """
        import signal, sys
        import numpy as np
        import sharedvector
        from sharedvector.arrays import attachments
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        data = np.ones(1 << 18)
        try:
            print("ready", flush=True)  # the signal may come before the next line
            while True:
                sharedvector.share(data, prefix=sys.argv[1]).close()
        except KeyboardInterrupt:
            pass  # while it is handled, its traceback keeps what was made
        print(len(attachments.made()))
    """
    for delay in itertools.islice(itertools.accumulate(itertools.repeat(0.0137)), 4):
        process = start(code, PREFIX)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        status, out, err = ended(process)
        assert (status, out) == (0, "0\n"), err
        assert blocks() == []


# ---- limits ------------------------------------------------------------------------------------


def test_a_full_file_system_is_an_error_and_leaves_nothing() -> None:
    code = """
        import ctypes, os, sys
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None):
            sys.exit(77)  # private mounts
        if libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, b"size=4m"):
            sys.exit(77)
        import numpy as np
        import sharedvector
        try:
            sharedvector.share(np.ones(1 << 20), directory="/mnt")
        except OSError as error:
            print(error.errno, error)
        assert os.listdir("/mnt") == []
        with sharedvector.share(np.ones(1000), directory="/mnt") as shared:
            assert os.listdir("/mnt") == [shared.name] and shared.array.sum() == 1000
            assert sharedvector.sweep(directory="/mnt") == []
        assert os.listdir("/mnt") == []
    """
    status, out, err = run(code)
    if status == 77:
        pytest.skip("needs the right to mount a tmpfs")
    assert status == 0, err
    assert out.startswith("28 ") and "are free" in out


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_AS"])
def test_a_limit_of_the_process_is_an_error_and_leaves_nothing(limit: str) -> None:
    code = """
        import os, resource, sys
        import numpy as np
        import sharedvector
        which = getattr(resource, sys.argv[2])
        if sys.argv[2] == "RLIMIT_NOFILE":
            most = len(os.listdir("/proc/self/fd")) + 20
        else:
            most = int(open("/proc/self/statm").read().split()[0]) * 4096 + (48 << 20)
        data = np.ones(1 << 18)
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
        made = []
        try:
            while len(made) < 200:
                made.append(sharedvector.share(data, prefix=sys.argv[1]))
        except (OSError, MemoryError) as error:
            print(type(error).__name__, error)
        assert 1 < len(made) < 200
        for shared in made:
            assert shared.array.sum() == 1 << 18
            shared.close()
        with sharedvector.share(data, prefix=sys.argv[1]) as shared:
            assert shared.array.sum() == 1 << 18
    """
    status, out, err = run(code, PREFIX, limit)
    assert status == 0, err
    assert out.split()[0] in ("OSError", "MemoryError") and blocks() == []


def test_forks_amid_threads_neither_hang_nor_remove() -> None:
    code = """
        import os, sys, threading, time
        import numpy as np
        import sharedvector
        from arrays_support import again
        from core_support import wait_child
        prefix = sys.argv[1]
        stop, enough = time.monotonic() + 1.5, threading.Event()
        kept = sharedvector.share(np.arange(100.0), prefix=prefix)
        failed = []
        def churn():
            try:
                while not enough.is_set():
                    with sharedvector.share(np.ones(50), prefix=prefix) as shared:
                        part, array = again(shared[10:]), again(kept).array
                        assert part.array.sum() == 40 and array.sum() == 4950
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads:
            thread.start()
        forks = 0
        while time.monotonic() < stop or forks < 6:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    with sharedvector.share(again(kept), prefix=prefix) as copied:
                        assert copied.array.sum() == again(kept).array.sum() == 4950
                    status = 0
                finally:
                    os._exit(status)
            assert wait_child(pid, 60) == 0
            forks += 1
        enough.set()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert [name for name, _ in sharedvector.arrays.attachments.made()] == [kept.name]
        print(forks)
    """
    status, out, err = run(code, PREFIX, seconds=120)
    assert status == 0 and int(out) > 5, err
    assert blocks() == []


def test_strict_sees_the_arrays_of_a_handle_that_attached_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_early(*_: Any) -> Any:
        raise OSError("too many open files")

    with share(np.arange(4.0)) as shared:
        data = pickle.dumps(shared)
        with monkeypatch.context() as patch:
            patch.setattr(attachments, "attach", too_early)
            handle = pickle.loads(data)
        array = handle.array
        with pytest.raises(BufferError, match=r"1 live array\(s\)"):
            handle.close(strict=True)
        assert array.tolist() == [0, 1, 2, 3]
        del array
        handle.close(strict=True)
