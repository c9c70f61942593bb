"""A pool as a map-style PyTorch dataset: needs torch to be imported, unlike the package."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from sharedvector._common import seconds
from sharedvector._coordination import PoolPaths, wait_and_look
from sharedvector.stats import PoolStats, collect_stats
from sharedvector.vector import PoolStalledError

try:
    import torch
    from torch.utils.data import Dataset, get_worker_info
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError("SharedMemoryDataset needs: pip install 'sharedvector[torch]'") from _error

from sharedvector.training.batch_memory import (
    BatchMemory,
    as_transforms,
    check_meta_key,
    shared_tensor,
)
from sharedvector.training.collate import Batch
from sharedvector.training.reading import Reader, ReadOptions

if TYPE_CHECKING:
    from sharedvector._pool import PoolHandle

__all__ = ["SharedMemoryDataset", "Transform"]

Transform = Callable[[dict[str, Any]], dict[str, Any]]


class SharedMemoryDataset(Dataset[dict[str, Any]]):
    """The slots of a pool as items. The pool is refreshed behind it: an index names a slot.

    Item ``i`` is ``{"data": tensor}``, of shape (1, ...) with the chunk's shape behind the 1, and
    ``meta_key: float32 tensor`` of shape (n,) when the chunk has metadata; both belong to the same
    chunk, also when it is replaced meanwhile. Tensors are copies in native byte order: changing
    them changes nobody else's data, and no chunk is pinned when the transforms run.

    With ``crop``, ``flip``, ``dtype``, ``scale`` or ``offset`` chunks are cut, mirrored and
    converted while they are copied, as `PoolLoader` does it: only what is cut out is copied. The
    places and mirrorings are drawn from torch's default generator, as transforms draw: a
    DataLoader seeds it anew in each worker and epoch, and ``torch.manual_seed`` repeats them.

    A DataLoader with a batch size reads a batch at once (`__getitems__`): its chunks are copied
    side by side into the memory of the batch, each once and pinned while it is copied, so that a
    large batch needs no more spare buffers than one item. What torch's default collate function
    makes of items that are unchanged, or changed in place, is that memory itself; in workers it is
    memory that the parent shares. Transforms that return new tensors, items that are nested or that
    somebody keeps, chunks of different shapes and other collate functions cost the usual further
    copy. The memory of two batches is kept for the next ones. An item that is kept keeps the memory
    of its batch; a clone does not.

    Works in DataLoader workers under fork (the pool is used through the inherited handle), spawn
    and forkserver (pickles carry the name; the copy attaches at its first item).

    Args:
        name: the pool's name.
        slot_count: length of the dataset; the pool must have at least so many slots filled.
        ready_timeout: seconds to wait for the pool to become ready.
        poll_interval: seconds between two looks while waiting.
        transforms: called one after the other, each with what the one before returned; None: none.
        meta_key: key of the metadata in the item.
        strict: ready means that the present owner has said so; otherwise filled slots are enough.
        lock_dir: directory of the coordination files; None as in `ensure_pool`.
        crop: shape to cut out of each chunk, at a random place of its own, one length per
            dimension of the chunk; chunks may then differ in shape. None: whole chunks.
        dtype: of the tensors (NumPy's or torch's); None: the pool's in native byte order.
        scale: factor for the values; needs a floating ``dtype``.
        offset: added to the scaled values; needs a floating ``dtype``.
        flip: dimensions of the chunk to reverse at random, each with probability 1/2 per item.

    Raises:
        TimeoutError: not ready in time; the message has the last reason.
        PoolStalledError: the pool is filled, but its living owner has given its producer up.
        ValueError: a bad name, time, ``slot_count`` or ``meta_key``, a dtype that torch does not
            have, or a ``crop``, ``flip``, ``scale`` or ``offset`` that does not suit the chunks.
        TypeError: ``slot_count`` is no integer, ``transforms`` is no sequence, one of them cannot
            be called, an argument is no number, or the pool's dtype cannot become ``dtype``.
    """

    def __init__(
        self,
        name: str,
        slot_count: int,
        ready_timeout: float = 60.0,
        poll_interval: float = 0.1,
        transforms: Sequence[Transform] | None = (),
        meta_key: str = "spacing",
        strict: bool = True,
        lock_dir: Path | str | None = None,
        *,
        crop: Sequence[int] | None = None,
        dtype: Any = None,
        scale: float | None = None,
        offset: float | None = None,
        flip: Sequence[int] = (),
    ) -> None:
        slot_count = operator.index(slot_count)
        if slot_count < 0:
            raise ValueError(f"slot_count should be 0 or more, got {slot_count}")
        check_meta_key(meta_key)
        self._paths = PoolPaths.for_name(name, lock_dir)
        self._slot_count = slot_count
        self._ready_timeout = seconds("ready_timeout", ready_timeout)
        self._poll_interval = seconds("poll_interval", poll_interval)
        self._transforms = as_transforms(transforms, "an item")
        self._meta_key = meta_key
        self._strict = strict
        self._options = ReadOptions.of(crop, dtype, scale, offset, flip)
        self._memory = BatchMemory(keep=2)
        self._attached: Reader | None = self._attach(self._ready_timeout)

    @classmethod
    def from_pool(cls, handle: PoolHandle, **kwargs: Any) -> SharedMemoryDataset:
        """Make a dataset of the pool behind a handle; name, slots and lock_dir come from it.

        Args:
            handle: from `ensure_pool`; not kept.
            **kwargs: the other arguments of the constructor.

        Raises:
            PoolGoneError, PoolStalledError: the handle's pool is over, which waiting cannot help.
        """
        handle.attach()
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
            ValueError: its chunk is smaller than ``crop``, or of fewer dimensions.
            PoolStalledError: nobody refreshes the pool any more; the message has the reason.
            TimeoutError: (first item of an unpickled copy) the pool is not ready.
        """
        slot, reader = self._slot(index), self._usable()
        if reader.is_plain:
            return self._item(*reader.copy(slot, self._memory.tensor))
        whole, (meta,) = reader.gather_one(slot, self._memory.tensor, _draw)
        return self._item(whole[0], meta)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Copy the current chunks of several slots out: as ``[dataset[i] for i in indices]``.

        Raises:
            IndexError, PoolStalledError, TimeoutError: as ``dataset[i]``; no item is returned.
        """
        if type(self).__getitem__ is not SharedMemoryDataset.__getitem__:
            return [self[index] for index in indices]  # a subclass has items of its own
        slots, reader = [self._slot(index) for index in indices], self._usable()
        shape = reader.shape_of(slots)
        if shape is None:
            return [self[slot] for slot in slots]
        make = self._memory.tensor if get_worker_info() is None else shared_tensor
        try:
            whole, metas = reader.gather(slots, shape, make, _draw)
        except ValueError:  # a chunk of another shape has come meanwhile
            return [self[slot] for slot in slots]
        return [
            self._item(tensor, meta)
            for tensor, meta in zip(Batch(whole).items(reader.layout.native), metas, strict=True)
        ]

    def stats(self) -> PoolStats:
        """Return the pool's statistics, as `collect_stats` does.

        An unpickled copy that has given no item yet looks once whether the pool is ready: numbers
        for a log are nothing to wait for.

        Raises:
            TimeoutError: (such a copy) it is not; the message has the reason.
            PoolStalledError: (such a copy) the pool's owner has given its producer up.
        """
        if self._attached is None:
            self._attached = self._attach(0.0)
        return collect_stats(self._attached.vector)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the attachment."""
        return {**self.__dict__, "_attached": None}

    def _usable(self) -> Reader:
        attached = self._attached
        if attached is None:
            attached = self._attached = self._attach(self._ready_timeout)
        if attached.vector.retired:
            raise PoolStalledError(
                f"pool {self.name!r} is not refreshed any more: {attached.vector.retired_reason}; "
                "start a new one with ensure_pool and make the dataset anew"
            )
        return attached

    def _slot(self, index: SupportsIndex) -> int:
        slot = operator.index(index)
        if slot < 0:
            slot += self._slot_count
        if not 0 <= slot < self._slot_count:
            raise IndexError(f"index {index} is out of range for {self._slot_count} slots")
        return slot

    def _item(self, data: torch.Tensor, meta: NDArray[np.float64]) -> dict[str, Any]:
        item: dict[str, Any] = {"data": data}
        if meta.size:
            item[self._meta_key] = torch.from_numpy(meta.astype(np.float32))
        for transform in self._transforms:
            item = transform(item)
        return item

    def _attach(self, timeout: float) -> Reader:
        deadline = time.monotonic() + timeout
        found = wait_and_look(
            self._paths, self._slot_count, deadline, self._poll_interval, self._strict
        )
        vector = found.vector  # the one that was ready: the name may lead elsewhere by now
        assert vector is not None
        return Reader(vector, self.name, self._options, 0)


def _draw(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Random numbers of torch's default generator, which a DataLoader seeds in each worker."""
    return torch.rand(shape, dtype=torch.float64, device="cpu").numpy()
