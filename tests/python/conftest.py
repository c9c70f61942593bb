"""Guards that stand around every test: nothing may stay behind in shared memory or running.

Each test fails if it leaves a file in shared memory whose name carries the id of its process. When
all tests have ended, the run fails if such a file, or a process that a test started, is still
there. On a machine that runs nothing else (``CI`` set), every new file of this user counts.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from pool_support import carries

if TYPE_CHECKING:
    from sharedvector import PoolHandle

# Files of an ended owner are gone within 10 s, on a machine that has nothing else to do.
GRACE_SECONDS = 60.0
# Set for this run and inherited by all that its tests start.
SESSION_VARIABLE = "SHAREDVECTOR_TEST_SESSION"

# Examples share two cores with other tests: the time of one says nothing. The same ones in every
# run, so that a failure is of the change at hand; HYPOTHESIS_SEED=random looks for new ones.
settings.register_profile(
    "sharedvector",
    deadline=None,
    derandomize=os.environ.get("HYPOTHESIS_SEED") != "random",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sharedvector")


def _shm_dir() -> Path:
    return Path(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm"))


def _shm_names() -> set[str]:
    """Names of this user's files in shared memory."""
    names = set()
    with os.scandir(_shm_dir()) as entries:
        for entry in entries:
            try:
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    names.add(entry.name)
            except FileNotFoundError:
                continue
    return names


def _wait_until_empty(look: Callable[[], list[str]]) -> list[str]:
    """What ``look`` still finds after the grace period; returns as soon as it finds nothing."""
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        found = look()
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def no_leftovers_in_shared_memory() -> Iterator[None]:
    """Fails the test that leaves a file, by name, and removes it for the tests that follow."""
    before = _shm_names()
    yield
    mine = {os.getpid()}

    def look() -> list[str]:
        return sorted(name for name in _shm_names() - before if carries(name, mine))

    left = _wait_until_empty(look)
    for name in left:
        (_shm_dir() / name).unlink(missing_ok=True)
    if left:
        pytest.fail(f"left in {_shm_dir()}: {', '.join(left)}", pytrace=False)


class _SessionGuard:
    """Compares shared memory and the process table before and after the whole run."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.before = _shm_names()
        self.pids = {os.getpid()}
        self.left: list[str] = []
        os.environ[SESSION_VARIABLE] = self.token

    def look(self) -> list[str]:
        strict = bool(os.environ.get("CI"))
        files = [
            f"file {_shm_dir() / name}"
            for name in sorted(_shm_names() - self.before)
            if strict or carries(name, self.pids)
        ]
        return files + self._processes()

    def _processes(self) -> list[str]:
        mark = f"{SESSION_VARIABLE}={self.token}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"process {entry.name}: {command.strip()[:200]}")
            except OSError:
                continue  # ended meanwhile, or not ours
        return found


_guard: _SessionGuard | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Starts the guard in the process that runs the tests, or starts those that do."""
    global _guard
    if not hasattr(session.config, "workerinput"):
        _guard = _SessionGuard()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: object) -> None:
    """Learns the process ids that tests put into their names under xdist."""
    pid = getattr(node, "workerinfo", {}).get("pid")
    if _guard is not None and pid is not None:
        _guard.pids.add(int(pid))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Makes the run fail when something stayed behind."""
    if _guard is None:
        return
    _guard.left = _wait_until_empty(_guard.look)
    if _guard.left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what stayed behind."""
    if _guard is not None and _guard.left:
        terminalreporter.section("left behind by the tests", red=True)
        for line in _guard.left:
            terminalreporter.line(line)


@pytest.fixture
def handles() -> Iterator[list[PoolHandle]]:
    """Handles that the test puts here are closed after it."""
    made: list[PoolHandle] = []
    yield made
    for handle in made:
        handle.close()
