"""A training process that reads the pool of producer_job.py, which has to run; needs torch."""

from __future__ import annotations

import os

from torch.utils.data import DataLoader

from sharedvector import SharedMemoryDataset, ensure_pool

name = os.environ.get("POOL", "volumes")
with ensure_pool(name, 8, mode="attach", ready_timeout=60) as handle:
    dataset = SharedMemoryDataset.from_pool(handle)
    for batch in DataLoader(dataset, batch_size=4, shuffle=True):
        print("batch", tuple(batch["data"].shape))
