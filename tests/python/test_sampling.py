"""Slots of ranks and the orders in which they are read."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from sharedvector.training.sampling import Sampling, check_sampling, draws, slots_of

torch = pytest.importorskip("torch", reason="torch is not installed")

SLOTS = np.array([3, 5, 7, 9, 11, 13])


def drawn(
    sampling: Sampling,
    size: int,
    count: int,
    counts: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> list[list[int]]:
    reads = np.zeros(20, np.int64) if counts is None else counts
    batches = draws(sampling, SLOTS, size, np.random.default_rng(seed), lambda: reads)
    return [batch.tolist() for batch in itertools.islice(batches, count)]


def test_uniform() -> None:
    batches = drawn("uniform", 4, 300)
    assert all(len(set(batch)) == 4 and set(batch) <= set(SLOTS) for batch in batches)
    times = Counter(itertools.chain(*batches))
    assert all(150 < times[slot] < 250 for slot in SLOTS)
    assert all(len(batch) == 10 for batch in drawn("uniform", 10, 5))  # more than there are


def test_permutation() -> None:
    for size in (1, 2, 4, 6, 8):
        flat = list(itertools.chain(*drawn("permutation", size, 24)))
        for begin in range(0, 24 * size // 6 * 6, 6):
            assert sorted(flat[begin : begin + 6]) == SLOTS.tolist()
        assert flat[:6] != flat[6:12] or flat[:6] != flat[12:18]


def test_least_read() -> None:
    counts = np.arange(100, 120)
    counts[[13, 3]] = 0
    assert {tuple(sorted(batch)) for batch in drawn("least_read", 2, 20, counts)} == {(3, 13)}
    thirds = {batch for (batch,) in [set(b) - {3, 13} for b in drawn("least_read", 3, 5, counts)]}
    assert thirds == {5}
    ties = Counter(itertools.chain(*drawn("least_read", 2, 300)))
    assert all(60 < ties[slot] < 140 for slot in SLOTS)
    assert sorted(drawn("least_read", 6, 1)[0]) == SLOTS.tolist()


@pytest.mark.parametrize("sampling", ["uniform", "permutation", "least_read"])
def test_same_seed_same_order(sampling: Sampling) -> None:
    assert drawn(sampling, 4, 20, seed=5) == drawn(sampling, 4, 20, seed=5)
    assert drawn(sampling, 4, 20, seed=5) != drawn(sampling, 4, 20, seed=6)


def test_unknown_sampling() -> None:
    check_sampling("uniform")
    with pytest.raises(ValueError, match=r"'uniform', 'permutation', 'least_read'.*'best'"):
        check_sampling("best")


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_all_slots(world_size: int) -> None:
    parts = [slots_of(rank, world_size, 16).tolist() for rank in range(world_size)]
    assert sorted(itertools.chain(*parts)) == list(range(16))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
