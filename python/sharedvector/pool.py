"""Use a pool, whoever owns it: every process of a node may run the same line."""

from __future__ import annotations

from sharedvector._coordination import PoolBusyError, PoolSpawnError
from sharedvector._pool import Mode, PoolGoneError, PoolHandle, ProducerSpec, ensure_pool, pool

__all__ = [
    "Mode",
    "PoolBusyError",
    "PoolGoneError",
    "PoolHandle",
    "PoolSpawnError",
    "ProducerSpec",
    "ensure_pool",
    "pool",
]
