"""Memory for batches of tensors, used again once nobody looks at it, and the dtypes of tensors."""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    "SMALL_BYTES",
    "BatchMemory",
    "Layout",
    "as_transforms",
    "bytes_of",
    "check_meta_key",
    "shared_tensor",
]

# NumPy's and torch's names are the same for these; the unsigned ones from 16 bits on came with
# torch 2.3, some float8 with later versions.
_SHARED_NAMES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128 "
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
)

_HUGE_PAGE = 2 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which the mmap module does not name
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# Below this malloc gives out memory that it has had before.
SMALL_BYTES = 1 << 20


class Layout(NamedTuple):
    """How chunks of one dtype become tensors.

    Attributes:
        stored: the dtype to read a chunk as: its own, or for bfloat16 and float8, which NumPy
            cannot hand to torch, an integer of the same size.
        native: ``stored`` in native byte order.
        torch_dtype: the dtype of the tensor.
    """

    stored: np.dtype[Any]
    native: np.dtype[Any]
    torch_dtype: torch.dtype

    @classmethod
    def of(cls, dtype: np.dtype[Any], name: str) -> Layout:
        """Raises ValueError for a dtype that torch does not have; ``name`` is the pool's."""
        # datetime64 and structured dtypes have names of their own, long double is float128
        torch_dtype = getattr(torch, dtype.name, None) if dtype.name in _SHARED_NAMES else None
        if not isinstance(torch_dtype, torch.dtype):
            raise ValueError(
                f"pool {name!r} has dtype {dtype}, which torch {torch.__version__} does not have; "
                "read it with SharedVector.get, or fill the pool with a dtype that torch has"
            )
        if dtype.type.__module__ == "numpy":
            return cls(dtype, dtype.newbyteorder("="), torch_dtype)
        stored = np.dtype("u1" if dtype.itemsize == 1 else "i2").newbyteorder(dtype.byteorder)
        return cls(stored, stored.newbyteorder("="), torch_dtype)

    def copy(self, chunk: NDArray[Any]) -> torch.Tensor:
        """A tensor of the chunk's shape over memory of its own; meant for small chunks."""
        raw = np.array(chunk.view(self.stored), dtype=self.native, order="C")
        made = torch.from_numpy(raw)
        return made if made.dtype is self.torch_dtype else made.view(self.torch_dtype)

    def make_native(self, array: NDArray[Any]) -> None:
        """Swap the bytes of an array of the pool's dtype, in place, if they need it."""
        if self.stored != self.native:
            array.view(self.stored).byteswap(inplace=True)


class BatchMemory:
    """Gives tensors over memory that is used again when the last tensor or array over it is gone.

    Fresh memory costs more than the copy into it: the kernel clears it page by page. A tensor's
    memory comes back by itself, whoever held it last and in whatever thread; until then it is never
    touched. What is given out is not limited; at most ``keep`` pieces lie ready.

    Args:
        keep: pieces to keep; further ones are returned to the system.
        pinned: page-locked memory for CUDA. It comes from torch's own cache, which also knows the
            copies to the device that have not ended when a tensor is dropped.
    """

    def __init__(self, keep: int, pinned: bool = False) -> None:
        self._keep = keep
        self._pinned = pinned
        self._free: deque[mmap.mmap] = deque(maxlen=keep)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor whose elements are undefined. OSError or RuntimeError: there is no memory."""
        shape = tuple(shape)
        if self._pinned:
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes < SMALL_BYTES:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return _over(torch.from_numpy(self._lend(size_bytes)).untyped_storage(), shape, dtype)

    def _lend(self, size_bytes: int) -> NDArray[np.uint8]:
        block = self._take(size_bytes)
        # The storage keeps exactly this array, as it owns no view of another one; what is made from
        # the storage keeps the storage.
        array = np.frombuffer(block, np.uint8, count=size_bytes)
        weakref.finalize(array, self._free.append, block).atexit = False
        return array

    def _take(self, size_bytes: int) -> mmap.mmap:
        while True:
            try:
                block = self._free.pop()  # the last one used may still be in a cache
            except IndexError:
                break
            if len(block) >= size_bytes:
                return block
        if size_bytes >= _HUGE_PAGE:
            size_bytes = -(-size_bytes // _HUGE_PAGE) * _HUGE_PAGE
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size_bytes >= _HUGE_PAGE:
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes an empty one: memory is not pickled."""
        return {"keep": self._keep, "pinned": self._pinned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without any memory."""
        BatchMemory.__init__(self, **state)


def shared_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor, elements undefined, that goes to other processes by torch without a copy.

    Raises:
        RuntimeError: there is not so much shared memory.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size_bytes)  # type: ignore[no-untyped-call]
    # All pages in one call take half the time that they take one by one, as they are written. A
    # kernel that cannot (before Linux 5.14) refuses, and nothing is lost.
    _madvise(storage.data_ptr(), size_bytes, _POPULATE_WRITE)
    return _over(storage, tuple(shape), dtype)


def check_meta_key(meta_key: str) -> None:
    """Raises ValueError for the key of the chunks: metadata would take their place."""
    if meta_key == "data":
        raise ValueError("meta_key should not be 'data', which is the key of the chunks")


def as_transforms(
    transforms: Iterable[Callable[[dict[str, Any]], dict[str, Any]]] | None, takes: str
) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], ...]:
    """The transforms in order, None being none; each takes and returns a ``takes``.

    TypeError for what is no sequence, or has something in it that cannot be called.
    """
    wanted = f"that takes {takes} and returns one"
    try:
        found = tuple(() if transforms is None else transforms)
    except TypeError:
        raise TypeError(
            f"transforms should be a sequence of callables, each {wanted}, got {transforms!r}"
        ) from None
    for place, transform in enumerate(found):
        if not callable(transform):
            raise TypeError(f"transforms[{place}] should be a callable {wanted}, got {transform!r}")
    return found


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a tensor that has its storage to itself, as an array over the same memory."""
    storage = tensor.untyped_storage()
    return _over(storage, (storage.nbytes(),), torch.uint8).numpy()


def _over(
    storage: torch.UntypedStorage, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    made = torch.empty(0, dtype=dtype, device="cpu")  # whatever torch.set_default_device says
    return made.set_(storage, 0, shape, torch.empty(shape, device="meta").stride())
