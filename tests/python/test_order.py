"""Every source once per epoch, in an order that the seed fixes, for any number of sources."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedvector._producer.source_order import (
    _LARGEST_TABLE,
    IndexPermutation,
    SourceOrder,
    seed_of,
)


def test_every_epoch_has_every_source_once_in_another_order() -> None:
    order = SourceOrder(50, 7)
    draws = [order.draw(ticket) for ticket in range(150)]
    epochs = [[source for source, epoch in draws if epoch == number] for number in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("size", [20, _LARGEST_TABLE + 1])
def test_the_order_is_a_matter_of_the_seed_alone(size: int) -> None:
    one, two, other = SourceOrder(size, 7), SourceOrder(size, 7), SourceOrder(size, 8)
    tickets = [size + 5, 3, 2 * size - 1, 0]  # any way through the tickets
    assert [one.draw(t) for t in tickets] == [two.draw(t) for t in reversed(tickets)][::-1]
    assert [one.draw(t) for t in range(20)] != [other.draw(t) for t in range(20)]
    assert seed_of("a") != seed_of("b")


@given(st.integers(1, 700), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_a_computed_permutation_has_every_index_once(size: int, seed: int, epoch: int) -> None:
    permutation = IndexPermutation(size, seed, epoch)
    assert sorted(permutation[place] for place in range(size)) == list(range(size))


@given(st.integers(_LARGEST_TABLE + 1, 2**128), st.data())
def test_huge_permutations_stay_in_range_and_repeat_nothing(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50))
    permutation = IndexPermutation(size, 7, 0)
    drawn = [permutation[place] for place in places]
    assert all(0 <= index < size for index in drawn)
    assert len(set(drawn)) == len(places)


def test_a_computed_permutation_depends_on_the_epoch_and_ends() -> None:
    first, second = IndexPermutation(1000, 7, 0), IndexPermutation(1000, 7, 1)
    assert [first[place] for place in range(20)] != [second[place] for place in range(20)]
    for place in (-1, 1000):
        with pytest.raises(IndexError, match="1000"):
            first[place]


def test_a_computed_permutation_leaves_no_order_behind() -> None:
    permutation = IndexPermutation(3000, 7, 0)
    drawn = [permutation[place] for place in range(3000)]
    steps = [(b - a) % 3000 for a, b in itertools.pairwise(drawn)]
    assert len(set(steps)) > 1500  # of random ones, 1896 differ on average
    assert 1300 < sum(drawn[:1000]) / 1000 < 1700


def test_a_great_many_sources_take_no_memory() -> None:
    tracemalloc.start()
    try:
        order = SourceOrder(10**12, 7)
        drawn = [order.draw(ticket)[0] for ticket in range(200)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert all(0 <= source < 10**12 for source in drawn) and len(set(drawn)) == 200
    assert order.draw(10**12)[1] == 1
