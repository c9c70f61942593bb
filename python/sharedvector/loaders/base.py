"""What a loader is: what turns one source (a file, a volume) into chunks for a pool.

Any object with ``__len__`` and ``__call__(source_index) -> list[Chunk]`` is a loader. Producer
workers are separate processes, so a loader has to pickle; those here carry paths, no open files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np

from sharedvector._common import integer

__all__ = ["Chunk", "Loader", "no_meta", "place_of", "read_error"]


class Chunk(NamedTuple):
    """What a loader gives for one slot.

    Attributes:
        data: a C-contiguous array of the pool's dtype, at most the pool's chunk size.
        meta: up to 8 numbers (1-D) that travel with it; `no_meta()` for none.
    """

    data: np.ndarray[Any, Any]
    meta: np.ndarray[Any, Any]


class Loader(Protocol):
    """The protocol of a loader; nothing has to be inherited.

    A loader with an attribute ``worker_id`` gets the number of its producer worker there (0, 1,
    ...) before the first call, so that seeded loaders draw differently in each.

    A loader with a method ``load_into(source_index, allocate)`` is asked to write its chunks where
    they will be read, and `__call__` is left alone. ``allocate(shape)`` makes a writable
    C-contiguous array of the pool's dtype, in the pool itself when a buffer is free. The method
    returns or yields ``Chunk(data, meta)``: chunks whose ``data`` is an array that ``allocate``
    made are published as they are, all others are copied. Do not touch an array after its chunk
    was given; what was allocated and not given is dropped at the end, or earlier when nothing
    refers to it any more.

    These attributes are looked at, if the loader has them: ``chunk_dtype`` and ``chunk_size`` (in
    bytes, of the largest chunk), for a pool that is made without these settings;
    ``buffers_at_once``, the most arrays that are allocated and not yet given;
    ``counters``, a dict of totals ("direct", "zarr", "tensorstore": volumes read by that engine;
    "missing_chunks"); and ``releases_gil``, true when threads load as well as processes.
    """

    def __len__(self) -> int:
        """Return how many sources there are."""
        ...

    def __call__(self, source_index: int) -> list[Chunk]:
        """Return the chunks of one source (none is allowed), ``0 <= source_index < len(self)``."""
        ...


def no_meta() -> np.ndarray[Any, Any]:
    """Return the metadata of a chunk that has none: float64, shape (0,)."""
    return np.empty(0, dtype=np.float64)


def place_of(source_index: SupportsIndex, count: int) -> int:
    """The number of a source, 0 or more; negative ones count from the end, as in a list."""
    place = integer("source_index", source_index)
    if not -count <= place < count:
        raise IndexError(
            f"source {place} is out of range: there are {count}, from 0 to {count - 1}"
        )
    return place % count


def read_error(path: Path | str, error: Exception) -> Exception:
    """The error to raise for a source that cannot be read: its kind, with the path in front."""
    message = f"source {path} cannot be read: {type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return OSError(error.errno, message) if error.errno is not None else OSError(message)
    if isinstance(error, MemoryError):
        return MemoryError(message)
    return ValueError(message) if isinstance(error, ValueError) else RuntimeError(message)
