"""Items that lie side by side in the memory of their batch, and become that batch without a copy.

``torch.utils.data.default_collate`` looks its functions up in a table that others may extend. The
one for tensors is replaced here by one that looks whether the tensors are, in order, all items of a
`Batch`, still in their places. If so they are the batch. Whatever is not exactly as expected is
stacked by torch as ever, which is always right.

An item that lives on would share its memory with the batch. So items are handed over only when the
DataLoader itself collates them, who drops them right after, and when nobody else (a transform that
remembers its item, a view of it) refers to one of them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as _torch_collate
from torch.utils.data._utils import fetch as _torch_fetch

from sharedvector._batch import bytes_of

__all__ = ["Batch"]

_Holders = tuple[int, int, int, int]


class Batch:
    """A batch that is filled before its items are known to stay as they are.

    Args:
        whole: the batch, shape (items, ...), alone in its storage.
    """

    __slots__ = ("__array_interface__", "__weakref__", "whole")

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole
        # NumPy takes the object for the owner of the memory: items keep it, and with it the batch.
        self.__array_interface__ = bytes_of(whole).__array_interface__

    def items(self, native: np.dtype[Any]) -> list[torch.Tensor]:
        """The items, each a tensor with a storage of its own over its part of the batch.

        Args:
            native: a NumPy dtype of the batch's item size that torch takes.
        """
        raw: NDArray[Any] = np.asarray(self).view(native).reshape(tuple(self.whole.shape))
        items = [torch.from_numpy(part).view(self.whole.dtype) for part in raw]
        if items:
            _batches[self.whole.data_ptr()] = self
        return items


# By address of the first item; gone as soon as no item lives.
_batches: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()


def _holders(tensors: Sequence[torch.Tensor]) -> list[_Holders]:
    """How many refer to each tensor and to its storage, in Python and below it."""
    found = []
    for place in range(len(tensors)):
        storage = tensors[place].untyped_storage()
        found.append(
            (
                sys.getrefcount(tensors[place]),
                tensors[place]._use_count(),  # type: ignore[attr-defined]
                sys.getrefcount(storage),
                torch._C._storage_Use_Count(storage._cdata),
            )
        )
    return found


def _in_place(tensor: torch.Tensor, whole: torch.Tensor, place: int) -> bool:
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
    )


def _called_by(function: CodeType, caller: CodeType) -> bool:
    """Whether ``function`` runs in this thread, called by ``caller``."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not function:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_back is not None and frame.f_back.f_code is caller


def _batch_of(tensors: Sequence[torch.Tensor]) -> Batch | None:
    """The batch that these are all items of, in their order and places."""
    first = tensors[0]
    if type(first) is not torch.Tensor or first.layout is not torch.strided:
        return None
    batch = _batches.get(first.data_ptr())
    if batch is None or len(tensors) != len(batch.whole):
        return None
    in_place = all(_in_place(tensor, batch.whole, place) for place, tensor in enumerate(tensors))
    return batch if in_place else None


def _whole_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The batch that these items may become."""
    batch = _batch_of(tensors)
    if batch is None or not _called_by(default_collate.__code__, _FETCH):
        return None
    head, others = _unshared
    if _holders(tensors) != [head, *[others] * (len(tensors) - 1)]:
        return None
    return batch.whole


def _collate_tensors(
    batch: Sequence[torch.Tensor], *, collate_fn_map: dict[Any, Any] | None = None
) -> Any:
    whole = _whole_of(batch) if _batches else None
    return _stack(batch, collate_fn_map=collate_fn_map) if whole is None else whole


def _measure() -> tuple[_Holders, _Holders]:
    """What `_holders` finds for the first and the other tensors of items that nobody else has."""
    found: list[list[_Holders]] = []

    def look(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> None:
        found.append(_holders(batch))

    table = _torch_collate.default_collate_fn_map
    _torch_collate.collate(
        [{"data": torch.zeros(1)} for _ in range(2)],
        collate_fn_map={**table, torch.Tensor: look},
    )
    return found[0][0], found[0][1]


_stack: Callable[..., Any] = _torch_collate.default_collate_fn_map[torch.Tensor]
try:
    _FETCH = _torch_fetch._MapDatasetFetcher.fetch.__code__
    _unshared = _measure()
except AttributeError:
    pass  # a torch without these: batches are stacked
else:
    _torch_collate.default_collate_fn_map[torch.Tensor] = _collate_tensors
