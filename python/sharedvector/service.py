"""A pool and its producer as an object: for a job step of its own, or inside a program."""

from __future__ import annotations

from sharedvector._pool import ProducerService, partition

__all__ = [
    "ProducerService",
    "partition",
]
