"""The thread that makes batches ahead: order, errors, ends, forks, exits."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from core_support import in_child
from pool_support import run, wait_for

from sharedvector.training import prefetch
from sharedvector.training.prefetch import feed


def counter() -> Callable[[], int]:
    return itertools.count().__next__


def feeders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sharedvector-feed"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Any:
    yield
    gc.collect()
    wait_for(lambda: not feeders())


@pytest.mark.parametrize(("count", "depth"), [(0, 1), (1, 1), (20, 1), (20, 3), (3, 10)])
def test_all_in_order(count: int, depth: int) -> None:
    assert list(feed(counter(), count, depth)) == list(range(count))


def test_makes_so_many_ahead() -> None:
    make = counter()
    things = feed(make, 100, 3)
    assert not feeders()  # nothing happens before the first step
    assert next(things) == 0
    wait_for(lambda: things.gi_frame.f_locals["state"]._made.__len__() == 3)  # type: ignore[attr-defined]
    time.sleep(0.05)
    assert make() == 4


def test_keeps_nothing_that_was_taken() -> None:
    class Thing:
        pass

    things = feed(Thing, 10, 2)
    thing = next(things)
    gone = weakref.ref(thing)
    del thing
    assert gone() is None
    next(things)


def test_what_is_taken_is_not_kept_by_a_thread_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread still is where it has handed a thing over when that is taken and dropped."""

    class Thing:
        pass

    class Pausing(threading.Condition):
        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            if threading.current_thread().name == "sharedvector-feed":
                time.sleep(0.2)

    own = types.SimpleNamespace(Condition=Pausing, Thread=threading.Thread)
    monkeypatch.setattr(prefetch, "threading", own)
    things = feed(Thing, 2, 1)
    thing = next(things)
    gone = weakref.ref(thing)
    del thing
    assert gone() is None


def test_error_comes_at_once() -> None:
    numbers = counter()
    taken = threading.Event()

    def make() -> int:
        number = numbers()
        if number == 3:
            taken.wait(20)
            raise OSError("number 3 is damaged")
        return number

    things = feed(make, 10, 5)
    assert next(things) == 0
    taken.set()
    wait_for(lambda: not feeders())
    with pytest.raises(OSError, match="number 3 is damaged"):
        next(things)  # though 1 and 2 were made
    assert list(things) == []


def test_error_keeps_nothing_alive() -> None:
    class Heavy:
        pass

    alive: list[weakref.ref[Heavy]] = []

    def make() -> None:
        heavy = Heavy()
        alive.append(weakref.ref(heavy))
        raise OSError

    gc.disable()
    try:
        with pytest.raises(OSError):
            next(feed(make, 1, 1))
        wait_for(lambda: not feeders())  # its frame has the error, too
        assert alive[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["close", "drop", "cycle", "unstarted"])
def test_abandoned_half_way(end: str) -> None:
    things = feed(counter(), 10**9, 2)
    if end != "unstarted":
        assert next(things) == 0
        assert len(feeders()) == 1
    if end == "close":
        things.close()  # type: ignore[attr-defined]
    if end == "cycle":
        cycle: list[Any] = [things]
        cycle.append(cycle)
        del cycle
    del things
    gc.collect()
    wait_for(lambda: not feeders())


def test_interrupted_while_the_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(feed(counter(), 10**9, 2))
    wait_for(lambda: not feeders())


def test_waits_for_the_thread() -> None:
    def slow() -> int:
        time.sleep(0.2)
        return 1

    assert list(feed(slow, 3, 1)) == [1, 1, 1]


def test_forked_child_cannot_go_on() -> None:
    make = counter()
    things = feed(make, 1000, 2)
    next(things)

    def child() -> None:
        with pytest.raises(RuntimeError, match="belongs to the parent process"):
            next(things)
        assert list(feed(counter(), 5, 2)) == [0, 1, 2, 3, 4]

    assert in_child(child) == 0

    def child_drops() -> None:
        nonlocal things
        del things

    assert in_child(child_drops) == 0
    assert next(things) == 1


def test_interpreter_exits() -> None:
    code = """
    import atexit, time
    atexit.register(lambda: print(time.monotonic() - ended < 9))  # after what the package does
    from sharedvector.training.prefetch import feed
    def make():
        time.sleep(0.01)
        return 1
    waiting, working = feed(make, 10**9, 2), feed(make, 10**9, 10**9)
    next(waiting), next(working)
    ended = time.monotonic()
    """
    assert run(code) == (0, "True\n", "")  # it waits up to 10 s for a thread that does not end
