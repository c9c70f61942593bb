"""Which slots a rank reads, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sharedvector._common import integer

__all__ = ["Sampling", "check_sampling", "draws", "rank_of", "slots_of"]

Sampling = Literal["uniform", "permutation", "least_read"]

Slots = NDArray[np.int64]
Counts = Callable[[], NDArray[Any]]

_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_WORLD = ("RANK", "WORLD_SIZE")


def check_sampling(sampling: str) -> None:
    """Raises ValueError when there is no such order."""
    if sampling not in get_args(Sampling):
        wanted = ", ".join(map(repr, get_args(Sampling)))
        raise ValueError(f"sampling should be one of {wanted}, got {sampling!r}")


def rank_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's place among those that share the pool, and how many they are.

    What is not given comes from LOCAL_RANK and LOCAL_WORLD_SIZE (a pool belongs to one node), else
    from torch.distributed, else from RANK and WORLD_SIZE; without any of them: 0 of 1.

    Raises:
        ValueError: only one of the two is given or set, they do not fit, or a variable is no
            integer.
        TypeError: one is no integer.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together, got {rank} and {world_size}")
    if rank is None or world_size is None:
        rank, world_size = _rank_around()
    rank, world_size = integer("rank", rank), integer("world_size", world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank should be from 0 to world_size - 1, got {rank} of {world_size}")
    return rank, world_size


def _rank_around() -> tuple[int, int]:
    import torch.distributed

    local = _rank_from_environment(_LOCAL)
    if local is not None:
        return local
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    world = _rank_from_environment(_WORLD)
    if world is not None:
        return world
    for names in (_LOCAL, _WORLD):
        found = [name for name in names if name in os.environ]
        if found:  # one alone: all processes would take themselves for the only one
            (missing,) = set(names) - set(found)
            raise ValueError(
                f"{found[0]} is set and {missing} is not: set it, or pass rank= and world_size="
            )
    return 0, 1


def _rank_from_environment(names: tuple[str, str]) -> tuple[int, int] | None:
    if not all(name in os.environ for name in names):
        return None
    rank, world_size = map(_variable, names)
    return rank, world_size


def _variable(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} should be an integer, got {os.environ[name]!r}") from None


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
