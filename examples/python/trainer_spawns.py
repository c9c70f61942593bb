"""Training processes that bring their own producer; needs torch. Start as many as there are GPUs.

All of them run this line for line. The first becomes the pool's owner and spawns the producer, the
others attach; the pool ends with its owner.
"""

from __future__ import annotations

import os

from gradients import Gradients
from torch.utils.data import DataLoader

from sharedvector import ProducerSpec, SharedMemoryDataset, ensure_pool

spec = ProducerSpec(loader=Gradients(), chunk_size=4000, num_producers=2)
with ensure_pool(os.environ.get("POOL", "volumes"), 8, producer=spec, mode="auto") as handle:
    dataset = SharedMemoryDataset.from_pool(handle)
    # "fork" because this file has no `if __name__ == "__main__"`, which other methods need.
    batches = DataLoader(
        dataset, batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork"
    )
    for epoch in range(2):
        for batch in batches:
            print("epoch", epoch, "batch", tuple(batch["data"].shape))
