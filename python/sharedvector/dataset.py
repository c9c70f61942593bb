"""A pool as a map-style PyTorch dataset: needs torch to be imported, unlike the package."""

from __future__ import annotations

from sharedvector.training import SharedMemoryDataset, Transform

__all__ = [
    "SharedMemoryDataset",
    "Transform",
]
