"""The open handles of a process: one per pool, who uses it, and in what order threads close it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from sharedvector._common import Work, check_wanted, current_work, leave_aside
from sharedvector._coordination import PoolBusyError, PoolPaths

CLOSING_LIMIT = 15.0  # seconds, beyond what the producer may take to end
_LOOK_EVERY = 0.1  # seconds between two looks whether one is still waited for


class Turn:
    """Lets one thread at a time close a pool: the others wait until it is gone.

    A forked child does not wait for a thread that it does not have. Only `aside` takes it, so that
    no interrupt can keep it.
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


class Users:
    """Who uses the handle that a process has on a pool.

    Attributes:
        blocks: open `pool` blocks.
        entered: open ``with`` blocks of the handle.
        calls: of `ensure_pool`, made while no block was open, that have not become one.
        of_block: a `pool` block has opened the handle: then the last block's end is the pool's.
        over: the last user has gone, and the handle is being closed.
    """

    def __init__(self) -> None:
        self.blocks: set[object] = set()
        self.entered = 0
        self.calls: set[object] = set()
        self.of_block = False
        self.over = False


class Handle(Protocol):
    """What is registered: a `PoolHandle`."""

    _paths: PoolPaths
    _users: Users

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


H = TypeVar("H", bound=Handle)


class Use(Generic[H]):
    """One user of a handle. It leaves at the latest when it is dropped.

    Args:
        block: a `pool` block; else a call of `ensure_pool`.

    Attributes:
        handle: set by the thread that has found or made it; None again when this has left.
        stays: dropping it does not end it.
    """

    handle: H | None = None
    stays = False

    def __init__(self, registry: Registry[H], block: bool) -> None:
        self.block = block
        self.token = object()
        self._registry = registry
        self._pid = os.getpid()

    def leave(self) -> None:
        """Close the handle if this was the last to use it. To be repeated after an interrupt."""
        handle = self.handle
        if handle is not None:
            if self._registry.leave(handle, self.token):
                handle.close()
            self.handle = None

    def drop(self) -> None:
        """As `leave`, without waiting."""
        handle, self.handle = self.handle, None
        ours = self._pid == os.getpid()
        if handle is not None and ours and self._registry.leave(handle, self.token):
            leave_aside(handle.close)

    def __del__(self) -> None:
        if self.handle is not None and not self.stays:
            self.drop()


class Registry(Generic[H]):
    """The open handles of this process: one per pool."""

    def __init__(self) -> None:
        # Reentrant: a signal's handler or the garbage collector may end a block of this thread.
        self._mutex = threading.RLock()
        self._handles: dict[tuple[str, str], H] = {}
        self._gates: dict[tuple[str, str], threading.Lock] = {}
        self._makers: dict[tuple[str, str], Work[Any] | None] = {}
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
        self._makers = {}

    @staticmethod
    def key(paths: PoolPaths) -> tuple[str, str]:
        return paths.name, os.path.realpath(paths.lock_dir)

    @contextlib.contextmanager
    def gate(self, paths: PoolPaths, deadline: float) -> Iterator[None]:
        """Let one thread of this process at a time elect the owner of a pool.

        Only `aside` enters, so that no interrupt can leave it shut.

        Raises:
            TimeoutError: another thread was there until the deadline.
            PoolBusyError: a handler or finaliser waits for the very call that it interrupts.
        """
        key = self.key(paths)
        with self._mutex:
            gate = self._gates.setdefault(key, threading.Lock())
        while not gate.acquire(timeout=max(0.0, min(deadline - time.monotonic(), _LOOK_EVERY))):
            check_wanted()
            ours, maker = current_work(), self._makers.get(key)
            if ours is not None and maker is not None and maker.waits_for_caller_of(ours):
                raise PoolBusyError(
                    f"pool {paths.name!r} is being made by this very thread, in a call that the "
                    "handler of a signal, or a finaliser, has interrupted by this one: let it "
                    "return first, or call from another thread"
                )
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"pool {paths.name!r} is not ready in time: another thread is making it"
                )
        self._makers[key] = current_work()
        try:
            yield
        finally:
            del self._makers[key]
            gate.release()

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

    def join(self, handle: H, use: Use[H]) -> bool:
        """Whether a handle may be given to a user: not when it, or its last user, ends."""
        users = handle._users
        with self._mutex:
            if users.over or handle.closed:
                return False
            use.handle = handle
            if use.block:
                users.blocks.add(use.token)
            elif not users.blocks and not users.entered:
                users.calls.add(use.token)
            return True

    def leave(self, handle: H, token: object) -> bool:
        """Take a user off; whether it was the last one. For a repeated call the answer stands."""
        users = handle._users
        with self._mutex:
            users.blocks.discard(token)
            users.calls.discard(token)
            return self._is_over(users)

    def enter(self, handle: H) -> None:
        """Begin a ``with`` block of a handle; it was a call of `ensure_pool` before, if any was."""
        users = handle._users
        with self._mutex:
            if users.calls:
                users.calls.pop()
            users.entered += 1

    def exit(self, handle: H) -> bool:
        """End a ``with`` block of a handle; whether nobody else uses it."""
        users = handle._users
        with self._mutex:
            users.entered -= 1
            return self._is_over(users)

    @staticmethod
    def _is_over(users: Users) -> bool:
        if not users.blocks and users.entered <= 0 and (users.of_block or not users.calls):
            users.over = True
        return users.over
