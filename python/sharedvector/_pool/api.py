"""Use a pool, whoever owns it: every process of a node may run the same line."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal, Self, get_args

from sharedvector._common import aside, check_wanted, here_or_aside, in_caller, integer, seconds
from sharedvector._coordination import OwnerLock, PoolPaths, attach
from sharedvector._pool.config import PoolConfig, ProducerSpec
from sharedvector._pool.election import check_wishes, elect, follow
from sharedvector._pool.owner import Reign
from sharedvector._pool.registry import CLOSING_LIMIT, Registry, Turn, Use, Users
from sharedvector.stats import PoolStats, collect_stats, leads_to
from sharedvector.vector import PoolStalledError, SharedVector

__all__ = [
    "Mode",
    "PoolGoneError",
    "PoolHandle",
    "ensure_pool",
    "pool",
]

Mode = Literal["attach", "spawn", "auto"]

logger = logging.getLogger("sharedvector")


class PoolGoneError(PoolStalledError, FileNotFoundError):
    """The pool of a handle is not there any more: its owner has closed it or died."""


class PoolHandle:
    """A pool as one process sees it; made by `ensure_pool`.

    The owner's `close` (or its end) takes the pool down; a follower's only forgets it. A pickled
    copy, and the copy in a forked child, are followers.

    Args:
        paths: of the pool.
        slot_count: slots that were asked for.
        generation: of the pool; None: whatever is there.
        lock: the owner lock, to be released by `close`; None: a follower, or kept by
            ``supervisor``.
        supervisor: what keeps the pool alive in its owner.
        join_timeout: seconds that `close` waits for another thread that is closing the pool.
    """

    def __init__(
        self,
        paths: PoolPaths,
        slot_count: int,
        generation: str | None,
        lock: OwnerLock | None = None,
        supervisor: Reign | None = None,
        join_timeout: float = CLOSING_LIMIT,
    ) -> None:
        self._paths = paths
        self._slot_count = slot_count
        self._generation = generation
        self._lock = lock
        self._reign = supervisor
        self._vector: SharedVector | None = None  # kept from the first use on
        self._last_stats: PoolStats | None = None
        self._closed = False
        self._turn = Turn()
        self._turn_limit = join_timeout
        self._users = Users()

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._paths.name

    @property
    def slot_count(self) -> int:
        """Slots that were asked for; the pool may have more."""
        return self._slot_count

    @property
    def lock_dir(self) -> Path:
        """Directory of the coordination files."""
        return self._paths.lock_dir

    @property
    def generation(self) -> str | None:
        """Token of the owner's reign."""
        return self._generation

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the pool through this handle."""
        if self._reign is not None:
            return self._reign.held
        return self._lock is not None and self._lock.held

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def attach(self) -> SharedVector:
        """Attach to the pool's segment.

        Raises:
            PoolGoneError: the pool is gone. It is a PoolStalledError and a FileNotFoundError.
            PoolStalledError: the pool was made anew by another owner, or is not refreshed any more.
        """
        try:
            vector = attach(self._paths)
        except FileNotFoundError:
            raise PoolGoneError(
                f"pool {self.name!r} is gone: its owner has closed it or died, or another program "
                "has removed its file; start it again with ensure_pool"
            ) from None
        if self._generation is not None and vector.generation != self._generation:
            raise PoolStalledError(
                f"pool {self.name!r} was made anew by another owner; call ensure_pool again"
            )
        if vector.retired:
            raise PoolStalledError(
                f"pool {self.name!r} is not refreshed any more: {vector.retired_reason}; start it "
                "again with ensure_pool"
            )
        return vector

    def stats(self) -> PoolStats:
        """Return the pool's statistics; after its end, or `close`, the last ones.

        Raises:
            PoolGoneError: the pool is gone and this handle never saw it.
        """
        vector = self._vector
        if vector is None:
            if self._last_stats is not None:
                return self._last_stats
            vector = self.attach()
            if not self._closed:
                self._vector = vector
        return collect_stats(vector)

    def close(self) -> None:
        """Owner: stop the producer and remove the pool; those attached keep their data.
        Follower: forget it. Harmless when repeated.

        While another thread closes it, this waits until the pool is gone, at most as long as the
        producer may take to end and some seconds. An interrupt ends the wait only: the pool goes
        all the same, and a further call, or the end of the process, waits for that again.
        """
        self._closed = True
        here_or_aside(lambda: self._close(self._turn_limit))

    def _close(self, limit: float) -> None:
        self._closed = True
        with self._turn.take(limit):
            try:
                if self._vector is not None:
                    vector = self._vector
                    with contextlib.suppress(Exception):  # a damaged pool has to be closed too
                        self._last_stats = in_caller(lambda: collect_stats(vector))
                    self._vector = None
                if self._reign is not None:
                    self._reign.close()
                elif self._lock is not None:
                    self._lock.release()
            finally:
                # Not before: who asks for the pool meanwhile should not follow what is going.
                _registry.forget(self)

    def _usable(self) -> SharedVector | None:
        """The segment, if a second `ensure_pool` may return this handle."""
        vector = self._vector
        over = self._closed or vector is None or vector.retired or not leads_to(vector)
        return None if over else vector

    def __enter__(self) -> Self:
        """Return the handle."""
        _registry.enter(self)
        return self

    def __exit__(self, exc_type: object, exc: object, tb: object) -> None:
        """Close it, unless others of this process use it: see `ensure_pool`."""
        if _registry.exit(self):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a follower needs."""
        return {
            "paths": self._paths,
            "slot_count": self._slot_count,
            "generation": self._generation,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a follower."""
        PoolHandle.__init__(self, **state)

    def __repr__(self) -> str:
        """Name, slots, and what this process is to the pool."""
        part = "closed" if self._closed else "owner" if self.is_owner else "follower"
        return f"PoolHandle(name={self.name!r}, slot_count={self.slot_count}, {part})"


_registry: Registry[PoolHandle] = Registry()


def ensure_pool(
    name: str,
    slot_count: int,
    *,
    producer: ProducerSpec | None = None,
    mode: Mode = "auto",
    ready_timeout: float = 600.0,
    poll_interval: float = 0.1,
    lock_dir: Path | str | None = None,
) -> PoolHandle:
    """Return a handle on the pool ``name`` once it is filled; make the pool if need be.

    Any number of processes of a node may call this at once, from any thread: one becomes the
    owner, whose end also ends the pool, and the others follow. No signal handler is installed.
    A forked child follows pools that its parent had open and never becomes the owner of one of
    their names.

    A second call in a process returns the same handle while it is open. ``with`` blocks of the
    handle, and `pool` blocks, share it: the last one to end closes the pool. It stays open for a
    call that was made outside of such blocks and does not begin one. `PoolHandle.close` closes it
    for all at once.

    Args:
        name: of the pool.
        slot_count: slots that are needed; a pool that lives already may have more.
        producer: how to feed the pool; needed unless ``mode`` is "attach".
        mode: "attach" waits for a pool that others make. "auto" follows a living pool, else makes
            it. "spawn" tries to become the owner first.
        ready_timeout: seconds until the pool must be filled.
        poll_interval: seconds between two looks while waiting.
        lock_dir: directory of the coordination files; None takes ``$SHAREDVECTOR_LOCK_DIR``, else
            /dev/shm. Must be local to the node.

    Raises:
        ValueError: a bad name, mode or setting; no ``producer``; another ``slot_count`` than in
            the call before; or the ready pool has fewer slots, smaller chunks or another dtype.
        TypeError: ``slot_count`` or a time is something else.
        OSError: the files of the pool cannot be made in ``lock_dir``.
        TimeoutError: not ready in time; the message has the last reason.
        PoolSpawnError: the pool could not be made or filled; the message has the loader's error.
        PoolStalledError: the living owner of the pool has given its producer up.
        PoolBusyError: called by the handler of a signal that has interrupted a call for the same
            pool while that pickles its loader.
    """
    use = Use(_registry, block=False)
    try:
        handle = _open(
            use, name, slot_count, producer, mode, ready_timeout, poll_interval, lock_dir
        )
        use.stays = True
        return handle
    except BaseException:
        use.leave()
        raise


@contextlib.contextmanager
def pool(
    name: str,
    slot_count: int,
    *,
    producer: ProducerSpec | None = None,
    mode: Mode = "auto",
    ready_timeout: float = 600.0,
    poll_interval: float = 0.1,
    lock_dir: Path | str | None = None,
) -> Generator[PoolHandle]:
    """Use `ensure_pool` in a ``with`` block; the handle is closed at its end.

    Blocks of a process that use one pool, within each other or in several threads, share its
    handle, and the last to end closes it. A handle that `ensure_pool` had opened before is left
    open. Arguments and errors as of `ensure_pool`.
    """
    use = Use(_registry, block=True)
    try:
        yield _open(use, name, slot_count, producer, mode, ready_timeout, poll_interval, lock_dir)
    except GeneratorExit:  # dropped, maybe by the garbage collector in the middle of anything
        use.drop()
        raise
    finally:
        use.leave()


def _open(
    use: Use[PoolHandle],
    name: str,
    slot_count: int,
    producer: ProducerSpec | None,
    mode: Mode,
    ready_timeout: float,
    poll_interval: float,
    lock_dir: Path | str | None,
) -> PoolHandle:
    """See `ensure_pool`; ``use`` is counted, and ``use.handle`` the handle, before this returns."""
    paths = PoolPaths.for_name(name, lock_dir)
    slot_count = integer("slot_count", slot_count, 1)
    ready_timeout = seconds("ready_timeout", ready_timeout)
    poll_interval = seconds("poll_interval", poll_interval)
    if mode not in get_args(Mode):
        raise ValueError(f"mode should be 'attach', 'spawn' or 'auto', got {mode!r}")
    if producer is not None and not isinstance(producer, ProducerSpec):
        raise TypeError(f"producer should be a ProducerSpec, got {producer!r}")
    config = None
    if mode != "attach" and producer is not None:
        config = PoolConfig.of(producer, slot_count, logger.level or logging.INFO)
    deadline = time.monotonic() + ready_timeout
    if _join_open(use, paths, slot_count, producer) is None:
        aside(
            lambda: _find_or_make(
                use, paths, slot_count, producer, mode, config, deadline, poll_interval
            )
        )
    assert use.handle is not None
    return use.handle


def _join_open(
    use: Use[PoolHandle], paths: PoolPaths, slot_count: int, producer: ProducerSpec | None
) -> PoolHandle | None:
    """Return the handle that this process has open, with one more user; None: it has none."""
    handle = _registry.get(paths)
    vector = handle._usable() if handle is not None else None
    if handle is None or vector is None:
        return None
    if handle.slot_count != slot_count:
        raise ValueError(
            f"pool {paths.name!r} is open in this process with slot_count={handle.slot_count}, "
            f"now {slot_count} was asked for; close that handle first"
        )
    if producer is not None:
        check_wishes(vector, producer)
    return handle if _registry.join(handle, use) else None


def _find_or_make(
    use: Use[PoolHandle],
    paths: PoolPaths,
    slot_count: int,
    producer: ProducerSpec | None,
    mode: Mode,
    config: PoolConfig | None,
    deadline: float,
    poll_interval: float,
) -> None:
    """Follow or make the pool, unless another thread has done so meanwhile. Only for `aside`."""
    with _registry.gate(paths, deadline):
        if _join_open(use, paths, slot_count, producer) is not None:
            return
        over = _registry.get(paths)
        if over is not None:  # or about to be: look for the next one
            over._close(max(0.0, deadline - time.monotonic()))
        if mode != "attach" and config is None:
            raise ValueError(f"mode={mode!r} needs producer=ProducerSpec(...)")
        if config is not None and not _registry.inherited(paths):
            vector, reign = elect(paths, config, mode == "spawn", deadline, poll_interval)
        else:
            vector = follow(paths, slot_count, deadline, poll_interval, patient=config is None)
            reign = None
        if reign is None and producer is not None:
            check_wishes(vector, producer)
        limit = CLOSING_LIMIT + (config.producer_join_timeout if config is not None else 0.0)
        handle = PoolHandle(
            paths, slot_count, vector.generation, supervisor=reign, join_timeout=limit
        )
        handle._vector = vector
        handle._users.of_block = use.block
        _registry.put(paths, handle)
        _registry.join(handle, use)
        check_wanted()
