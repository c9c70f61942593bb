"""Who owns a pool and whether it is ready: names, the owner lock, the ready marker."""

from __future__ import annotations

from sharedvector._coordination import (
    DEFAULT_LOCK_DIR,
    LOCK_DIR_ENV,
    OwnerLock,
    PoolBusyError,
    PoolPaths,
    PoolSpawnError,
    ReadyState,
    attach,
    clear_marker,
    owner_alive,
    probe_ready,
    read_generation,
    read_marker,
    validate_name,
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
    "owner_alive",
    "probe_ready",
    "read_generation",
    "read_marker",
    "validate_name",
    "wait_until_ready",
    "write_marker",
]
