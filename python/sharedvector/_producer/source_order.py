"""In which order sources are loaded: every one once per epoch, as the seed says."""

from __future__ import annotations

import random
from collections.abc import Sequence

_LARGEST_TABLE = 4096  # sources; beyond, the order is computed place by place
_ROUNDS = 6
_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio


def seed_of(generation: str) -> int:
    """Return the seed that a generation stands for: another order in each reign."""
    import hashlib  # brings OpenSSL, for which no producer should wait

    return int.from_bytes(hashlib.blake2b(generation.encode(), digest_size=8).digest(), "little")


class SourceOrder:
    """Sources without replacement: each epoch is a permutation that the seed and its number fix.

    Tickets count all draws of all workers, so that a source comes again only after all others.
    The order of a few thousand sources is kept; that of more costs no memory.
    """

    def __init__(self, source_size: int, seed: int) -> None:
        self._size = source_size
        self._seed = seed
        self._epoch = -1
        self._order: Sequence[int] | IndexPermutation = ()

    def draw(self, ticket: int) -> tuple[int, int]:
        """Return the source of a ticket and its epoch."""
        epoch, place = divmod(ticket, self._size)
        if epoch != self._epoch:
            if self._size <= _LARGEST_TABLE:
                chosen = random.Random(_mix(_mix(self._seed) + epoch))
                self._order = chosen.sample(range(self._size), self._size)
            else:
                self._order = IndexPermutation(self._size, self._seed, epoch)
            self._epoch = epoch
        return self._order[place], epoch


class IndexPermutation:
    """A permutation of ``range(size)`` that is computed, not stored.

    A Feistel network permutes the numbers below the next power of four. A result that is too
    large goes through it again, until it is below ``size``: as the network is a permutation,
    that walk stays one too, and takes four steps at most on average.

    Args:
        size: at least 1 and at most 2**128.
        seed, epoch: choose the permutation.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)  # bits of each half of a number
        self._mask = (1 << self._half) - 1
        key = _mix(_mix(seed) + epoch)
        self._keys = [_mix(key + turn * _STEP) for turn in range(_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """Return the number at a place. IndexError beyond the last one."""
        if not 0 <= place < self._size:
            raise IndexError(f"place {place} should be at least 0 and below {self._size}")
        number = self._network(place)
        while number >= self._size:
            number = self._network(number)
        return number

    def _network(self, number: int) -> int:
        left, right = number >> self._half, number & self._mask
        for key in self._keys:
            # The high bits: of a product, the low ones depend on less.
            left, right = right, left ^ (_mix(right + key) >> (64 - self._half))
        return left << self._half | right


def _mix(number: int) -> int:
    """Spread a number over 64 bits, so that each bit of it changes half of them."""
    number &= _WORD
    number = (number ^ number >> 31) * 0x7FB5D329728EA185 & _WORD
    number = (number ^ number >> 27) * 0x81DADEF4BC2DD44D & _WORD
    return number ^ number >> 33
