"""What a loader has started ends with its worker, however worker, supervisor and owner end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pool_support import (
    Constant,
    alive,
    children,
    files,
    refreshes,
    running,
    spec,
    supervisors,
    unique,
    wait_for,
    workers,
)

from sharedvector import Chunk, PoolHandle, ensure_pool

MARK = "SHAREDVECTOR_TEST_MARK"
DAEMON = """
import os, signal, time
if os.fork():
    os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(600)
time.sleep(600)
"""


class Parent(Constant):
    """Starts something at its first source."""

    started: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "started": None}

    def __call__(self, source_index: int) -> list[Chunk]:
        if self.started is None:
            self.started = self.start()
        return super().__call__(source_index)

    def start(self) -> Any:
        return subprocess.Popen(["sleep", "600"])


class OfPool(Parent):
    def start(self) -> Any:
        made = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        made.submit(os.getpid).result()
        return made


class OfDaemon(Parent):
    """In sessions of their own, deaf to SIGTERM, and orphans from the start."""

    def start(self) -> Any:
        return subprocess.run([sys.executable, "-c", DAEMON], check=True)


class Closing(Parent):
    """Says how it was ended."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    def start(self) -> Any:
        import atexit

        atexit.register(self.say, "exit function")
        return True

    def say(self, what: str) -> None:
        with open(f"{self.told}-{os.getpid()}", "a") as file:
            print(what, file=file, flush=True)

    def close(self) -> None:
        self.say("close")


class Exiting(Closing):
    close: Any = None

    def __exit__(self, *error: object) -> None:
        self.say(f"__exit__{error}")


class Hanging(Closing):
    def close(self) -> None:
        self.say("close")
        time.sleep(600)


def marked(mark: str) -> list[int]:
    """Living processes that carry a mark in their environment, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return [pid for pid in found if alive(pid)]


OWNER = f"""
    import os, sys, time
    import test_guard
    from pool_support import spec
    from sharedvector import ensure_pool

    name, loader = sys.argv[1:]
    os.environ["{MARK}"] = name
    producer = spec(getattr(test_guard, loader)(), num_producers=2)
    handle = ensure_pool(name, 4, producer=producer, ready_timeout=50)
    print("up", flush=True)
    sys.stdin.readline()
    handle.close()
    print("closed", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("loader", ["Parent", "OfPool", "OfDaemon"])
@pytest.mark.parametrize("ending", ["close", "owner", "supervisor", "workers", "guards"])
def test_nothing_that_a_loader_has_started_outlives_its_worker(loader: str, ending: str) -> None:
    name = unique("brood")
    with running(OWNER, name, loader, stdin=subprocess.PIPE) as owner:
        (supervisor,) = supervisors(owner.pid)
        guards = children(supervisor)
        found = workers(supervisor)
        before = wait_for(lambda: set(marked(name)) - {supervisor, *guards, *found})
        if ending == "close":
            assert owner.stdin is not None and owner.stdout is not None
            print(file=owner.stdin, flush=True)
            assert owner.stdout.readline() == "closed\n"
            assert marked(name) == []
            return
        victims = {"owner": [owner.pid], "supervisor": [supervisor], "workers": found}
        for pid in victims.get(ending, guards):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in {*before, *found}))
        if ending != "owner":
            wait_for(lambda: supervisors(owner.pid))  # again, or still
    wait_for(lambda: marked(name) == [] and files(name) == [])


@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize(
    ("loader", "wanted"),
    [
        (Closing, ["close", "exit function"]),
        (Exiting, ["__exit__(None, None, None)", "exit function"]),
    ],
)
def test_a_loader_is_closed_and_exit_functions_run(
    tmp_path: Path, kind: Any, loader: type[Closing], wanted: list[str]
) -> None:
    producer = spec(loader(str(tmp_path / "told")), producer_kind=kind)
    with ensure_pool(unique("closed"), 4, producer=producer, ready_timeout=50):
        pass
    (told,) = tmp_path.iterdir()
    assert told.read_text().splitlines() == wanted


def test_a_loader_that_does_not_close_holds_nothing_up(tmp_path: Path) -> None:
    producer = spec(Hanging(str(tmp_path / "told")), producer_join_timeout=2.0)
    handle = ensure_pool(unique("hangs"), 4, producer=producer, ready_timeout=50)
    began = time.monotonic()
    handle.close()
    assert time.monotonic() - began < 50
    (told,) = tmp_path.iterdir()
    assert told.read_text() == "close\n"


def test_a_worker_that_is_told_by_others_is_replaced(handles: list[PoolHandle]) -> None:
    handles.append(ensure_pool(unique("told"), 4, producer=spec(), ready_timeout=50))
    (before,) = wait_for(workers)
    os.kill(before, signal.SIGTERM)
    wait_for(lambda: workers() not in ([], [before]))
    assert refreshes(handles[0].attach())
