"""A pool: made, followed, owned and taken down.

Promises: `ensure_pool` returns a filled pool or says why there is none. What an owner has made goes
with it, however it ends.
Uses: `_producer`, `_coordination`, `loaders`, `monitoring`, the segment.
Tests: ``test_pool.py``, ``test_service.py``, ``test_config.py``, ``test_endings.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector._pool.api import Mode, PoolGoneError, PoolHandle, ensure_pool, pool
    from sharedvector._pool.config import PRODUCER_KINDS, PoolConfig, ProducerKind, ProducerSpec
    from sharedvector._pool.service import ProducerService, partition

__all__ = [
    "PRODUCER_KINDS",
    "Mode",
    "PoolConfig",
    "PoolGoneError",
    "PoolHandle",
    "ProducerKind",
    "ProducerService",
    "ProducerSpec",
    "ensure_pool",
    "partition",
    "pool",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".api": "Mode PoolGoneError PoolHandle ensure_pool pool",
        ".config": "PRODUCER_KINDS PoolConfig ProducerKind ProducerSpec",
        ".service": "ProducerService partition",
    },
)
