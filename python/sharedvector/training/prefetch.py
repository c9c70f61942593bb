"""A thread that makes things ahead of the one who takes them."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["feed"]

T = TypeVar("T")

_LOOK_SECONDS = 1.0  # between two looks whether the other side is still there
_EXIT_SECONDS = 10.0  # for the thread to end when the interpreter does


def feed(
    make: Callable[[], T], count: int, depth: int, prepare: Callable[[], object] | None = None
) -> Iterator[T]:
    """Yield what ``count`` calls of ``make`` return, made by a thread at most ``depth`` ahead.

    The thread calls ``prepare`` first.

    The thread starts with the first ``next`` and ends with the iterator: when it is exhausted,
    closed, dropped, or when the interpreter exits. What ``make`` raises ends the iterator at once,
    also when there are things made before. Nothing that was yielded is kept.

    Raises:
        RuntimeError: used in a forked child, which has no such thread.
    """
    state: _Feed[T] = _Feed(make, count, depth, prepare)
    try:
        state.start()  # an interrupt here must end the thread, too
        while state.wait_for_one():
            yield state.pop()
    finally:
        state.stop()


class _Feed(Generic[T]):
    def __init__(
        self,
        make: Callable[[], T],
        count: int,
        depth: int,
        prepare: Callable[[], object] | None,
    ) -> None:
        self._make = make
        self._prepare = prepare
        self._count = count
        self._depth = depth
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards what follows
        self._made: deque[T] = deque()
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="sharedvector-feed", daemon=True)

    def start(self) -> None:
        _feeds.add(self)
        self._thread.start()

    def wait_for_one(self) -> bool:
        """Wait until there is something to take; False when all was taken."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator belongs to the parent process; make a new one in the child: "
                "iter(loader)"
            )
        with self._changed:
            while True:
                if self._error is not None:
                    self._raise()
                if self._made:
                    return True
                if self._stopped:
                    return False
                if not self._thread.is_alive():
                    raise RuntimeError("the thread that makes the batches is gone")
                self._changed.wait(_LOOK_SECONDS)

    def _raise(self) -> None:
        # Kept here as well it would keep the thread's frames, and their batches, in a cycle.
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:
            del error

    def pop(self) -> T:
        with self._changed:
            self._changed.notify_all()
            return self._made.popleft()

    def stop(self) -> None:
        """End the thread; what is made and not taken is dropped."""
        if os.getpid() != self._pid:
            return  # the lock may be held by a thread that this process does not have
        with self._changed:
            self._stopped = True
            self._made.clear()
            self._changed.notify_all()

    def join(self) -> None:
        if os.getpid() == self._pid and self._thread.is_alive():
            self._thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
            for _ in range(self._count):
                if not self._wait_for_room():
                    return
                self._put(self._make())
        except BaseException as error:
            self._error = error
        finally:
            self._finish()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not self._stopped and len(self._made) >= self._depth:
                self._changed.wait(_LOOK_SECONDS)
            return not self._stopped

    def _put(self, thing: T) -> None:
        with self._changed:
            if not self._stopped:
                self._made.append(thing)
                del thing  # before it can be taken: this frame may live on for a while
                self._changed.notify_all()

    def _finish(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


_feeds: weakref.WeakSet[_Feed[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that copies must not outlive the memory that the interpreter takes apart."""
    feeds = list(_feeds)
    for state in feeds:
        state.stop()
    for state in feeds:
        state.join()
