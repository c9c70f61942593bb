"""A pool in a training loop: items and batches as tensors; needs torch, unlike the package.

Promises: tensors are copies that stay what they are, and no chunk stays pinned.
Uses: `_pool`, `_coordination`, the segment, torch.
Tests: ``test_dataset.py``, ``test_pool_loader.py``, ``test_batch.py``, ``test_feed.py``,
``test_sampling.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.training.dataset import SharedMemoryDataset, Transform
    from sharedvector.training.pool_loader import PoolLoader

__all__ = [
    "PoolLoader",
    "SharedMemoryDataset",
    "Transform",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".dataset": "SharedMemoryDataset Transform",
        ".pool_loader": "PoolLoader",
    },
)
