"""Worker functions that make batches of torch tensors out of a pool, or out of plain arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHAPE = (16, 512, 512)
CROP = (16, 128, 128)
CHUNK = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2]
SLOTS = 24
BATCH = 8
TURN_SECONDS = 0.25
ENDLESS = 100_000  # batches of an epoch: the start of one is not what is measured
# Batches that threads or workers make ahead, at most.
AHEAD = {"PoolLoader": 4, "PoolLoader, crop": 4, "heap, 2 workers": 6}


def chunk_of(slot: int) -> np.ndarray[Any, Any]:
    """What slot `slot` holds: its first plane tells where a crop was taken, the rest the slot."""
    chunk = np.random.default_rng(slot).integers(-1000, 1000, SHAPE, np.int16)
    rows, columns = np.indices(SHAPE[1:])
    chunk[0] = rows * 64 + columns // 8
    return chunk


def create(state: dict[str, Any], name: str) -> None:
    """A pool of SLOTS such chunks that nobody refreshes."""
    import sharedvector as sv

    vector = sv.SharedVector(name, CHUNK, SLOTS * (CHUNK + 4096) + (1 << 20), "int16")
    for slot in range(SLOTS):
        vector.append(chunk_of(slot))
    state["vector"] = vector


def start(state: dict[str, Any], way: str, name: str) -> None:
    """Get ready to make batches; the first ones are compared with what the slots hold."""
    crop = "crop" in way
    makers: dict[str, Callable[[], Any]] = {
        "DataLoader": lambda: _dataset_loader(name, ()),
        "DataLoader, crop": lambda: _dataset_loader(name, (_CropItem(),)),
        "DataLoader, crop=": lambda: _dataset_loader(name, (), crop=CROP),
        "item, crop": lambda: _items(name),
        "PoolLoader": lambda: _pool_loader(name, None),
        "PoolLoader, crop": lambda: _pool_loader(name, CROP),
        "gather": lambda: _gather(name),
        "heap": lambda: _plain_loader(0),
        "heap, 2 workers": lambda: _plain_loader(2),
    }
    if "expected" not in state:
        state["expected"] = [chunk_of(slot) for slot in range(SLOTS)]
    batches = state[way] = iter(makers[way]())
    for _ in range(2):
        data = np.asarray(next(batches)["data"])
        if data.shape != (1 if "item" in way else BATCH, 1, *(CROP if crop else SHAPE)):
            raise RuntimeError(f"{way}: a batch has shape {data.shape}")
        for item in data[:, 0]:
            if not any(_is_part(item, chunk) for chunk in state["expected"]):
                raise RuntimeError(f"{way}: an item is no part of any slot")
        del data, item


def time_batches(state: dict[str, Any], way: str, count: int) -> float:
    """Seconds per batch, of `count` at least; each is dropped before the next is asked for."""
    batches = state[way]
    ahead = AHEAD.get(way, 0)
    for _ in range(ahead):
        next(batches)  # made before this turn
    start = time.perf_counter()
    made = 0
    # For a while: the caches were others' before this turn, and are not in a loop that trains.
    while made < count or time.perf_counter() - start < TURN_SECONDS:
        next(batches)
        made += 1
    taken = (time.perf_counter() - start) / made
    time.sleep(1.5 * ahead * taken)  # the next ones are not to be made during the turns of others
    return taken


def _is_part(item: np.ndarray[Any, Any], chunk: np.ndarray[Any, Any]) -> bool:
    corner = int(item[0, 0, 0])
    row, first = corner // 64, corner % 64 * 8
    depth, height, width = item.shape
    for column in range(first, first + 8):
        part = chunk[:depth, row : row + height, column : column + width]
        # Few numbers tell most slots and places apart; only where they agree all are compared.
        if part.shape == item.shape and np.array_equal(item[1, 0], part[1, 0]):
            return np.array_equal(item, part)
    return False


class _CropItem:
    """Cuts CROP out of an item at a random place; what is a copy keeps nothing of the chunk."""

    def __init__(self, copy: bool = False) -> None:
        self.draw = np.random.default_rng(1)
        self.copy = copy

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        row, column = (
            int(self.draw.integers(0, whole - part + 1))
            for whole, part in zip(SHAPE[1:], CROP[1:], strict=True)
        )
        data = item["data"][:, :, row : row + CROP[1], column : column + CROP[2]]
        return {**item, "data": data.clone() if self.copy else data}


def _dataset(name: str, transforms: tuple[Any, ...], **options: Any) -> Any:
    import sharedvector as sv

    # Not strict: this pool has no producer that would call it ready.
    return sv.SharedMemoryDataset(name, SLOTS, strict=False, transforms=transforms, **options)


def _items(name: str) -> Iterator[dict[str, Any]]:
    """Single items of random slots, cropped by a transform."""
    dataset = _dataset(name, (_CropItem(copy=True),))
    draw = np.random.default_rng(1)
    while True:
        item = dataset[int(draw.integers(SLOTS))]
        yield {"data": item["data"][None]}


def _dataset_loader(name: str, transforms: tuple[Any, ...], **options: Any) -> Any:
    from torch.utils.data import DataLoader

    dataset = _dataset(name, transforms, **options)
    return DataLoader(dataset, batch_size=BATCH, sampler=_shuffled(dataset), num_workers=0)


def _pool_loader(name: str, crop: tuple[int, ...] | None) -> Any:
    import sharedvector as sv
    from sharedvector.pool import PoolHandle

    handle = PoolHandle(sv.PoolPaths.for_name(name), SLOTS, None)
    return sv.PoolLoader(handle, BATCH, crop=crop, seed=1, sampling="permutation", steps=ENDLESS)


def _shuffled(dataset: Any) -> Any:
    """One permutation of the slots after the other."""
    from torch.utils.data import RandomSampler

    return RandomSampler(dataset, num_samples=ENDLESS * BATCH)


def _gather(name: str) -> Iterator[dict[str, Any]]:
    import sharedvector as sv

    vector = sv.SharedVector(name, create=False)
    out = np.zeros((BATCH, *SHAPE), np.int16)
    draw = np.random.default_rng(1)
    while True:
        vector.gather(draw.permutation(SLOTS)[:BATCH], out)
        yield {"data": out[:, None]}


class _InMemory:
    """The same chunks as tensors of this process: what a dataset without a pool is like."""

    def __init__(self) -> None:
        import torch

        self.chunks = [torch.from_numpy(chunk_of(slot)).unsqueeze(0) for slot in range(SLOTS)]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"data": self.chunks[index]}


def _plain_loader(workers: int) -> Any:
    from torch.utils.data import DataLoader

    dataset: Any = _InMemory()
    return DataLoader(dataset, BATCH, sampler=_shuffled(dataset), num_workers=workers)
