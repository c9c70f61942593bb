"""Batches of a pool without workers: gathered in C, by a thread, ahead of the training loop."""

from __future__ import annotations

from sharedvector.training import PoolLoader

__all__ = [
    "PoolLoader",
]
