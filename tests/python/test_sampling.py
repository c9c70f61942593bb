"""Slots of ranks and the orders in which they are read."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sharedvector.training.sampling import Sampling, check_sampling, draws, rank_of, slots_of

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


def test_rank_from_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert rank_of(None, None) == (0, 1)
    assert rank_of(2, 3) == (2, 3)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_of(None, None) == (5, 8)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 6)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 9)
    assert rank_of(None, None) == (6, 9)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert rank_of(None, None) == (1, 4)
    assert rank_of(0, 2) == (0, 2)


@pytest.mark.parametrize("prefix", ["LOCAL_", ""])
@pytest.mark.parametrize("given", ["RANK", "WORLD_SIZE"])
def test_half_of_a_rank_is_not_the_only_one(
    monkeypatch: pytest.MonkeyPatch, prefix: str, given: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(prefix + given, "1")
    (missing,) = {"RANK", "WORLD_SIZE"} - {given}
    with pytest.raises(ValueError, match=f"^{prefix}{given} is set and {prefix}{missing} is not"):
        rank_of(None, None)
    assert rank_of(1, 2) == (1, 2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 6)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 9)
    assert rank_of(None, None) == (6, 9)


def test_a_variable_that_is_no_integer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE should be an integer, got 'two'"):
        rank_of(None, None)


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_ranks_that_do_not_fit(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(ValueError, match="rank"):
        rank_of(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(0.5, 2), (0, 2.0), ("0", "2")])
def test_ranks_that_are_no_integers(rank: Any, world_size: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        rank_of(rank, world_size)
