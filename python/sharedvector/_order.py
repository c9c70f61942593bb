"""In which order sources are loaded: every one once per epoch, as the seed says."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

_LARGEST_TABLE = 1_000_000  # sources; beyond, the order is computed place by place
_ROUNDS = 6


def seed_of(generation: str) -> int:
    """Return the seed that a generation stands for: another order in each reign."""
    return int.from_bytes(hashlib.blake2b(generation.encode(), digest_size=8).digest(), "little")


class SourceOrder:
    """Sources without replacement: each epoch is a permutation that the seed and its number fix.

    Tickets count all draws of all workers, so that a source comes again only after all others.
    A million sources and fewer are permuted in memory (8 bytes each); more cost no memory.
    """

    def __init__(self, source_size: int, seed: int) -> None:
        self._size = source_size
        self._seed = seed
        self._epoch = -1
        self._order: np.ndarray[Any, Any] | IndexPermutation = np.empty(0, np.int64)

    def draw(self, ticket: int) -> tuple[int, int]:
        """Return the source of a ticket and its epoch."""
        epoch, place = divmod(ticket, self._size)
        if epoch != self._epoch:
            if self._size <= _LARGEST_TABLE:
                self._order = np.random.default_rng([self._seed, epoch]).permutation(self._size)
            else:
                self._order = IndexPermutation(self._size, self._seed, epoch)
            self._epoch = epoch
        return int(self._order[place]), epoch


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
        self._key = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=32).digest()

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
        for turn in range(_ROUNDS):
            left, right = right, left ^ self._scramble(turn, right)
        return left << self._half | right

    def _scramble(self, turn: int, half: int) -> int:
        text = bytes([turn]) + half.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "little") & self._mask
