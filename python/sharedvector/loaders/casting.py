"""Casts between dtypes that clip instead of wrap, and the dtypes that a pool accepts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedvector import _core
from sharedvector.dtypes import as_dtype, decode_dtype, is_extension

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_log = logging.getLogger("sharedvector")

_FEW = 16  # levels
_CAST_BLOCK = 1 << 16  # elements: a block and its temporary stay in the second-level cache


def resolve_numpy_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the NumPy dtype for a name that a pool accepts.

    Accepted are all fixed-size dtypes without Python objects, in either byte order ("float32",
    "int16", ">i2", "complex64", "datetime64[s]", structured ones, ...), and "bfloat16" and
    "float8_...", in that of the machine, when the package ml_dtypes is installed.

    Raises:
        ValueError: not a dtype, no fixed size, holds objects, or needs ml_dtypes.
    """
    wanted = "a fixed-size NumPy dtype without objects, bfloat16 or float8"
    if dtype is None:
        raise ValueError(f"dtype should be {wanted}, got None; name one, such as 'float32'")
    try:
        found = as_dtype(dtype)
    except (TypeError, ValueError, ImportError) as error:
        raise ValueError(f"dtype should be {wanted}, got {dtype!r}: {error}") from error
    if is_extension(found) and not found.name.startswith(("bfloat16", "float8")):
        raise ValueError(f"dtype should be {wanted}, got {dtype!r}")
    return found


def cast_volume(volume: np.ndarray[Any, Any], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Return ``volume`` in another dtype, with values out of range clipped, never wrapped.

    To integers, those of ml_dtypes too: values are clipped to the range of ``dtype`` (infinities
    too), fractions cut off towards zero, NaN becomes 0, complex numbers lose their imaginary part
    (NumPy warns). To everything else: as ``ndarray.astype`` does. Beyond the range of a float dtype
    that is infinity or, where it has none (such as float8_e4m3fn), NaN, or where it has neither
    (such as float4_e2m1fn), its largest value.

    Args:
        volume: array of any shape and layout; not changed.
        dtype: the dtype to give.

    Returns:
        ``volume`` itself when it has that dtype, else a new C-contiguous array of its shape.

    Raises:
        TypeError: ``volume`` is no array, or NumPy has no cast between the two dtypes.
        ValueError: no dtype has this name.
        ImportError: it is one of ml_dtypes', which is not installed.
    """
    if not isinstance(volume, (np.ndarray, np.generic)):
        raise TypeError(
            f"volume should be a numpy.ndarray, got {type(volume).__name__}; convert it with "
            "numpy.asarray()"
        )
    target = decode_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if volume.dtype == target:
        return volume
    bounds = _integer_bounds(target)
    if bounds is not None:
        if volume.dtype.kind == "c":
            volume = volume.astype(volume.real.dtype)
        elif is_extension(volume.dtype) or volume.dtype.char == "e":
            volume = volume.astype(np.float32)  # exact, and float16 is slow to compute with
        elif volume.dtype.kind == "b" and bounds.max < 1:
            volume = volume.astype(np.uint8)  # True is beyond int1
        if volume.dtype.kind in "iuf":
            return _to_integers(volume, target, bounds)
    with np.errstate(over="ignore", invalid="ignore"):
        return volume.astype(target, order="C")


def move(destination: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy ``source`` into ``destination``, of the same shape, cast as `cast_volume` does it.

    Either may have any strides. The usual pairs of dtypes take one pass over the memory.
    """
    try:
        _core.move(destination, source)
    except TypeError:  # a pair of dtypes that the core leaves to NumPy
        np.copyto(destination, cast_volume(source, destination.dtype))


def _integer_bounds(target: np.dtype[Any]) -> Any:
    """The iinfo of an integer dtype, NumPy's or one of ml_dtypes'; None for all others."""
    if target.kind in "iu":
        return np.iinfo(target)
    if is_extension(target) and target.type.__name__.startswith(("int", "uint")):
        import ml_dtypes

        iinfo: Any = ml_dtypes.iinfo
        return iinfo(target.type)
    return None


def _to_integers(
    volume: np.ndarray[Any, Any], target: np.dtype[Any], bounds: Any
) -> np.ndarray[Any, Any]:
    """Clip, cut, NaN to 0, block by block; a block within the range needs neither.

    The largest integer may not exist as a float (float32 rounds 2**31 - 1 up): such values are
    clipped to the next float below, then get the exact bound.
    """
    low, high = _range_within(volume.dtype, bounds)
    out: np.ndarray[Any, Any] = np.empty(volume.shape, target)
    with _blocks(volume, out) as blocks:
        for block, result in blocks:
            if low <= block.min() and block.max() <= high:  # False for NaN
                np.copyto(result, block, casting="unsafe")
                continue
            clipped = np.clip(block, low, high)
            clipped[np.isnan(clipped)] = 0
            np.copyto(result, clipped, casting="unsafe")
            result[block > high] = bounds.max
            result[block < low] = bounds.min
    return out


def _range_within(dtype: np.dtype[Any], bounds: Any) -> tuple[Any, Any]:
    """The smallest and largest value of a dtype that are within integer bounds."""
    if dtype.kind != "f":
        source = np.iinfo(dtype)
        return max(source.min, bounds.min), min(source.max, bounds.max)
    low, high = dtype.type(bounds.min), dtype.type(bounds.max)
    return low, high if int(high) <= bounds.max else np.nextafter(high, dtype.type(0))


def _blocks(volume: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> Any:
    """Pairs of 1-D blocks of two arrays of one shape, in the order of the second."""
    return np.nditer(
        [volume, out],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"], ["writeonly"]],
        order="C",
        buffersize=_CAST_BLOCK,
    )


class CutFractions:
    """Tells, once, of a volume whose cast to integers leaves next to nothing of its values.

    Floats are cut off towards zero: of values from 0 to 1 nothing but zeros is left, and nobody
    sees that in a shape or a dtype. Each volume is looked at when it is first loaded.

    Args:
        dtype: what volumes are cast to.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._is_open = _integer_bounds(dtype) is not None
        self._seen: set[str] = set()

    def watch(self, name: str, dtype: np.dtype[Any]) -> Levels | None:
        """Return what counts the levels of a volume of ``dtype``; None: there is no need."""
        if not self._is_open or not _is_float(dtype) or name in self._seen:
            return None
        self._seen.add(name)
        return Levels()

    def look(self, name: str, parts: Iterable[np.ndarray[Any, Any]]) -> None:
        """Say so in the log if a volume of few levels has fractions.

        Args:
            name: of the volume, for the message.
            parts: its values before the cast, in any parts.
        """
        low, high, cut, source = math.inf, -math.inf, False, ""
        for part in parts:
            source = str(part.dtype)
            values = part.astype(np.float32) if is_extension(part.dtype) else part
            low = min(low, float(np.fmin.reduce(values, axis=None, initial=math.inf)))
            high = max(high, float(np.fmax.reduce(values, axis=None, initial=-math.inf)))
            cut = cut or bool(np.any((values != np.trunc(values)) & ~np.isnan(values)))
        if cut:
            self._is_open = False
            _log.warning(
                "%s: its %s values from %.6g to %.6g lose their fractions as %s, and little else "
                "is in them; load them with dtype='float32' (a pool has the dtype of its "
                "loader), or store them scaled",
                name, source, low, high, self._dtype,
            )  # fmt: skip


class Levels:
    """The range of integers that a cast has left."""

    def __init__(self) -> None:
        self._low: int | None = None
        self._high: int | None = None

    def add(self, array: np.ndarray[Any, Any]) -> None:
        """Take an array of integers into account."""
        if array.size:
            low, high = int(array.min()), int(array.max())
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)

    @property
    def few(self) -> bool:
        """Whether there are so few levels that fractions must have mattered, if there were any."""
        return self._low is not None and self._high is not None and self._high - self._low < _FEW


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (is_extension(dtype) and _integer_bounds(dtype) is None)
