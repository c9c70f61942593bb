"""The work of one producer: load sources in a random order and keep slots filled with them."""

from __future__ import annotations

from sharedvector._producer import producer_worker

__all__ = [
    "producer_worker",
]
