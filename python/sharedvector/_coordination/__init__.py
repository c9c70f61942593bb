"""Who owns a pool and whether it is ready: its files' names, the owner lock, the ready marker.

A pool ``run42`` has three files: the segment ``/dev/shm/run42``, ``run42.lock``, which the owner
holds locked for its whole life, and ``run42.ready``, which the owner writes once the pool is
filled. The last two lie in ``lock_dir``, which must be local to the node. Only the holder of the
lock makes or removes the other two.

Promises: there is one owner at a time, and a pool counts as ready only if its marker, its segment
and its lock are of one living generation.
Uses: the segment, `monitoring`.
Tests: ``test_coordination.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector._coordination.lock import OwnerLock
    from sharedvector._coordination.paths import (
        DEFAULT_LOCK_DIR,
        LOCK_DIR_ENV,
        PoolBusyError,
        PoolPaths,
        PoolSpawnError,
        validate_name,
    )
    from sharedvector._coordination.readiness import (
        ReadyState,
        attach,
        clear_marker,
        look,
        owner_alive,
        probe_owner,
        probe_ready,
        read_generation,
        read_marker,
        wait_and_look,
        wait_until_ready,
        write_marker,
    )

__all__ = [
    "DEFAULT_LOCK_DIR",
    "LOCK_DIR_ENV",
    "OwnerLock",
    "PoolBusyError",
    "PoolPaths",
    "PoolSpawnError",
    "ReadyState",
    "attach",
    "clear_marker",
    "look",
    "owner_alive",
    "probe_owner",
    "probe_ready",
    "read_generation",
    "read_marker",
    "validate_name",
    "wait_and_look",
    "wait_until_ready",
    "write_marker",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".paths": (
            "DEFAULT_LOCK_DIR LOCK_DIR_ENV PoolBusyError PoolPaths PoolSpawnError validate_name"
        ),
        ".lock": "OwnerLock",
        ".readiness": (
            "ReadyState attach clear_marker look owner_alive probe_owner probe_ready "
            "read_generation read_marker wait_and_look wait_until_ready write_marker"
        ),
    },
)
