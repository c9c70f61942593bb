"""The open handles of a process, and in what order its threads close them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from sharedvector._coordination import PoolPaths

CLOSING_LIMIT = 15.0  # seconds, beyond what the producer may take to end


class Turn:
    """Lets one thread at a time close a pool: the others wait until it is gone.

    A thread does not wait for itself (a signal handler of the user may close what is being closed),
    nor a forked child for a thread that it does not have.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.RLock()

    @contextlib.contextmanager
    def take(self, limit: float) -> Iterator[None]:
        """Wait for one's turn, at most ``limit`` seconds; then the block is run all the same."""
        ours = self._pid == os.getpid()
        taken = ours and self._mutex.acquire(timeout=min(limit, threading.TIMEOUT_MAX))
        try:
            yield
        finally:
            if taken:
                self._mutex.release()


class Handle(Protocol):
    """What is registered: a `PoolHandle`."""

    _paths: PoolPaths
    _blocks: int | None  # open pool() blocks; None: it was opened by none

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...


H = TypeVar("H", bound=Handle)


class Registry(Generic[H]):
    """The open handles of this process: one per pool."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or the garbage collector may end a block of this thread.
        self._mutex = threading.RLock()
        self._handles: dict[tuple[str, str], H] = {}
        self._gates: dict[tuple[str, str], threading.Lock] = {}
        self._inherited: set[tuple[str, str]] = set()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # A mutex may have been held by a thread that the child does not have. The handles stay
        # with the parent; a child never becomes the owner of a pool that its parent uses.
        self._mutex = threading.RLock()
        self._inherited |= self._handles.keys()
        self._inherited |= {key for key, gate in self._gates.items() if gate.locked()}
        self._handles = {}
        self._gates = {}

    @staticmethod
    def key(paths: PoolPaths) -> tuple[str, str]:
        return paths.name, os.path.realpath(paths.lock_dir)

    def gate(self, paths: PoolPaths) -> threading.Lock:
        """The lock under which this process elects, one thread at a time and pool."""
        key = self.key(paths)
        with self._mutex:
            return self._gates.setdefault(key, threading.Lock())

    def inherited(self, paths: PoolPaths) -> bool:
        return self.key(paths) in self._inherited

    def get(self, paths: PoolPaths) -> H | None:
        return self._handles.get(self.key(paths))

    def put(self, paths: PoolPaths, handle: H) -> None:
        self._handles[self.key(paths)] = handle

    def forget(self, handle: H) -> None:
        key = self.key(handle._paths)
        if self._handles.get(key) is handle:
            del self._handles[key]

    def enter(self, handle: H, *, count: bool) -> bool:
        """Whether a handle may be given out: not when it, or the last `pool` block on it, ends.

        Args:
            handle: an open one.
            count: it goes to such a block, which will `leave` it.
        """
        with self._mutex:
            if count and handle._blocks:
                handle._blocks += 1
            return handle._blocks != 0 and not handle.closed

    def leave(self, handle: H) -> bool:
        """Take one `pool` block off the count; whether it was the last one, which closes.

        Where no block has opened the handle they are not counted, and leave it open.
        """
        with self._mutex:
            if handle._blocks:
                handle._blocks -= 1
            return handle._blocks == 0
