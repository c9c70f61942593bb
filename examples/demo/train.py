"""One training rank of the demo: `torchrun --nproc-per-node 2 train.py CONFIG.json`.

Every rank asks for the same pool with ensure_pool("auto"). One of them becomes its owner and feeds
it from the Zarr volumes; all of them read it through DataLoader workers. The network learns to take
noise out of small 3-D patches.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from tqdm import tqdm

from sharedvector import (
    PoolHandle,
    ProducerSpec,
    SharedMemoryDataset,
    ZarrLoader,
    ensure_pool,
)

MIB = 1 << 20


class RandomCrop:
    """Transform: a random (depth, height, width) part of item["data"], copied so that it is small.

    The copy is what travels to the rank, so batches need little of /dev/shm.
    """

    def __init__(self, size: tuple[int, int, int]) -> None:
        self.size = size

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        data: torch.Tensor = item["data"]
        for axis, size in enumerate(self.size, start=1):
            start = int(torch.randint(data.shape[axis] - size + 1, ()).item())
            data = data.narrow(axis, start, size)
        return {**item, "data": data.clone(memory_format=torch.contiguous_format)}


def denoiser() -> nn.Module:
    """A tiny 3-D network at half the resolution in plane; height and width must be even."""
    return nn.Sequential(
        nn.Conv3d(1, 8, (3, 4, 4), stride=(1, 2, 2), padding=1),
        nn.ReLU(),
        nn.Conv3d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose3d(8, 1, (3, 4, 4), stride=(1, 2, 2), padding=1),
    )


def train(config: dict[str, Any], handle: PoolHandle, rank: int) -> dict[str, float]:
    """Train for config["steps"] steps; returns seconds, first and last loss."""
    dataset = SharedMemoryDataset.from_pool(
        handle, transforms=[RandomCrop((*config["crop"],))], strict=False
    )
    generator = torch.Generator().manual_seed(rank)
    batch_size, steps = config["batch_size"], config["steps"]
    sampler = RandomSampler(
        dataset, replacement=True, num_samples=batch_size * steps, generator=generator
    )
    batches = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=config["workers"],
        prefetch_factor=2,
        generator=generator,
        timeout=60,
    )
    model = DistributedDataParallel(denoiser())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []
    bar = tqdm(
        total=steps,
        desc="training",
        unit="batch",
        disable=rank != 0,
        mininterval=0.1 if sys.stderr.isatty() else 5,
    )
    dist.barrier()
    started = time.monotonic()
    for batch in batches:
        clean = batch["data"].float() / 1000
        loss = nn.functional.mse_loss(model(clean + 0.1 * torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
        bar.update()
    dist.barrier()
    seconds = time.monotonic() - started
    bar.close()
    return {"seconds": seconds, "first_loss": losses[0], "last_loss": losses[-1]}


def shared_bytes(handle: PoolHandle) -> int:
    """Memory that the pool's segment occupies on this node."""
    directory = os.environ.get("SHAREDVECTOR_SHM_DIR") or "/dev/shm"
    return os.stat(Path(directory) / handle.name).st_blocks * 512


def print_table(rows: list[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in rows)
    print("\n" + "\n".join(f"  {label:<{width}}  {value}" for label, value in rows), flush=True)


def report(
    config: dict[str, Any], handle: PoolHandle, run: dict[str, float], writes: int, world: int
) -> dict[str, float]:
    """Print what the run did; returns the same as numbers."""
    stats = handle.stats()
    vector = handle.attach()
    reads = stats.reads_at_replace_total + int(vector.read_counts().sum())
    size = shared_bytes(handle)
    copies = world * config["workers"]
    result = {
        "batches_per_second": world * config["steps"] / run["seconds"],
        "chunks_read": reads,
        "reads_median": stats.recent_median,
        "reads_p10": stats.recent_p10,
        "reads_p90": stats.recent_p90,
        "blocked_replaces": stats.blocked_replaces,
        "writes_per_second": writes / run["seconds"],
        "shared_bytes": size,
        "copies_bytes": size * copies,
        **run,
    }
    rate = result["writes_per_second"]
    print_table(
        [
            ("batches/s, all ranks", f"{result['batches_per_second']:.1f}"),
            ("chunks read", f"{reads}"),
            (
                "reads per chunk before replacement",
                f"median {stats.recent_median:g}, p10 {stats.recent_p10:g}, "
                f"p90 {stats.recent_p90:g}",
            ),
            ("blocked replaces", f"{stats.blocked_replaces}"),
            (
                "refresh rate",
                f"{rate:.1f} chunks/s ({rate * config['chunk_size'] / 1e6:.0f} MB/s)",
            ),
            ("shared memory, once per node", f"{size / MIB:.1f} MiB"),
            (f"the same held by each of {copies} workers", f"{size * copies / MIB:.1f} MiB"),
            ("loss, first and last batch", f"{run['first_loss']:.4f}, {run['last_loss']:.4f}"),
        ]
    )
    return result


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    torch.manual_seed(0)
    spec = ProducerSpec(
        loader=ZarrLoader(
            config["root"], config["slices"], spacing_file=config["spacing_file"], dtype="int16"
        ),
        chunk_size=config["chunk_size"],
        dtype="int16",
        num_producers=config["producers"],
        sleep_seconds=config["sleep_seconds"],
    )
    handle = ensure_pool(
        config["name"], config["slots"], producer=spec, mode="auto", ready_timeout=120
    )
    with handle:
        print(f"rank {rank}: {'owns' if handle.is_owner else 'follows'} the pool", flush=True)
        vector = handle.attach()
        before = int(vector.write_counts().sum())
        run = train(config, handle, rank)
        writes = int(vector.write_counts().sum()) - before
        if rank == 0:
            result = report(config, handle, run, writes, world)
            Path(config["result"]).write_text(json.dumps(result))
        # The pool goes with its owner, so nobody leaves before all have finished with it.
        dist.barrier()
        del vector
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
