"""Items that lie side by side in the memory of their batch, and become that batch without a copy.

``torch.utils.data.default_collate`` looks its functions up in a table that others may extend. The
one for tensors is replaced here by one that looks whether the tensors are, in order, all items of a
`Batch`, still in their places. If so they are the batch. Whatever is not exactly as expected is
stacked by torch as ever, which is always right.

An item that lives on would share its memory with the batch. So items are handed over only when the
DataLoader itself collates them, who drops them right after, when each is a dict that holds its own
tensor, and when nobody else (a transform that remembers its item, a view of it, a dataset around
this one that keeps its lists) refers to the list, a dict, a tensor or its storage.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as _torch_collate
from torch.utils.data._utils import fetch as _torch_fetch

from sharedvector.training.batch_memory import bytes_of

__all__ = ["Batch"]

_Samples = list[dict[Any, Any]]
_Holders = tuple[int, ...]


class Batch:
    """A batch that is filled before its items are known to stay as they are.

    Args:
        whole: the batch, shape (items, ...), alone in its storage.
    """

    __slots__ = ("__array_interface__", "__weakref__", "storages", "whole")

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole
        self.storages: list[int] = []
        # NumPy takes the object for the owner of the memory: items keep it, and with it the batch.
        self.__array_interface__ = bytes_of(whole).__array_interface__

    def items(self, native: np.dtype[Any]) -> list[torch.Tensor]:
        """The items, each a tensor with a storage of its own over its part of the batch.

        Args:
            native: a NumPy dtype of the batch's item size that torch takes.
        """
        raw: NDArray[Any] = np.asarray(self).view(native).reshape(tuple(self.whole.shape))
        items = [torch.from_numpy(part).view(self.whole.dtype) for part in raw]
        # Whoever makes another tensor over the memory of an item keeps its storage, so that no
        # other one has its address.
        self.storages = [item.untyped_storage()._cdata for item in items]
        if items:
            _batches[self.whole.data_ptr()] = self
        return items


# By address of the first item; gone as soon as no item lives.
_batches: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()


def _holders(samples: _Samples, tensors: Sequence[torch.Tensor]) -> tuple[int, list[_Holders]]:
    """How many refer to the list, to each dict, its tensor and its storage, in Python and below."""
    found: list[_Holders] = []
    for place in range(len(tensors)):
        storage = tensors[place].untyped_storage()
        found.append(
            (
                sys.getrefcount(samples[place]),
                sys.getrefcount(tensors[place]),
                weakref.getweakrefcount(tensors[place]),
                tensors[place]._use_count(),  # type: ignore[attr-defined]
                sys.getrefcount(storage),
                torch._C._storage_Use_Count(storage._cdata),
            )
        )
    return sys.getrefcount(samples), found


def _in_place(tensor: torch.Tensor, batch: Batch, place: int) -> bool:
    whole = batch.whole
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.dtype is whole.dtype
        and tensor.shape == whole.shape[1:]
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and tensor.device == whole.device
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.data_ptr() == whole.data_ptr() + place * tensor.nbytes
        and tensor.untyped_storage()._cdata == batch.storages[place]
    )


def _samples_of(tensors: Sequence[torch.Tensor]) -> _Samples | None:
    """The items, dicts, that these tensors are taken from, if the DataLoader collates them."""
    code = default_collate.__code__
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_back is None or frame.f_back.f_code is not _FETCH:
        return None
    samples = frame.f_locals[code.co_varnames[0]]
    if type(samples) is not list or len(samples) != len(tensors):
        return None
    direct = all(
        type(samples[place]) is dict
        and any(value is tensors[place] for value in samples[place].values())
        for place in range(len(tensors))
    )
    return samples if direct else None


def _batch_of(tensors: Sequence[torch.Tensor]) -> Batch | None:
    """The batch that these are all items of, in their order and places."""
    first = tensors[0]
    if type(first) is not torch.Tensor or first.layout is not torch.strided:
        return None
    batch = _batches.get(first.data_ptr())
    if batch is None or len(tensors) != len(batch.whole):
        return None
    in_place = all(_in_place(tensor, batch, place) for place, tensor in enumerate(tensors))
    return batch if in_place else None


def _whole_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The batch that these items may become."""
    batch = _batch_of(tensors)
    samples = None if batch is None else _samples_of(tensors)
    if batch is None or samples is None:
        return None
    around, (head, others) = _unshared
    if _holders(samples, tensors) != (around, [head, *[others] * (len(tensors) - 1)]):
        return None
    return batch.whole


def _collate_tensors(
    batch: Sequence[torch.Tensor], *, collate_fn_map: dict[Any, Any] | None = None
) -> Any:
    whole = _whole_of(batch) if _batches else None
    return _stack(batch, collate_fn_map=collate_fn_map) if whole is None else whole


class _Probe:
    """A dataset of items that nobody else has."""

    def __getitems__(self, indices: Sequence[int]) -> _Samples:
        return [{"data": torch.zeros(1, device="cpu")} for _ in indices]


def _measure() -> tuple[int, list[_Holders]]:
    """What `_holders` finds for two items that nobody else has."""
    found: list[tuple[int, list[_Holders]]] = []

    def look(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> None:
        samples = _samples_of(batch)
        if samples is not None:
            found.append(_holders(samples, batch))

    # A function of the same code with a table of its own: other threads may use the real one.
    table = {**_torch_collate.default_collate_fn_map, torch.Tensor: look}
    collate = FunctionType(
        default_collate.__code__,
        {**default_collate.__globals__, "default_collate_fn_map": table},
    )
    fetcher: Any = _torch_fetch._MapDatasetFetcher(_Probe(), True, collate, False)
    fetcher.fetch([0, 1])
    return found[0]


_stack: Callable[..., Any] = _torch_collate.default_collate_fn_map[torch.Tensor]
try:
    _FETCH = _torch_fetch._MapDatasetFetcher.fetch.__code__
    _unshared = _measure()
    _is_torchs_own = _stack is _torch_collate.collate_tensor_fn
except (AttributeError, IndexError, KeyError, TypeError):
    pass  # a torch without these: batches are stacked
else:
    if _is_torchs_own:  # else somebody else's function wants to see the tensors
        _torch_collate.default_collate_fn_map[torch.Tensor] = _collate_tensors
