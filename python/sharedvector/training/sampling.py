"""Which slots a rank reads, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sampling", "check_sampling", "draws", "slots_of"]

Sampling = Literal["uniform", "permutation", "least_read"]

Slots = NDArray[np.int64]
Counts = Callable[[], NDArray[Any]]


def check_sampling(sampling: str) -> None:
    """Raises ValueError when there is no such order."""
    if sampling not in get_args(Sampling):
        wanted = ", ".join(map(repr, get_args(Sampling)))
        raise ValueError(f"sampling should be one of {wanted}, got {sampling!r}")


def slots_of(rank: int, world_size: int, slot_count: int) -> Slots:
    """The slots of a rank: together the ranks have all of them, and no two ranks the same."""
    return np.arange(rank, slot_count, world_size, dtype=np.int64)


def draws(
    sampling: Sampling, slots: Slots, size: int, rng: np.random.Generator, read_counts: Counts
) -> Iterator[Slots]:
    """Yield the slots of one batch after the other, without end.

    Args:
        sampling: "uniform": any slots, in one batch each at most once as long as there are enough.
            "permutation": all slots in random order, then all again. "least_read": those whose
            chunks have been read least, at random among equals.
        slots: to draw from, not empty.
        size: of a batch; for "least_read" at most the number of slots.
        rng: decides.
        read_counts: gives the reads of the chunk in each slot of the pool.
    """
    if sampling == "permutation":
        yield from _permutations(slots, size, rng)
    while sampling == "uniform":
        yield rng.choice(slots, size, replace=size > len(slots))
    while True:
        order = read_counts()[slots] + rng.random(len(slots))
        yield slots[np.argpartition(order, size - 1)[:size]]


def _permutations(slots: Slots, size: int, rng: np.random.Generator) -> Iterator[Slots]:
    waiting = slots[:0]
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(slots)])
        yield waiting[:size]
        waiting = waiting[size:]
