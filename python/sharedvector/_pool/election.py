"""One process becomes the owner of a pool, the others follow it."""

from __future__ import annotations

import time

from sharedvector._coordination import (
    OwnerLock,
    PoolBusyError,
    PoolPaths,
    PoolSpawnError,
    look,
    owner_alive,
    wait_and_look,
)
from sharedvector._pool.config import PoolConfig, ProducerSpec
from sharedvector._pool.owner import Reign
from sharedvector.loaders import resolve_numpy_dtype
from sharedvector.monitoring import Waiting
from sharedvector.vector import SharedVector, encode_dtype

_LOCK_IS_BACK = 3.0  # seconds; a living owner looks at its files once a second
_NEVER_OWNER = (
    "nobody owns it, and a forked child never becomes the owner of its parent's pool; call "
    "ensure_pool in the parent"
)


def elect(
    paths: PoolPaths, config: PoolConfig, own_first: bool, deadline: float, poll_interval: float
) -> tuple[SharedVector, Reign | None]:
    """Become the owner, or wait for the one who is; an owner that dies meanwhile is replaced.

    Args:
        paths: of the pool.
        config: what to make as the owner.
        own_first: try for the lock before looking whether a pool is there.
        deadline: latest time to be ready, on ``time.monotonic()``'s clock.
        poll_interval: seconds between two looks.

    Returns:
        The segment, and this process's reign if it became the owner.

    Raises:
        TimeoutError, PoolSpawnError, PoolStalledError, ValueError: as `ensure_pool`.
    """
    waiting = Waiting(paths.name, deadline, poll_interval, lambda: owner_alive(paths))
    busy: tuple[float, PoolBusyError] | None = None
    own = own_first
    while True:
        if own:
            try:
                reign = _own(paths, config, deadline)
            except PoolBusyError as error:
                busy = time.monotonic() + _LOCK_IS_BACK, error
            else:
                if reign is not None:
                    return reign.vector, reign
        found = look(paths, config.slot_count)
        if found.refusal is not None:
            raise found.refusal
        if found.vector is not None:
            return found.vector, None
        # An owner without the lock either uses another directory, or its lock's file was removed
        # and it makes another one.
        if busy is not None and time.monotonic() >= busy[0]:
            raise PoolSpawnError(f"pool {paths.name!r} cannot be made: {busy[1]}") from busy[1]
        if own or busy is not None:
            waiting.sleep(found.state.reason)
        own = busy is None


def follow(
    paths: PoolPaths, slot_count: int, deadline: float, poll_interval: float, *, patient: bool
) -> SharedVector:
    """Wait for a pool that others make.

    Args:
        paths: of the pool.
        slot_count: slots that are needed.
        deadline: latest time to be ready.
        poll_interval: seconds between two looks.
        patient: wait also while nobody is making it.

    Raises:
        TimeoutError, PoolStalledError, ValueError: as `ensure_pool`.
        PoolSpawnError: not patient, and nobody owns the pool.
    """

    def abort() -> str | None:
        return None if patient or owner_alive(paths) else _NEVER_OWNER

    found = wait_and_look(paths, slot_count, deadline, poll_interval, abort=abort)
    assert found.vector is not None
    return found.vector


def check_wishes(vector: SharedVector, spec: ProducerSpec) -> None:
    """Refuse (ValueError) a pool that cannot hold what the caller's own producer would give."""
    assert spec.dtype is not None and spec.chunk_size is not None  # no longer, once it is made
    wanted = resolve_numpy_dtype(spec.dtype)
    if encode_dtype(wanted) != vector.dtype_text:
        raise ValueError(
            f"pool {vector.name!r} holds {vector.dtype}, this producer would give {wanted}; use "
            "the same dtype, or another name"
        )
    if spec.chunk_size > vector.chunk_size:
        raise ValueError(
            f"pool {vector.name!r} holds chunks of at most {vector.chunk_size} bytes, this "
            f"producer would give {spec.chunk_size}; use chunk_size={vector.chunk_size}, or "
            "another name"
        )


def _own(paths: PoolPaths, config: PoolConfig, deadline: float) -> Reign | None:
    """Make the pool if nobody owns it; None otherwise."""
    lock = OwnerLock.try_acquire(paths, grace=0)
    if lock is None:
        return None
    reign = Reign(paths, lock, config)
    reign.start(deadline)
    return reign
