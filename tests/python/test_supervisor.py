"""The supervisor and its workers, and when a bootstrap counts as hopeless."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_support import (
    LIMIT,
    Constant,
    Dies,
    DiesOnce,
    Noisy,
    Silent,
    Stubborn,
    Swallower,
    Unfit,
    Unloadable,
    Walkout,
    alive,
    files,
    refreshes,
    run,
    running,
    spec,
    supervisors,
    unique,
    wait_for,
    workers,
)

from sharedvector import (
    PoolHandle,
    PoolPaths,
    PoolSpawnError,
    _core,
    ensure_pool,
    remove_shared_memory,
)
from sharedvector._producer.monitor import Verdict, status_words
from sharedvector._producer.spawn import pack_loader, start_supervisor


def supervisor_of_this_process() -> int:
    (found,) = supervisors()
    return found


# ---- the verdict -------------------------------------------------------------------------------


def test_hopeless_when_every_source_has_failed() -> None:
    verdict = Verdict(3, 4, 1)
    assert verdict.fatal(0, 0.0) is None
    for source in (2, 0, 2):
        verdict.failed(0, source, f"OSError: {source}", False, 1.0)
    assert verdict.fatal(0, 1.0) is None
    verdict.failed(0, 1, "OSError: 1", False, 1.0)
    reason = verdict.fatal(0, 1.0)
    assert reason == "no chunk from any of 3 sources (source 2: OSError: 2); 0/4 slots filled"
    assert verdict.fatal(1, 1.0) is None


def test_hopeless_when_every_source_is_empty() -> None:
    verdict = Verdict(2, 4, 1)
    for source in range(2):
        verdict.failed(0, source, "", True, 1.0)
    reason = verdict.fatal(0, 1.0)
    assert reason is not None and "every source returned an empty list" in reason


def test_of_many_sources_some_seconds_of_failures_are_enough() -> None:
    verdict = Verdict(1000, 4, 2)
    for source in range(20):
        verdict.failed(0, source, "OSError: x", False, 0.1)
    assert verdict.fatal(0, 0.1) is None  # too early
    verdict.failed(0, 20, "OSError: x", False, 6.0)
    assert verdict.fatal(0, 6.0) is None  # the other worker may be loading a good one
    verdict.failed(1, 21, "OSError: x", False, 6.1)
    reason = verdict.fatal(0, 6.1)
    assert reason is not None and "22 of 1000 sources" in reason and "source 0" in reason


def test_chunks_of_the_wrong_kind_from_every_worker_are_hopeless_at_once() -> None:
    verdict = Verdict(1000, 4, 2)
    for source in range(6):
        verdict.failed(0, source, "ChunkRefusedError: x", False, 0.1, refused=True)
    assert verdict.fatal(0, 0.1) is None  # the other worker may be loading a good one
    verdict.failed(1, 6, "ChunkRefusedError: x", False, 0.1, refused=True)
    reason = verdict.fatal(0, 0.1)
    assert reason is not None and "7 of 1000 sources tried (source 0: ChunkRefused" in reason
    verdict.failed(1, 7, "OSError: x", False, 0.1)
    assert verdict.fatal(0, 0.1) is None  # a mixed lot: go on


def test_three_crashes_in_a_row_are_hopeless() -> None:
    verdict = Verdict(8, 4, 2)
    verdict.crashed(0, "exit status 7", 0)
    verdict.crashed(0, "exit status 7", 0)
    verdict.stored(0)
    verdict.crashed(0, "exit status 7", 1)
    verdict.crashed(0, "exit status 7", 2)  # somebody is getting on
    verdict.crashed(1, "exit status 7", 2)
    verdict.crashed(0, "exit status 7", 2)
    assert verdict.fatal(2, 0.0) is None
    verdict.crashed(0, "exit status 7", 2)
    reason = verdict.fatal(2, 0.0)
    assert reason is not None and "exit status 7" in reason and "2/4" in reason


def test_statuses_in_words() -> None:
    assert status_words(3) == "exit status 3"
    assert status_words(-signal.SIGKILL) == "killed by SIGKILL"
    assert status_words(-77) == "killed by signal 77"


# ---- what is sent ------------------------------------------------------------------------------


def test_a_job_survives_the_way() -> None:
    code = """
        import os, pathlib, sys
        from pool_support import Constant
        from sharedvector._producer.entry import take_import_path
        from sharedvector._producer.payload import Job, make_loader, receive
        from sharedvector._producer.spawn import open_parcel, pack_loader

        sys.path += ["here", None, pathlib.Path("/there"), b"/bytes", *map(str, range(30000))]
        job = Job(name="n", directory="/d", slot_count=4, sleep_seconds=0.1, seed=2**64 - 1)
        with open_parcel(job, pack_loader(Constant(5))) as file:
            received = receive(file.fileno())
            take_import_path(file.fileno())
            loaders = [make_loader(file.fileno()) for _ in range(2)]
        assert received == job
        assert all(os.path.isabs(entry) for entry in sys.path), sys.path
        assert sys.path[-30001:] == [os.path.abspath("here")] + [
            os.path.abspath(str(number)) for number in range(30000)
        ]
        assert os.environ["SHAREDVECTOR_SHM_DIR"] == "/d"
        assert loaders[0] is not loaders[1]
        print(*map(len, loaders))
    """
    status, out, err = run(code)
    assert (status, out) == (0, "5 5\n"), err


MAIN = """
    import sys
    import numpy as np
    from sharedvector import Chunk, PoolSpawnError, ProducerSpec, ensure_pool, no_meta
    if "without" in sys.argv:
        sys.modules["cloudpickle"] = None

    class Mine:
        def __len__(self):
            return 4
        def __call__(self, index):
            return [Chunk(np.full(3, index + VALUE, np.float32), no_meta())]

    VALUE = 40
    print("starting")
    try:
        with ensure_pool(
            sys.argv[1], 2, producer=ProducerSpec(Mine(), 4096, num_producers=1), ready_timeout=50
        ) as handle:
            print("value", handle.attach().get(0)[0] >= 40)
    except PoolSpawnError as error:
        print("error", error)
"""


def test_a_loader_of_an_unguarded_main_program_goes_by_cloudpickle() -> None:
    status, out, err = run(MAIN, unique("main"))
    assert (status, out.split("\n")[:2]) == (0, ["starting", "value True"]), err


def test_without_cloudpickle_the_error_comes_at_once_and_says_what_to_do() -> None:
    status, out, err = run(MAIN, unique("main"), "without")
    assert status == 0, err
    assert "error the loader cannot be sent" in out
    assert "Mine is defined in the main program" in out
    assert "move the loader to a module" in out


def test_a_loader_of_the_main_program_in_a_spawned_child(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys
            import numpy as np
            from sharedvector import Chunk, ProducerSpec, ensure_pool, no_meta

            class Mine:
                def __len__(self):
                    return 4
                def __call__(self, index):
                    return [Chunk(np.full(3, index, np.float32), no_meta())]

            def rank(name):
                producer = ProducerSpec(Mine(), 4096, num_producers=1)
                with ensure_pool(name, 2, producer=producer, ready_timeout=50) as handle:
                    print(handle.is_owner, len(handle.attach()), flush=True)

            if __name__ == "__main__":
                child = multiprocessing.get_context("spawn").Process(target=rank, args=sys.argv[1:])
                child.start()
                child.join()
                sys.exit(child.exitcode)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), unique("spawn")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True 2\n"), done.stderr


@pytest.mark.parametrize("without", [True, False])
def test_what_holds_something_that_cannot_be_sent_is_refused_with_what_to_do(
    without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    loader: Any = Constant()
    loader.lock = threading.Lock()
    with pytest.raises(
        PoolSpawnError, match=r"cannot be sent .*lock.*; leave what cannot"
    ) as found:
        pack_loader(loader)
    assert "__getstate__" in str(found.value) and "pip install" not in str(found.value)


def test_what_no_module_has_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def local(source_index: int) -> list[Any]:
        return []

    for loader in (lambda source_index: [], local):
        assert pack_loader(loader)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    for loader in (lambda source_index: [], local):
        words = r"cannot be sent .*local.*; move the loader to a module .*, or pip install cloud"
        with pytest.raises(PoolSpawnError, match=words):
            pack_loader(loader)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("loader.lock = lock", r"at loader\.lock, a lock"),
        ("loader.files = {'a': [1, lock]}", r"at loader\.files\['a'\]\[1\], a lock"),
        ("loader.part = Constant(); loader.part.held = (lock,)", r"at loader\.part\.held\[0\]"),
    ],
)
def test_the_attribute_that_cannot_be_sent_is_named(change: str, words: str) -> None:
    names: dict[str, Any] = {"loader": Constant(), "lock": threading.Lock(), "Constant": Constant}
    exec(change, names)
    with pytest.raises(PoolSpawnError, match=words):
        pack_loader(names["loader"])


SERVICE = """
    import sys
    import numpy as np
    from sharedvector import Chunk, ProducerService, SharedVector, no_meta

    class Mine:
        def __len__(self):
            return 4
        def __call__(self, index):
            return [Chunk(np.full(3, index + VALUE, np.float32), no_meta())]

    VALUE = 40
    with ProducerService(sys.argv[1], Mine(), 4, 2, 4096, num_producers=1) as service:
        print(SharedVector(service.name, create=False).get(0)[0] >= VALUE)
"""
# A notebook runs its cells in a module __main__ that has no file.
CELL = f"""
    import sys, types
    cells = types.ModuleType("__main__")
    sys.modules["__main__"] = cells
    exec(compile({textwrap.dedent(SERVICE)!r}, "<ipython-input-1>", "exec"), vars(cells))
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(["-"], id="standard input"),
        pytest.param(["-c", SERVICE], id="text"),
        pytest.param(["-m", "mine"], id="module"),
        pytest.param(["mine.py"], id="script"),
        pytest.param(["-c", CELL], id="notebook"),
    ],
)
def test_a_class_of_the_main_program_however_that_is_run(tmp_path: Path, how: list[str]) -> None:
    code = textwrap.dedent(SERVICE)
    (tmp_path / "mine.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *map(textwrap.dedent, how), unique("main")],
        input=code,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_worker_that_cannot_attach_says_why_and_leaves_no_traceback() -> None:
    code = """
        import errno, json, os, sys
        from sharedvector._producer import worker
        from sharedvector._producer.payload import Job
        from sharedvector._producer.spawn import open_parcel

        def full(job):
            raise OSError(errno.ENOSPC, "segment needs 4096 bytes")

        worker.attach_job = full
        job = Job(name="n", directory="/dev/shm", log_level=20, threads=1)
        read_end, write_end = os.pipe()
        with open_parcel(job, b"") as parcel:
            worker.work(parcel.fileno(), write_end, 3, os.getppid(), 5.0)
        print(json.loads(os.read(read_end, 4096)), flush=True)
    """
    status, out, err = run(code)
    assert (status, err) == (1, "")
    assert "'event': 'ended'" in out and "'worker': 3" in out
    assert "cannot attach to the pool: OSError: [Errno 28] segment needs 4096 bytes" in out


def test_a_supervisor_that_cannot_attach_tells_its_owner_at_once() -> None:
    code = """
        import errno, json, os, sys
        from sharedvector._producer import supervision
        from sharedvector._producer.payload import Job
        from sharedvector._producer.spawn import open_parcel

        def full(job):
            raise OSError(errno.ENOSPC, "segment needs 4096 bytes")

        supervision.attach_job = full
        job = Job(
            name="n", directory="/dev/shm", lock_dir="/dev/shm", slot_count=4, generation="g",
            source_size=8, num_producers=1, threads=1, sleep_seconds=0.0, join_timeout=1.0,
            log_level=20, seed=1,
        )
        read_end, write_end = os.pipe()
        events = os.pipe()
        with open_parcel(job, b"") as parcel:
            worker = os.posix_spawn("/bin/false", ["false"], {})
            status = supervision.supervise(
                parcel.fileno(), os.pidfd_open(os.getpid()), write_end, events, worker,
                lambda *more: os.posix_spawn("/bin/false", ["false"], {}),
            )
        print(status, os.read(read_end, 4096).decode())
    """
    status, out, err = run(code)
    assert status == 0, err
    assert out.startswith('1 {"event": "fatal"') and "[Errno 28] segment needs 4096 bytes" in out


# ---- hopeless starts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (Unloadable(), "cannot be made in the producer process.*left_at_home.*move the loader"),
        (Dies(), "3 times in a row.*exit status 7"),
        (Dies(3), "3 times in a row.*exit status 3"),
        (Dies(4), "3 times in a row.*exit status 4"),
        (Walkout(KeyboardInterrupt()), "3 times in a row.*the loader ended it: KeyboardInt"),
        (Walkout(BaseException("enough")), "3 times in a row.*ended it: BaseException: enough"),
    ],
)
def test_hopeless_workers_end_the_start_in_seconds(loader: Any, words: str) -> None:
    with pytest.raises(PoolSpawnError, match=words):
        ensure_pool(unique("dies"), 4, producer=spec(loader), ready_timeout=50)
    assert supervisors() == []


def test_workers_that_cannot_be_started_are_hopeless() -> None:
    code = """
        import json, os, sys, time
        from sharedvector import SharedVector
        from sharedvector._producer import supervision
        from sharedvector._producer.payload import EXIT_FATAL, Job

        def refuse(*arguments, **settings):
            raise OSError(11, "no more processes")

        name = sys.argv[1]
        vector = SharedVector(name, chunk_size=4096, slot_count=4, exclusive=True, owned=True)
        try:
            job = Job(
                name=name, directory=vector.directory, lock_dir="/dev/shm", slot_count=4,
                generation=vector.generation, source_size=8, num_producers=2, threads=1,
                sleep_seconds=0.0, join_timeout=1.0, log_level=20, seed=1,
            )
            read_end, write_end = os.pipe()
            began = time.monotonic()
            supervisor = supervision.Supervisor(job, -1, -1, write_end, os.pipe(), 0, refuse)
            status = supervisor.run()
            assert status == EXIT_FATAL and time.monotonic() - began < 50
            print(json.loads(os.read(read_end, 65536))["error"])
        finally:
            os.unlink(os.path.join(vector.directory, name))
    """
    status, out, err = run(code, unique("refused"))
    assert status == 0, err
    assert "3 times in a row" in out and "could not be started: [Errno 11] no more" in out
    assert "0/4 slots filled" in out


def test_a_worker_that_has_ended_is_not_ended_again_when_the_segment_is_gone() -> None:
    code = """
        import os, subprocess, sys
        from sharedvector import SharedVector
        from sharedvector._producer import supervision
        from sharedvector._producer.payload import EXIT_STALE, Job

        name = sys.argv[1]
        vector = SharedVector(name, chunk_size=4096, slot_count=4, exclusive=True, owned=True)
        os.unlink(os.path.join(vector.directory, name))
        job = Job(
            name=name, directory=vector.directory, lock_dir="/dev/shm", slot_count=4,
            generation=vector.generation, source_size=8, num_producers=1, threads=1,
            sleep_seconds=0.0, join_timeout=1.0, log_level=20, seed=1,
        )
        worker = os.posix_spawn("/bin/false", ["false"], {})
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
        owner_fd = os.pidfd_open(os.getpid())
        supervisor = supervision.Supervisor(job, -1, owner_fd, -1, os.pipe(), worker, None)
        print(supervisor.run() == EXIT_STALE)
    """
    status, out, err = run(code, unique("stale"))
    assert (status, out) == (0, "True\n"), err


def test_a_signal_that_was_held_back_does_not_end_a_supervisor_before_it_can_bury() -> None:
    code = """
        import os, signal, subprocess, sys, threading
        from sharedvector import SharedVector
        from sharedvector._producer.payload import Job
        from sharedvector._producer.spawn import open_parcel
        from sharedvector._producer.supervision import supervise

        name = sys.argv[1]
        vector = SharedVector(name, chunk_size=4096, slot_count=4, exclusive=True, owned=True)
        job = Job(
            name=name, directory=vector.directory, lock_dir="/dev/shm", slot_count=4,
            generation=vector.generation, source_size=8, num_producers=1, threads=1,
            sleep_seconds=0.0, join_timeout=1.0, log_level=20, seed=1,
        )
        owner = subprocess.Popen(["/bin/false"])
        owner_fd = os.pidfd_open(owner.pid)
        worker = os.posix_spawn("/bin/false", ["false"], {})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # NumPy's threads block nothing
        with open_parcel(job, b"") as parcel:
            status = supervise(parcel.fileno(), owner_fd, -1, os.pipe(), worker, None)
        print(status, os.path.exists(os.path.join(vector.directory, name)))
    """
    name = unique("held")
    try:
        status, out, err = run(code, name)
        assert (status, out) == (0, "0 False\n"), err
    finally:
        remove_shared_memory(name)


TOLD_TO_STOP = """
    import os, signal, subprocess, sys, threading
    from sharedvector import SharedVector, _core
    from sharedvector._producer import supervision
    from sharedvector._producer.payload import Job

    name, ending = sys.argv[1:]
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    vector = SharedVector(name, chunk_size=4096, slot_count=4, exclusive=True, owned=True)
    job = Job(
        name=name, directory=vector.directory, lock_dir="/dev/shm", slot_count=4,
        generation=vector.generation, source_size=8, num_producers=1, threads=1,
        sleep_seconds=0.0, join_timeout=1.0, log_level=20, seed=1,
    )
    true = lambda *arguments: os.posix_spawn("/bin/true", ["true"], {})
    supervisor = supervision.Supervisor(job, -1, os.pidfd_open(owner.pid), -1, os.pipe(), 0, true)
    if ending == "owner closes":
        vector.retire(_core.RETIRED_CLOSED)
    else:
        threading.Timer(0.5, owner.kill).start()
    os.kill(os.getpid(), signal.SIGTERM)
    print(supervisor.run(), os.path.exists(os.path.join(vector.directory, name)))
    owner.kill()
"""


def test_an_owner_that_dies_when_its_segment_is_gone_already_is_buried() -> None:
    """Also by a supervisor that has never seen the segment, and whose worker hangs."""
    code = """
        import os, subprocess, sys
        from sharedvector import OwnerLock, PoolPaths
        from sharedvector._producer import supervision
        from sharedvector._producer.payload import EXIT_STALE, Job

        name = sys.argv[1]
        paths = PoolPaths.for_name(name)
        if os.fork() == 0:  # an owner that has left its files
            lock = OwnerLock.try_acquire(paths, generation="a" * 32)
            lock.write_ready()
            os._exit(0)
        os.wait()
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        hung = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
        hung += "print(1, flush=True); time.sleep(600)"
        worker = subprocess.Popen([sys.executable, "-c", hung], stdout=subprocess.PIPE)
        worker.stdout.readline()
        owner = subprocess.Popen(sleep)
        job = Job(
            name=name, directory="/dev/shm", lock_dir=str(paths.lock_dir), slot_count=4,
            generation="a" * 32, source_size=8, num_producers=1, threads=1,
            sleep_seconds=0.0, join_timeout=600.0, log_level=20, seed=1,
        )
        pidfd = os.pidfd_open(owner.pid)
        supervisor = supervision.Supervisor(job, -1, pidfd, -1, os.pipe(), worker.pid, None)
        supervisor._look_from = 0.0
        end_workers = supervisor._end_workers

        def meanwhile_the_owner_dies(limit):
            owner.kill()
            end_workers(limit)

        supervisor._end_workers = meanwhile_the_owner_dies
        assert supervisor.run() == EXIT_STALE
        print(os.path.exists(paths.lock), os.path.exists(paths.marker))
    """
    name = unique("unseen")
    try:
        assert run(code, name)[:2] == (0, "False False\n")
        assert files(name) == []
    finally:
        for path in (PoolPaths.for_name(name).lock, PoolPaths.for_name(name).marker):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(("ending", "there"), [("owner dies", False), ("owner closes", True)])
def test_a_supervisor_that_is_told_to_stop_does_so_when_its_owner_has_closed_or_died(
    ending: str, there: bool
) -> None:
    name = unique("told")
    try:
        status, out, err = run(TOLD_TO_STOP, name, ending)
        assert (status, out) == (0, f"0 {there}\n"), err
        assert files(name) == ([name] if there else [])
    finally:
        remove_shared_memory(name)


def test_sigterm_to_the_supervisor_alone_pauses_nothing(handles: list[PoolHandle]) -> None:
    handles.append(ensure_pool(unique("alone"), 4, producer=spec(), ready_timeout=50))
    supervisor = supervisor_of_this_process()
    found = wait_for(workers)
    os.kill(supervisor, signal.SIGTERM)
    assert refreshes(handles[0].attach(), count=10)
    assert (supervisors(), workers()) == ([supervisor], found)


def test_a_supervisor_told_to_stop_before_it_is_up_still_buries_its_owner() -> None:
    code = """
        import os, signal, subprocess, sys
        from pool_support import Silent, spec
        from sharedvector import ensure_pool

        class Told(subprocess.Popen):
            def __init__(self, *arguments, **settings):
                super().__init__(*arguments, **settings)
                self.send_signal(signal.SIGTERM)
                os._exit(7)

        subprocess.Popen = Told
        ensure_pool(sys.argv[1], 4, producer=spec(Silent(4)), ready_timeout=100)
    """
    name = unique("early")
    status, _, err = run(code, name)
    assert status == 7, err
    wait_for(lambda: not files(name))


def test_an_interrupted_start_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = signal.pthread_sigmask

    def interrupted(how: int, signals: Any) -> set[int]:
        before = mask(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return before

    before = mask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_supervisor(-1, -1, -1, 1.0)
    assert mask(signal.SIG_SETMASK, before) == before


def test_a_wrong_dtype_ends_the_start_after_a_few_sources(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(PoolSpawnError, match=r"of 5000 sources tried .*uint8") as found:
        ensure_pool(unique("unfit"), 4, producer=spec(Unfit(5000)), ready_timeout=100)
    # Without the rule for settings it takes at least 16; a slow supervisor may see a few too many.
    (tried,) = re.findall(r"no chunk from (\d+) of", str(found.value))
    assert 6 <= int(tried) < 16
    assert 1 <= capfd.readouterr().err.count("could not be stored") <= 2


def test_the_loader_may_say_why_it_gives_nothing() -> None:
    with pytest.raises(PoolSpawnError, match="an empty list: volume x has 3 slices"):
        ensure_pool(unique("silent"), 4, producer=spec(Silent()), ready_timeout=50)


def test_a_crash_now_and_then_is_survived(handles: list[PoolHandle]) -> None:
    producer = spec(DiesOnce(), num_producers=2)
    handle = ensure_pool(unique("once"), 4, producer=producer, ready_timeout=50)
    handles.append(handle)
    vector = handle.attach()
    assert refreshes(vector)
    wait_for(lambda: vector.counter_add(_core.COUNTER_RESTARTS, 0) > 0)
    assert refreshes(vector)


# ---- living together ---------------------------------------------------------------------------


def test_the_supervisor_has_a_session_of_its_own(handles: list[PoolHandle]) -> None:
    handles.append(ensure_pool(unique("sid"), 4, producer=spec(), ready_timeout=50))
    supervisor = supervisor_of_this_process()
    (worker,) = wait_for(lambda: workers(supervisor))
    assert os.getsid(supervisor) == os.getsid(worker) == supervisor != os.getsid(0)


def test_ends_quietly_and_leaves_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    handle = ensure_pool(unique("quiet"), 4, producer=spec(Noisy()), ready_timeout=50)
    supervisor = supervisor_of_this_process()
    found = wait_for(lambda: workers(supervisor))
    os.kill(supervisor, signal.SIGINT)  # ignored
    assert refreshes(handle.attach())
    handle.close()
    assert not any(alive(pid) for pid in [supervisor, *found])
    out, err = capfd.readouterr()
    assert out == ""  # a loader's prints go to standard error
    assert set(err.splitlines()) <= {"loader speaking"}


def test_the_loader_knows_its_worker(handles: list[PoolHandle]) -> None:
    producer = spec(Noisy(), num_producers=2)
    handles.append(ensure_pool(unique("ids"), 8, producer=producer, ready_timeout=50))
    vector = handles[0].attach()
    wait_for(lambda: {vector.get(slot).flat[0] for slot in range(8)} == {0, 1})


def test_a_worker_that_does_not_listen_is_killed_in_time() -> None:
    producer = spec(Stubborn(), producer_join_timeout=0.5)
    handle = ensure_pool(unique("deaf"), 4, producer=producer, ready_timeout=50)
    found = wait_for(lambda: workers(supervisor_of_this_process()))
    handle.close()
    assert not any(alive(pid) for pid in found)


CLOSING = """
    import os, sys
    from pool_support import Stubborn, deaf, files, spec, wait_for, workers
    from sharedvector import ensure_pool

    name = sys.argv[1]
    producer = spec(Stubborn(), num_producers=2, producer_join_timeout=600)
    handle = ensure_pool(name, 2, producer=producer, ready_timeout=50)
    supervisor = handle._reign._supervisor.pid
    found = lambda: workers(supervisor)
    wait_for(lambda: len(found()) == 2 and all(map(deaf, found())))  # both hang
    print(supervisor, flush=True)
    try:
        handle.close()
    except KeyboardInterrupt:
        print("interrupted", files(name), flush=True)
        handle.close()
    print("closed", files(name))
"""


@contextlib.contextmanager
def closing(name: str) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """An owner that waits in its close() for two workers that hang, its supervisor, and them."""
    with running(CLOSING, name) as owner:
        supervisor = int(owner.first_line)  # type: ignore[attr-defined]
        found = workers(supervisor)
        assert len(found) == 2
        wait_for(lambda: name not in files(name))
        yield owner, supervisor, found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_owner_that_dies_while_it_closes_leaves_nothing(number: int) -> None:
    name = unique("closing")
    with closing(name) as (owner, supervisor, found):
        time.sleep(0.5)
        assert alive(supervisor)  # it gives the workers their time
        owner.send_signal(number)
        wait_for(lambda: files(name) == [])
        wait_for(lambda: not any(alive(pid) for pid in [supervisor, *found]))


def test_an_interrupted_close_is_finished_by_the_next() -> None:
    name = unique("again")
    with closing(name) as (owner, supervisor, found):
        assert owner.stdout is not None
        owner.send_signal(signal.SIGINT)
        # The end goes on, in a thread that no interrupt meets: the lock is given up last.
        assert owner.stdout.readline() == f"interrupted {[f'{name}.lock']}\n"
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        out, err = owner.communicate(timeout=LIMIT)
        assert (owner.returncode, out) == (0, "closed []\n"), err
        assert not any(alive(pid) for pid in [supervisor, *found])


def test_a_loader_that_swallows_the_end_delays_it_by_one_source_at_most() -> None:
    producer = spec(Swallower(), producer_join_timeout=100)
    handle = ensure_pool(unique("swallow"), 2, producer=producer, ready_timeout=50)
    began = time.monotonic()
    handle.close()
    assert time.monotonic() - began < 50


def test_further_sigterms_do_not_cut_the_end_short(handles: list[PoolHandle]) -> None:
    producer = spec(Swallower(), producer_join_timeout=20)
    handles.append(ensure_pool(unique("twice"), 2, producer=producer, ready_timeout=50))
    (worker,) = wait_for(workers)
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGTERM)
    wait_for(lambda: not alive(worker))
    assert refreshes(handles[0].attach())  # by the next one


INTERRUPTED = """
    import asyncio, contextlib, sys, threading
    from pool_support import Constant, spec
    from sharedvector import ensure_pool

    class Async(Constant):
        loop = None

        def __getstate__(self):
            return {**self.__dict__, "loop": None}

        def __call__(self, index):
            if self.loop is None:
                import atexit
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True).start()
                atexit.register(self.shut)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), self.loop).result()
            return super().__call__(index)

        def shut(self):
            self.loop.call_soon_threadsafe(self.loop.stop)
            raise RuntimeError("an event loop with work in it")

    producer = spec(Async(), sleep_seconds=0)
    with ensure_pool(sys.argv[1], 2, producer=producer, ready_timeout=50) as handle:
        print(len(handle.attach()))
"""


def test_an_end_in_the_middle_of_a_source_is_quiet() -> None:
    status, out, err = run(INTERRUPTED, unique("midst"))
    assert (status, out, err) == (0, "2\n", "")


def test_the_package_may_come_from_a_path_added_by_hand(tmp_path: Path) -> None:
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from added_by_hand import Late
        from sharedvector import ProducerSpec, ensure_pool
        producer = ProducerSpec(Late(), 4096)
        with ensure_pool(sys.argv[1], 2, producer=producer, ready_timeout=50) as handle:
            print(len(handle.attach()))
    """
    (tmp_path / "added_by_hand.py").write_text(
        "from pool_support import Constant\n\n\nclass Late(Constant):\n    pass\n"
    )
    status, out, err = run(code, unique("path"))
    assert (status, out) == (0, "2\n"), err


def test_a_file_beside_the_working_directory_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('shadowed')")
    code = """
        import sys
        from pool_support import spec
        from sharedvector import ensure_pool
        with ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50) as handle:
            print(len(handle.attach()))
    """
    script = tmp_path / "elsewhere.py"
    script.write_text("\n".join(line[8:] for line in code.splitlines()))
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-P", str(script), unique("cwd")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


# ---- what the surroundings may be like ---------------------------------------------------------


def test_a_process_with_many_open_files_owns_a_pool() -> None:
    code = """
        import os, resource, signal, sys
        from pool_support import refreshes, spec, supervisors, wait_for
        from sharedvector import ensure_pool
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        with ensure_pool(sys.argv[1], 4, producer=spec(), ready_timeout=50) as handle:
            for _ in range(2):
                (supervisor,) = wait_for(supervisors)
                os.kill(supervisor, signal.SIGKILL)
                wait_for(lambda: supervisors() not in ([], [supervisor]))
            print(refreshes(handle.attach()), handle.is_owner)
    """
    status, out, err = run(code, unique("fds"))
    assert (status, out) == (0, "True True\n"), err


PATHS = """
    import os, pathlib, sys, tempfile
    from pool_support import HERE, spec, unique
    from sharedvector import ProducerSpec, ensure_pool

    place = sys.argv[2]
    {change}
    from lies_elsewhere import Late
    {then}
    producer = ProducerSpec(Late(), 4096, num_producers=1)
    with ensure_pool(sys.argv[1], 2, producer=producer, ready_timeout=50) as handle:
        print(len(handle.attach()))
"""


@pytest.mark.parametrize(
    ("change", "then"),
    [
        ("sys.path += [place, pathlib.Path(place), None, b'/bytes']", ""),
        ("sys.path += [place, *(f'/opt/{i:05d}/' + 'long' * 12 for i in range(2500))]", ""),
        ("os.chdir(place); sys.path.insert(0, '.')", "os.chdir('/')"),
        ("os.chdir(place); sys.path.insert(0, '')", ""),
        (
            "sys.path.append(place)",
            "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone); sys.path.append('here'); "
            "os.environ['PYTHONPATH'] += os.pathsep",
        ),
    ],
)
def test_the_import_path_may_be_as_python_allows_it(tmp_path: Path, change: str, then: str) -> None:
    (tmp_path / "lies_elsewhere.py").write_text(
        "from pool_support import Constant\n\n\nclass Late(Constant):\n    pass\n"
    )
    code = textwrap.dedent(PATHS).format(change=change, then=then)
    status, out, err = run(code, unique("paths"), str(tmp_path))
    assert (status, out) == (0, "2\n"), err


def test_an_environment_that_is_too_large_is_named() -> None:
    code = """
        import os, sys
        from pool_support import spec
        from sharedvector import PoolSpawnError, ensure_pool
        os.environ["OVERLONG"] = "x" * 200_000
        try:
            ensure_pool(sys.argv[1], 2, producer=spec(), ready_timeout=50)
        except PoolSpawnError as error:
            print(error)
    """
    status, out, err = run(code, unique("env"))
    assert status == 0 and "OVERLONG, has 200000 bytes" in out, out + err
