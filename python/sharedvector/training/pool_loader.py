"""Batches of a pool without workers: gathered in C, by a thread, ahead of the training loop."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sharedvector._common import integer
from sharedvector.stats import PoolStats, collect_stats
from sharedvector.training.prefetch import feed
from sharedvector.training.ranks import rank_of
from sharedvector.training.sampling import Sampling, check_sampling, draws, slots_of
from sharedvector.vector import PoolStalledError

try:
    import torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError("PoolLoader needs: pip install 'sharedvector[torch]'") from _error

from sharedvector.training.batch_memory import BatchMemory, as_transforms, check_meta_key
from sharedvector.training.reading import Reader, ReadOptions
from sharedvector.training.thread_state import like_this_thread

if TYPE_CHECKING:
    from sharedvector._pool import PoolHandle
    from sharedvector.training.dataset import Transform

__all__ = ["PoolLoader"]


class PoolLoader:
    """The batches of a pool, made by a thread of this process: no workers, one copy per chunk.

    A batch is ``{"data": tensor}``, of shape (batch_size, 1, ...) with the chunks' shape, or that
    of the crop, behind the 1, and ``meta_key: float32 tensor`` of shape (batch_size, n) when the
    chunks have metadata. Each item is one chunk with its own metadata, also when it is replaced
    meanwhile; chunks are pinned only while they are copied.

    Every ``iter()`` is the next epoch: `steps` batches, in an order that follows from ``seed``, the
    epoch and ``rank``. Ranks read different slots, and all the same number of batches. The same
    seed over a pool that is not refreshed gives the same batches; with sampling "least_read" also
    when nobody else reads.

    Batches are ordinary tensors that may be changed and kept. The memory of a batch is used again
    when the last tensor and array over it is gone, and never before; so a loop that drops its
    batches works in ``prefetch + 2`` of them, and who keeps batches pays for their memory.

    An error in the thread is raised by the next step. An iterator that is dropped half-way ends its
    thread. In a forked child and in a pickled copy the loader works anew.

    Args:
        handle: the pool, from `ensure_pool`; its ``slot_count`` slots are read.
        batch_size: items of a batch.
        crop: shape to cut out of each chunk, at a random place of its own, one length per
            dimension of the chunk. Only what is cut out is copied, and chunks may differ in shape.
        sampling: which slots make a batch. "uniform": any, none twice in a batch. "permutation":
            each slot once before one comes again. "least_read": those whose chunks have been read
            least since they were written.
        steps: batches of an epoch; None: as many as the slots of a rank fill.
        rank: of this process among those that share the pool; None, with ``world_size``: from the
            variables of its launcher (torchrun, Ray Train, Accelerate, DeepSpeed, Open MPI, MPICH,
            Intel MPI, MVAPICH, Slurm), else torch.distributed, else RANK and WORLD_SIZE.
        world_size: how many processes share the pool.
        seed: a number from 0 on; None: another one each time.
        pin_memory: put batches into page-locked memory, from which ``.to(device,
            non_blocking=True)`` does not wait. Without CUDA this is a warning, and nothing else.
        prefetch: batches to make ahead, at least 1.
        transforms: called one after the other in the thread, each with the batch that the one
            before returned; None: none.
        dtype: of the batches (NumPy's or torch's); None: the pool's in native byte order.
        scale: factor for the values; needs a floating ``dtype``.
        offset: added to the scaled values; needs a floating ``dtype``.
        flip: dimensions of the chunk to reverse at random, each with probability 1/2 per item.
        meta_key: key of the metadata in the batch.

    Raises:
        ValueError: an argument that makes no sense (the message says why), more ranks than slots,
            or a dtype that torch does not have.
        TypeError: ``transforms`` is no sequence, one of them cannot be called, or an argument is no
            number.
        PoolGoneError, PoolStalledError: the pool is gone, or not refreshed any more.
    """

    def __init__(
        self,
        handle: PoolHandle,
        batch_size: int,
        crop: Sequence[int] | None = None,
        sampling: Sampling = "uniform",
        steps: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
        transforms: Sequence[Transform] | None = (),
        *,
        dtype: Any = None,
        scale: float | None = None,
        offset: float | None = None,
        flip: Sequence[int] = (),
        meta_key: str = "spacing",
    ) -> None:
        check_sampling(sampling)
        self._handle = handle
        self._batch_size = integer("batch_size", batch_size, 1)
        self._sampling = sampling
        self._rank, world_size = rank_of(rank, world_size)
        if world_size > handle.slot_count:
            # All ranks see it: one that failed alone would leave the others waiting for it.
            raise ValueError(
                f"{world_size} ranks need a slot each, pool {handle.name!r} has {handle.slot_count}"
            )
        self._slots = slots_of(self._rank, world_size, handle.slot_count)
        self._steps = self._count_steps(steps, handle.slot_count // world_size)
        self._seed = secrets.randbits(64) if seed is None else integer("seed", seed, 0)
        self._prefetch = integer("prefetch", prefetch, 1)
        self._transforms = as_transforms(transforms, "a batch")
        self._options = ReadOptions.of(crop, dtype, scale, offset, flip)
        check_meta_key(meta_key)
        self._meta_key = meta_key
        self._epoch = 0
        self._memory = BatchMemory(self._prefetch + 2, pinned=_can_pin(pin_memory))
        self._reader: Reader | None = None
        self._attached()

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._handle.name

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the one of the next ``iter()``; those after it follow."""
        self._epoch = integer("epoch", epoch, 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin the next epoch.

        What the iterator raises: PoolStalledError when nobody refreshes the pool any more,
        ValueError when chunks differ in shape and there is no crop, when a crop or ``flip`` does
        not fit, or when some chunks have metadata and others not, TypeError when the pool's dtype
        cannot become ``dtype``, and what a transform raises.
        """
        maker = _Maker(self, self._epoch)
        self._epoch += 1
        return feed(maker, self._steps, self._prefetch, like_this_thread())

    def stats(self) -> PoolStats:
        """Return the pool's statistics, as `collect_stats` does."""
        return collect_stats(self._attached().vector)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the attachment."""
        return {**self.__dict__, "_reader": None}

    def _count_steps(self, steps: int | None, slots_of_each: int) -> int:
        if self._sampling == "least_read" and self._batch_size > slots_of_each:
            raise ValueError(
                f"sampling='least_read' needs {self._batch_size} slots per rank for a batch of "
                f"{self._batch_size}, there are {slots_of_each}"
            )
        if steps is not None:
            return integer("steps", steps, 0)
        if slots_of_each < self._batch_size:
            raise ValueError(
                f"the {slots_of_each} slots of a rank do not fill a batch of {self._batch_size}; "
                "pass steps=, or a smaller batch_size"
            )
        return slots_of_each // self._batch_size

    def _attached(self) -> Reader:
        if self._reader is None:
            vector = self._handle.attach()
            self._reader = Reader(vector, self.name, self._options, int(self._slots[0]))
        return self._reader


class _Maker:
    """Makes the batches of one epoch, one per call."""

    def __init__(self, loader: PoolLoader, epoch: int) -> None:
        self._loader = loader
        self._reader = loader._attached()
        self._rng = np.random.default_rng([loader._seed, epoch, loader._rank])
        self._draws = draws(
            loader._sampling,
            loader._slots,
            loader._batch_size,
            self._rng,
            self._reader.vector.read_counts,
        )

    def __call__(self) -> dict[str, Any]:
        loader, reader = self._loader, self._reader
        if reader.vector.retired:
            raise PoolStalledError(
                f"pool {loader.name!r} is not refreshed any more: {reader.vector.retired_reason}; "
                "start a new one with ensure_pool and make the loader anew"
            )
        slots = next(self._draws)
        shape = reader.shape_of(slots[:1])
        assert shape is not None
        try:
            data, metas = reader.gather(slots, shape, loader._memory.tensor, self._rng.random)
        except ValueError as error:
            if loader._options.crop is None:
                error.add_note("chunks that differ in shape need crop=")
            raise
        batch: dict[str, Any] = {"data": data}
        meta = _stack_metas(slots, metas)
        if meta.size:
            batch[loader._meta_key] = torch.from_numpy(meta)
        for transform in loader._transforms:
            batch = transform(batch)
        return batch


def _stack_metas(slots: NDArray[Any], metas: list[NDArray[np.float64]]) -> NDArray[np.float32]:
    first = metas[0].size
    for slot, meta in zip(slots, metas, strict=True):
        if meta.size != first:
            raise ValueError(
                f"slot {slots[0]} has {first} metadata values and slot {slot} has {meta.size}; "
                "chunks of a batch need the same number"
            )
    return np.array(metas, np.float32)


def _can_pin(wanted: bool) -> bool:
    if wanted and not torch.cuda.is_available():
        warnings.warn(
            "pin_memory=True, but torch finds no CUDA device: batches are in ordinary memory",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return wanted
