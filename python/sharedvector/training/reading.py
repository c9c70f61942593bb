"""How chunks become tensors: copied as they are, or cut, mirrored and converted on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from sharedvector import _core
from sharedvector._common import integer
from sharedvector.dtypes import as_dtype
from sharedvector.training import batch_memory
from sharedvector.training.batch_memory import Layout, bytes_of

if TYPE_CHECKING:
    from sharedvector.vector import SharedVector

__all__ = ["ReadOptions", "Reader", "integers"]

Make = Callable[[Sequence[int], torch.dtype], torch.Tensor]
Draw = Callable[[tuple[int, ...]], NDArray[np.float64]]


@dataclass(frozen=True)
class ReadOptions:
    """What a reader asks `SharedVector.gather` for.

    Attributes:
        crop: shape to cut out of each chunk, at random; None: whole chunks.
        dtype: of the tensors; None: the pool's in native byte order.
        scale: factor for the values; None: 1.
        offset: added to the scaled values; None: 0.
        flip: dimensions to reverse at random.
    """

    crop: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    scale: float | None = None
    offset: float | None = None
    flip: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether chunks are copied as they are."""
        others = (self.crop, self.dtype, self.scale, self.offset)
        return not self.flip and all(option is None for option in others)

    @classmethod
    def of(
        cls,
        crop: Sequence[int] | None,
        dtype: Any,
        scale: float | None,
        offset: float | None,
        flip: Sequence[int],
    ) -> Self:
        """Check the arguments that users give.

        Raises:
            ValueError: a length below 1, a number that is not finite, no such dtype, or ``flip``
                names a dimension that the crop does not have.
            TypeError: no number, or no sequence of integers.
        """
        options = cls(
            None if crop is None else integers("crop", crop, "lengths", 1),
            _numpy_dtype(dtype),
            _finite("scale", scale),
            _finite("offset", offset),
            integers("flip", flip, "dimensions"),
        )
        if options.crop is not None:
            _check_flip(options.flip, len(options.crop))
        return options


class Reader:
    """Reads chunks of an attached pool into tensors.

    Args:
        vector: the pool.
        name: the pool's, for messages.
        options: what to ask for.
        slot: one that will be read; what cannot work with its chunk is refused now.

    Raises:
        ValueError: a dtype that torch does not have, ``scale`` or ``offset`` without a floating
            dtype, or ``crop`` or ``flip`` that do not fit the chunk in ``slot``.
        TypeError: the pool's dtype cannot become ``dtype``.
    """

    def __init__(self, vector: SharedVector, name: str, options: ReadOptions, slot: int) -> None:
        self.vector = vector
        self._options = options
        self._dtype = vector.numpy_dtype if options.dtype is None else options.dtype
        self.layout = Layout.of(self._dtype, name)
        self.is_plain = options.is_plain
        if not self.is_plain:
            self._check(name, slot)

    def _check(self, name: str, slot: int) -> None:
        options, vector = self._options, self.vector
        scaled = options.scale is not None or options.offset is not None
        if scaled and not self.layout.torch_dtype.is_floating_point:
            raise ValueError(
                f"scale and offset need a floating dtype, got {self._dtype}; pass dtype='float32'"
            )
        try:
            vector.gather([], None, ([0], [1]), options.dtype, options.scale, options.offset)
        except TypeError as error:
            raise TypeError(
                f"dtype, scale and offset should suit pool {name!r}: {error}"
            ) from error
        if slot >= len(vector):
            return
        shape = vector.get_chunk_shape(slot)
        crop = shape if options.crop is None else options.crop
        if len(crop) != len(shape):
            raise ValueError(
                f"crop should have one length per dimension of a chunk, got {crop} for the chunk "
                f"of shape {shape} in slot {slot}"
            )
        if any(length > there for length, there in zip(crop, shape, strict=True)):
            raise ValueError(
                f"crop should fit into the chunks, got {crop} for the chunk of shape {shape} in "
                f"slot {slot}"
            )
        _check_flip(options.flip, len(shape))

    def shape_of(self, slots: Sequence[int] | NDArray[Any]) -> tuple[int, ...] | None:
        """Return the shape that the chunks of these slots are read with; None: they differ."""
        if self._options.crop is not None:
            return self._options.crop
        shapes = {self.vector.get_chunk_shape(int(slot)) for slot in slots}
        return shapes.pop() if len(shapes) == 1 else None

    def copy(self, slot: int, make: Make) -> tuple[torch.Tensor, NDArray[np.float64]]:
        """Copy a whole chunk as it is, for a reader who looks at it next.

        Args:
            slot: which one.
            make: makes the tensor of a shape and dtype.

        Returns:
            The chunk, of shape (1, ...), and its metadata; it is not pinned any more.
        """
        chunk, meta = self.vector.get_with_meta(slot)
        if chunk.nbytes < batch_memory.SMALL_BYTES:
            return self.layout.copy(chunk).unsqueeze(0), meta
        data = make((1, *chunk.shape), self.layout.torch_dtype)
        out = bytes_of(data).view(chunk.dtype).reshape(chunk.shape)
        # One thread: the other cores belong to the other workers.
        _core.copy(out, chunk, 1)
        self.layout.make_native(out)
        return data, meta

    def gather(
        self, slots: Sequence[int] | NDArray[Any], shape: tuple[int, ...], make: Make, draw: Draw
    ) -> tuple[torch.Tensor, list[NDArray[np.float64]]]:
        """Copy chunks, or what is cut out of them, side by side.

        Args:
            slots: which ones.
            shape: as `shape_of` gives it.
            make: makes the tensor of a shape and dtype.
            draw: gives random numbers, 0 <= u < 1, in an array of the shape that it is given.

        Returns:
            The batch, of shape (slots, 1, ...), and the metadata of each chunk.

        Raises:
            ValueError: the chunks differ in shape, or crop or flip do not fit.
        """
        data = make((len(slots), 1, *shape), self.layout.torch_dtype)
        out = bytes_of(data).view(self._dtype).reshape((len(slots), *shape))
        chosen = self._options
        options: dict[str, Any] = {
            "dtype": chosen.dtype,
            "scale": chosen.scale,
            "offset": chosen.offset,
        }
        if chosen.crop is not None:
            options["crop"] = (draw((len(slots), len(shape))), chosen.crop)
        if chosen.flip:
            _check_flip(chosen.flip, len(shape))
            flips = np.zeros((len(slots), len(shape)), np.bool_)
            flips[:, chosen.flip] = draw((len(slots), len(chosen.flip))) < 0.5
            options["flip"] = flips
        _, metas = self.vector.gather_with_meta(slots, out=out, **options)
        self.layout.make_native(out)
        return data, metas

    def gather_one(
        self, slot: int, make: Make, draw: Draw
    ) -> tuple[torch.Tensor, list[NDArray[np.float64]]]:
        """Do what `gather` does for one chunk, whatever its shape."""
        while True:
            shape = self.shape_of([slot])
            assert shape is not None
            try:
                return self.gather([slot], shape, make, draw)
            except ValueError:
                if self.shape_of([slot]) == shape:
                    raise  # else a chunk of another shape has come meanwhile


def integers(
    what: str, values: Iterable[SupportsIndex], of: str, least: int | None = None
) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple.

    Args:
        what: name of the argument, for the message.
        values: the integers.
        of: what they are, for the message.
        least: the smallest that makes sense; None: any does.

    Raises:
        TypeError: no sequence, or something in it is no integer.
        ValueError: one is less than ``least``.
    """
    try:
        found = tuple(values)
    except TypeError:
        raise TypeError(f"{what} should be a sequence of {of}, got {values!r}") from None
    return tuple(integer(what, value, least) for value in found)


def _finite(what: str, value: float | None) -> float | None:
    try:
        finite = value is None or math.isfinite(value)
    except TypeError:
        raise TypeError(f"{what} should be a number, got {value!r}") from None
    if not finite:
        raise ValueError(f"{what} should be a finite number, got {value}")
    return value


def _check_flip(flip: tuple[int, ...], ndim: int) -> None:
    if not all(-ndim <= axis < ndim for axis in flip):
        raise ValueError(f"flip should name dimensions of a chunk, which has {ndim}, got {flip}")


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    return as_dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
