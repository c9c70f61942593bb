"""Clean-up at exit and what a parent's death does, in real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest

from sharedvector.lifecycle import LifecycleGuard, ParentWatchdog, install_parent_death_signal


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of its own, at most 60 s."""
    code = "from sharedvector.lifecycle import *\nimport os, sys\n" + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def in_orphan(body: Callable[[int, Callable[[], None]], None], limit: float = 60.0) -> bytes:
    """Run body(pipe, set_up) in a child whose parent ends once ``set_up`` has been called.

    Returns what it writes until it ends, which it must in time.
    """
    reader, writer = os.pipe()
    waits, tells = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            try:
                os.close(reader)
                body(writer, lambda: (os.write(tells, b"."), None)[1])
            finally:
                os._exit(0)
        os.close(tells)
        os.read(waits, 1)
        os._exit(0)
    for fd in (writer, waits, tells):
        os.close(fd)
    os.waitpid(middle, 0)
    received = b""
    deadline = time.monotonic() + limit
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while poll.poll(max(0, int(1000 * (deadline - time.monotonic())))):
        part = os.read(reader, 100)
        if not part:
            os.close(reader)
            return received
        received += part
    os.close(reader)
    raise AssertionError(f"the orphan lives on after {limit} s and {received!r}")


def test_trigger_runs_once_armed_or_not() -> None:
    calls: list[int] = []
    guard = LifecycleGuard(lambda: calls.append(1))
    assert (guard.armed, guard.cleaned) == (False, False)
    guard.trigger()
    guard.trigger()
    assert (guard.armed, guard.cleaned, calls) == (False, True, [1])
    guard.arm()
    guard.trigger()
    assert calls == [1]
    guard.disarm()


def test_arm_and_disarm() -> None:
    calls: list[int] = []
    guard = LifecycleGuard(lambda: calls.append(1))
    guard.arm()
    guard.arm()
    assert guard.armed and not guard.cleaned
    guard.disarm()
    guard.disarm()
    assert not guard.armed and not guard.cleaned and not calls
    guard.arm()
    guard.trigger()
    assert (guard.armed, guard.cleaned, calls) == (False, True, [1])


def test_error_in_cleanup_goes_to_the_caller_once() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("cannot clean")

    guard = LifecycleGuard(fail)
    guard.arm()
    with pytest.raises(RuntimeError, match="cannot clean"):
        guard.trigger()
    guard.trigger()
    assert calls == [1] and guard.cleaned and not guard.armed


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_cleanup_is_done_again(interrupt: type[BaseException]) -> None:
    calls: list[int] = []

    def clean() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise interrupt

    guard = LifecycleGuard(clean)
    guard.arm()
    with pytest.raises(interrupt):
        guard.trigger()
    assert guard.armed and not guard.cleaned
    guard.trigger()
    guard.trigger()
    assert (calls, guard.armed, guard.cleaned) == ([1, 1], False, True)


def test_an_interrupted_cleanup_is_done_at_exit() -> None:
    done = run("""
        calls = []
        def clean():
            calls.append(1)
            print("call", len(calls))
            if len(calls) == 1:
                raise KeyboardInterrupt
        guard = LifecycleGuard(clean)
        guard.arm()
        try:
            guard.trigger()
        except KeyboardInterrupt:
            pass
    """)
    assert (done.returncode, done.stdout) == (0, "call 1\ncall 2\n"), done.stderr


def test_cleanup_may_trigger_again() -> None:
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        guard.trigger()

    guard = LifecycleGuard(again)
    guard.trigger()
    assert calls == [1]


def test_threads_clean_once_and_may_arm() -> None:
    calls: list[int] = []
    guard = LifecycleGuard(lambda: calls.append(1))
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(60)
        guard.arm()
        guard.trigger()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    guard.disarm()
    assert calls == [1]


def test_no_signal_handler_is_touched() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in signals]
    guard = LifecycleGuard(lambda: None)
    guard.arm()
    assert [signal.getsignal(number) for number in signals] == before
    guard.disarm()
    assert [signal.getsignal(number) for number in signals] == before


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise ValueError"])
def test_exit_cleans(end: str) -> None:
    done = run(f"""
        guard = LifecycleGuard(lambda: print("cleaned"))
        guard.arm()
        {end}
    """)
    assert done.stdout == "cleaned\n"


def test_exit_does_not_clean_when_disarmed() -> None:
    done = run("""
        guard = LifecycleGuard(lambda: print("cleaned"))
        guard.arm()
        guard.disarm()
    """)
    assert (done.returncode, done.stdout) == (0, "")


def test_forked_child_never_cleans_for_its_parent() -> None:
    done = run("""
        guard = LifecycleGuard(lambda: print("cleaned by owner", os.getpid() == owner, flush=True))
        owner = os.getpid()
        guard.arm()
        if os.fork() == 0:
            assert not guard.armed and not guard.cleaned
            guard.trigger()
            assert not guard.cleaned
            guard.disarm()
            sys.exit(0)
        assert os.wait()[1] == 0
    """)
    assert (done.returncode, done.stdout) == (0, "cleaned by owner True\n"), done.stderr


def test_child_that_arms_owns_its_copy() -> None:
    done = run("""
        owner = os.getpid()
        guard = LifecycleGuard(lambda: print("owner" if os.getpid() == owner else "child"))
        guard.arm()
        sys.stdout.flush()
        if os.fork() == 0:
            guard.arm()
            assert guard.armed
            sys.exit(0)
        assert os.wait()[1] == 0
    """)
    assert (done.returncode, done.stdout) == (0, "child\nowner\n"), done.stderr


def test_watchdog_sees_the_parent_go() -> None:
    def body(pipe: int, set_up: Callable[[], None]) -> None:
        watchdog = ParentWatchdog(lambda: (os.write(pipe, b"orphan"), None)[1], interval=0.05)
        watchdog.start()
        set_up()
        watchdog.join(60)
        os.write(pipe, b" ended" if not watchdog.is_alive() else b" hangs")

    assert in_orphan(body) == b"orphan ended"


def test_watchdog_stops_quietly() -> None:
    calls: list[int] = []
    watchdog = ParentWatchdog(lambda: calls.append(1), interval=0.02)
    assert watchdog.daemon
    watchdog.start()
    time.sleep(0.1)
    assert watchdog.is_alive()
    watchdog.stop()
    watchdog.join(60)
    assert not watchdog.is_alive() and not calls
    ParentWatchdog(lambda: None).stop()


@pytest.mark.parametrize("interval", [0, -1.0, float("nan")])
def test_watchdog_refuses_a_bad_interval(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        ParentWatchdog(lambda: None, interval)


def test_parent_death_signal_ends_the_child() -> None:
    def body(pipe: int, set_up: Callable[[], None]) -> None:
        os.write(pipe, b"set" if install_parent_death_signal() else b"refused")
        set_up()
        time.sleep(30)
        os.write(pipe, b" survived")

    assert in_orphan(body) == b"set"


def test_parent_death_signal_reports_a_bad_number() -> None:
    done = run("print(install_parent_death_signal(9999), install_parent_death_signal(0))")
    assert done.stdout == "False True\n"
