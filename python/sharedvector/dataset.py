"""A pool as a map-style PyTorch dataset: needs torch to be imported, unlike the package."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from sharedvector import coordination
from sharedvector.stats import PoolStats, collect_stats
from sharedvector.vector import PoolStalledError

try:
    import torch
    from torch.utils.data import Dataset
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError("SharedMemoryDataset needs: pip install 'sharedvector[torch]'") from _error

if TYPE_CHECKING:
    from sharedvector.pool import PoolHandle
    from sharedvector.vector import SharedVector

__all__ = ["SharedMemoryDataset", "Transform"]

Transform = Callable[[dict[str, Any]], dict[str, Any]]

# NumPy's and torch's names are the same for these; the unsigned ones from 16 bits on came with
# torch 2.3, some float8 with later versions.
_SHARED_NAMES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128 "
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
)


class SharedMemoryDataset(Dataset[dict[str, Any]]):
    """The slots of a pool as items. The pool is refreshed behind it: an index names a slot.

    Item ``i`` is ``{"data": tensor}``, of shape (1, ...) with the chunk's shape behind the 1, and
    ``meta_key: float32 tensor`` of shape (n,) when the chunk has metadata; both belong to the same
    chunk, also when it is replaced meanwhile. Tensors are copies in native byte order: changing
    them changes nobody else's data, and nothing stays pinned.

    Works in DataLoader workers under fork (the pool is used through the inherited handle), spawn
    and forkserver (pickles carry the name; the copy attaches at its first item).

    Args:
        name: the pool's name.
        slot_count: length of the dataset; the pool must have at least so many slots filled.
        ready_timeout: seconds to wait for the pool to become ready.
        poll_interval: seconds between two looks while waiting.
        transforms: called one after the other, each with what the one before returned.
        meta_key: key of the metadata in the item.
        strict: ready means that the present owner has said so; otherwise filled slots are enough.
        lock_dir: directory of the coordination files; None as in `ensure_pool`.

    Raises:
        TimeoutError: not ready in time; the message has the last reason.
        ValueError: a bad name or ``slot_count``, or a pool dtype that torch does not have.
        TypeError: one of ``transforms`` cannot be called.
    """

    def __init__(
        self,
        name: str,
        slot_count: int,
        ready_timeout: float = 60.0,
        poll_interval: float = 0.1,
        transforms: Sequence[Transform] = (),
        meta_key: str = "spacing",
        strict: bool = True,
        lock_dir: Path | str | None = None,
    ) -> None:
        if slot_count < 0:
            raise ValueError(f"slot_count should be 0 or more, got {slot_count}")
        self._paths = coordination.PoolPaths.for_name(name, lock_dir)
        self._slot_count = slot_count
        self._ready_timeout = ready_timeout
        self._poll_interval = poll_interval
        self._transforms = tuple(transforms)
        for place, transform in enumerate(self._transforms):
            if not callable(transform):
                raise TypeError(
                    f"transforms[{place}] should be a callable that takes an item and returns "
                    f"one, got {transform!r}"
                )
        self._meta_key = meta_key
        self._strict = strict
        self._attached: _Attached | None = self._attach()

    @classmethod
    def from_pool(cls, handle: PoolHandle, **kwargs: Any) -> SharedMemoryDataset:
        """Make a dataset of the pool behind a handle; name, slots and lock_dir come from it.

        Args:
            handle: from `ensure_pool`; not kept.
            **kwargs: the other arguments of the constructor.
        """
        return cls(handle.name, handle.slot_count, lock_dir=handle.lock_dir, **kwargs)

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._paths.name

    def __len__(self) -> int:
        """Return the number of slots asked for."""
        return self._slot_count

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Copy the current chunk of a slot out. Counts as one read of it.

        Args:
            index: slot number; negative ones count from the end of the dataset.

        Raises:
            IndexError: the pool has no such slot.
            PoolStalledError: nobody refreshes the pool any more; the message has the reason.
            TimeoutError: (first item of an unpickled copy) the pool is not ready.
        """
        attached = self._attached
        if attached is None:
            attached = self._attached = self._attach()
        slot = operator.index(index)
        if slot < 0:
            slot += self._slot_count
            if slot < 0:
                raise IndexError(f"index {index} is out of range for {self._slot_count} slots")
        if attached.vector.retired:
            raise PoolStalledError(
                f"pool {self.name!r} is not refreshed any more: {attached.vector.retired_reason}; "
                "start a new one with ensure_pool and make the dataset anew"
            )
        item: dict[str, Any] = {}
        array, meta = attached.vector.get_with_meta(slot)
        item["data"] = attached.layout.copy(array).unsqueeze(0)
        if meta.size:
            item[self._meta_key] = torch.from_numpy(meta.astype(np.float32))
        for transform in self._transforms:
            item = transform(item)
        return item

    def stats(self) -> PoolStats:
        """Return the pool's statistics, as `collect_stats` does."""
        if self._attached is None:
            self._attached = self._attach()
        return collect_stats(self._attached.vector)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the attachment."""
        return {**self.__dict__, "_attached": None}

    def _attach(self) -> _Attached:
        deadline = time.monotonic() + self._ready_timeout
        while True:
            coordination.wait_until_ready(
                self._paths, self._slot_count, deadline, self._poll_interval, self._strict
            )
            try:
                vector = coordination.attach(self._paths)
            except FileNotFoundError:
                # removed since the look: wait for the next owner, as long as there is time
                if time.monotonic() >= deadline:
                    raise
                time.sleep(self._poll_interval)
                continue
            return _Attached(vector, _Layout.of(vector.numpy_dtype, self.name))


class _Attached(NamedTuple):
    vector: SharedVector
    layout: _Layout


class _Layout(NamedTuple):
    """How chunks of one dtype become tensors.

    Attributes:
        stored: the dtype to read a chunk as: its own, or for bfloat16 and float8, which NumPy
            cannot hand to torch, an integer of the same size.
        native: ``stored`` in native byte order.
        view: the torch dtype to read that integer as; None when it is not needed.
    """

    stored: np.dtype[Any]
    native: np.dtype[Any]
    view: torch.dtype | None

    @classmethod
    def of(cls, dtype: np.dtype[Any], name: str) -> _Layout:
        """Raises ValueError for a dtype that torch does not have."""
        # datetime64 and structured dtypes have names of their own, long double is float128
        torch_dtype = getattr(torch, dtype.name, None) if dtype.name in _SHARED_NAMES else None
        if not isinstance(torch_dtype, torch.dtype):
            raise ValueError(
                f"pool {name!r} has dtype {dtype}, which torch {torch.__version__} does not have; "
                "read it with SharedVector.get, or fill the pool with a dtype that torch has"
            )
        if dtype.type.__module__ == "numpy":
            return cls(dtype, dtype.newbyteorder("="), None)
        stored = np.dtype("u1" if dtype.itemsize == 1 else "i2").newbyteorder(dtype.byteorder)
        return cls(stored, stored.newbyteorder("="), torch_dtype)

    def copy(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """A tensor of the chunk's shape over memory of its own."""
        if self.view is None:
            return torch.from_numpy(np.array(array, dtype=self.native, order="C"))
        raw = np.array(array.view(self.stored), dtype=self.native, order="C")
        return torch.from_numpy(raw).view(self.view)
