"""Loaders: what turns one source (a file, a volume) into chunks for a pool.

Any object with ``__len__`` and ``__call__(source_index) -> list[Chunk]`` is a loader. Producer
workers are separate processes, so a loader has to pickle; the two here carry paths, no open files.
"""

from __future__ import annotations

import logging
import operator
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from sharedvector.spacing import check_directory, find_volumes, read_spacings, shorten

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = [
    "Chunk",
    "Loader",
    "NumpyLoader",
    "ZarrLoader",
    "cast_volume",
    "no_meta",
    "resolve_numpy_dtype",
]

logger = logging.getLogger("sharedvector")

_CAST_BLOCK = 1 << 16  # elements: a block and its temporary stay in the second-level cache


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


def resolve_numpy_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the NumPy dtype for a name that a pool accepts.

    Accepted are all fixed-size dtypes without Python objects, in either byte order ("float32",
    "int16", ">i2", "complex64", "datetime64[s]", structured ones, ...), and "bfloat16" and
    "float8_..." when the package ml_dtypes is installed.

    Raises:
        ValueError: not a dtype, no fixed size, holds objects, or needs ml_dtypes.
    """
    wanted = "a fixed-size NumPy dtype without objects, bfloat16 or float8"
    if dtype is None:
        raise ValueError(f"dtype should be {wanted}, got None; name one, such as 'float32'")
    if isinstance(dtype, str) and dtype.startswith(("bfloat16", "float8")):
        try:
            import ml_dtypes
        except ImportError as error:
            raise ValueError(f"dtype {dtype!r} needs: pip install ml_dtypes") from error
        dtype = getattr(ml_dtypes, dtype, dtype)
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"dtype should be {wanted}, got {dtype!r}: {error}") from error
    if found.hasobject or found.itemsize == 0 or found.subdtype is not None:
        raise ValueError(f"dtype should be {wanted}, got {dtype!r}")
    if _is_extension(found) and not found.name.startswith(("bfloat16", "float8")):
        raise ValueError(f"dtype should be {wanted}, got {dtype!r}")
    return found


def cast_volume(volume: np.ndarray[Any, Any], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Return ``volume`` in another dtype, with values out of range clipped, never wrapped.

    To integers: values are clipped to the range of ``dtype`` (infinities too), fractions cut off
    towards zero, NaN becomes 0, complex numbers lose their imaginary part (NumPy warns). To
    everything else: as ``ndarray.astype`` does.

    Args:
        volume: array of any shape and layout; not changed.
        dtype: the dtype to give.

    Returns:
        ``volume`` itself when it has that dtype, else a new C-contiguous array of its shape.
    """
    target = np.dtype(dtype)
    if volume.dtype == target:
        return volume
    if target.kind in "iu":
        if volume.dtype.kind == "c":
            volume = volume.astype(volume.real.dtype)
        elif _is_extension(volume.dtype) or volume.dtype.char == "e":
            volume = volume.astype(np.float32)  # exact, and float16 is slow to compute with
        if volume.dtype.kind in "iuf":
            return _to_integers(volume, target)
    with np.errstate(over="ignore", invalid="ignore"):
        return volume.astype(target, order="C")


class NumpyLoader:
    """One chunk per ``.npy`` file of a directory, in order of their names.

    Args:
        directory: where the files are.
        pattern: which files, as for `pathlib.Path.glob`. Directories that match are left out.
        dtype: the dtype of the chunks; other files are cast by `cast_volume`.

    Raises:
        FileNotFoundError: no such directory, or no file in it matches.
        ValueError: a bad ``dtype`` (see `resolve_numpy_dtype`).
    """

    def __init__(
        self, directory: Path | str, pattern: str = "*.npy", dtype: str = "float32"
    ) -> None:
        self._dtype = resolve_numpy_dtype(dtype)
        root = _absolute(directory)
        check_directory(root, "arrays")
        self._paths = [path for path in sorted(root.glob(pattern)) if path.is_file()]
        if not self._paths:
            raise FileNotFoundError(f"no file under {root} matches {pattern!r}")

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._paths)

    def __call__(self, source_index: int) -> list[Chunk]:
        """Read one file.

        Returns:
            One chunk, C-contiguous, without metadata. A scalar file gives shape (1,).

        Raises:
            IndexError: no such source.
            OSError, ValueError: the file cannot be read as an array; the message names it.
        """
        path = self._paths[source_index]
        try:
            array = np.load(path, allow_pickle=False)
        except Exception as error:
            raise _read_error(path, error) from error
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path} holds several arrays; a source should be one .npy array")
        if array.dtype.kind == "V" and array.dtype.names is None and _is_extension(self._dtype):
            # .npy files keep only the size of bfloat16 and float8
            if array.dtype.itemsize == self._dtype.itemsize:
                array = array.view(self._dtype)
        try:
            data = np.ascontiguousarray(cast_volume(array, self._dtype))
        except (TypeError, ValueError) as error:
            raise _read_error(path, error) from error
        return [Chunk(data, no_meta())]


class ZarrLoader:
    """Slabs of Zarr v3 volumes; each array directly under a directory is one volume.

    A volume is read once, turned end to end along axis 0 with probability 1/2, and cut into slabs
    of ``slices_per_chunk`` along axis 0; what is left over at the end is dropped. Volumes thinner
    than a slab are named in the log. So are groups, Zarr v2 arrays and stray directories, which are
    not counted.

    **Flips.** Every process draws from a generator of its own, made at its first call (in a forked
    child: its own first call). ``seed=None`` takes it from the operating system; an ``int`` makes
    it the same in each run for the same ``seed`` and the same `worker_id`. The worker's number
    alone tells the streams of one seed apart: set `worker_id` in each worker before its first
    call. The pool's producers do.

    Args:
        directory: where the volumes are.
        slices_per_chunk: slices in one slab; 0 takes the whole volume as one chunk.
        spacing_file: JSON ``{volume name: [x, y, z]}`` as `write_spacing_manifest` writes it; each
            chunk then carries (z, y, x), the order of the array's axes, as its metadata.
        dtype: dtype of the chunks; other volumes are cast by `cast_volume`.
        seed: see above.

    Attributes:
        worker_id: number of the process among those with the same seed; 0 at first.

    Raises:
        FileNotFoundError: no such directory, no volume in it, or no ``spacing_file``.
        ValueError: bad ``dtype`` or ``slices_per_chunk``, or a volume without three finite numbers
            in the spacing file.
        TypeError: ``slices_per_chunk`` is no integer.
    """

    def __init__(
        self,
        directory: Path | str,
        slices_per_chunk: int,
        spacing_file: Path | str | None = None,
        dtype: str = "int16",
        seed: int | None = None,
    ) -> None:
        self._slices = operator.index(slices_per_chunk)
        if self._slices < 0:
            raise ValueError(
                f"slices_per_chunk should be positive, or 0 for whole volumes, got {self._slices}"
            )
        self._dtype = resolve_numpy_dtype(dtype)
        self._directory = _absolute(directory)
        volumes = find_volumes(self._directory)
        self._names = tuple(volumes)
        self._depths = tuple(_depth(metadata) for metadata in volumes.values())
        self._warn_of_thin_volumes()
        self._spacings = (
            None if spacing_file is None else read_spacings(Path(spacing_file), self._names)
        )
        self._seed = seed
        self.worker_id = 0
        self._generator: tuple[tuple[int, int], random.Random] | None = None

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(self._names)

    def __call__(self, source_index: int) -> list[Chunk]:
        """Read one volume.

        Returns:
            Its slabs in order, C-contiguous, of shape (slices_per_chunk, ...). Without flip and
            cast they are views of one array. ``[]`` for a volume thinner than a slab.

        Raises:
            IndexError: no such source.
            OSError, ValueError, RuntimeError: it cannot be read; the message names the volume.
            ImportError: zarr is not installed.
        """
        path = self._directory / self._names[source_index]
        flip = self._draw()
        try:
            volume = self._read(path)
        except ImportError:
            raise
        except Exception as error:
            raise _read_error(path, error) from error
        if volume is None:
            return []
        if flip:
            volume = volume[::-1]
        step = self._slices or len(volume)
        starts = range(0, len(volume) - step + 1, step)
        slabs = [self._finish(volume[start : start + step]) for start in starts]
        return [Chunk(slab, self._meta(source_index)) for slab in slabs]

    def explain_empty(self, source_index: int) -> str:
        """Return why a volume gives no chunk, for the message about a pool that stays empty."""
        name, depth = self._names[source_index], self._depths[source_index]
        return f"volume {name} has {depth} slices, slices_per_chunk={self._slices}"

    def _warn_of_thin_volumes(self) -> None:
        thin = [
            f"{name} ({depth})"
            for name, depth in zip(self._names, self._depths, strict=True)
            if depth is not None and depth < self._slices
        ]
        if thin:
            logger.warning(
                "%s: %d of %d volumes have fewer slices than slices_per_chunk=%d and give no "
                "chunk: %s",
                self._directory, len(thin), len(self._names), self._slices, shorten(thin),
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: paths and settings, not the generator."""
        return {**self.__dict__, "_generator": None}

    def _read(self, path: Path) -> np.ndarray[Any, Any] | None:
        """The whole volume, or None when it is too thin for one slab."""
        try:
            import zarr
        except ImportError as error:
            raise ImportError("ZarrLoader needs: pip install 'sharedvector[zarr]'") from error
        array = zarr.open_array(store=str(path), mode="r", zarr_format=3)
        if array.ndim == 0:
            raise ValueError("a volume should have at least one axis, this one is a scalar")
        if array.shape[0] < max(1, self._slices):
            return None
        return np.asarray(array[...])

    def _finish(self, slab: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # a cast makes the flipped slab contiguous on the way; without one that is the only copy
        return np.ascontiguousarray(cast_volume(slab, self._dtype))

    def _meta(self, source_index: int) -> np.ndarray[Any, Any]:
        if self._spacings is None:
            return no_meta()
        return np.array(self._spacings[source_index][::-1], dtype=np.float64)

    def _draw(self) -> bool:
        key = (os.getpid(), self.worker_id)
        if self._generator is None or self._generator[0] != key:
            seed = None if self._seed is None else f"{self._seed}/{self.worker_id}"
            self._generator = (key, random.Random(seed))
        return self._generator[1].random() < 0.5


def _depth(metadata: dict[str, Any]) -> int | None:
    """Slices of a volume as its zarr.json has them; None where that is damaged."""
    shape = metadata.get("shape")
    depth = shape[0] if isinstance(shape, list) and shape else None
    return depth if isinstance(depth, int) else None


def _absolute(directory: Path | str) -> Path:
    """The same place for a worker that runs in another directory."""
    return Path(os.path.abspath(directory))


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of ml_dtypes'."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _read_error(path: Path, error: Exception) -> Exception:
    """The error to raise for a source that cannot be read: its kind, with the path in front."""
    message = f"source {path} cannot be read: {type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return OSError(error.errno, message) if error.errno is not None else OSError(message)
    if isinstance(error, MemoryError):
        return MemoryError(message)
    return ValueError(message) if isinstance(error, ValueError) else RuntimeError(message)


def _to_integers(volume: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Clip, cut, NaN to 0, block by block; a block within the range needs neither.

    The largest integer may not exist as a float (float32 rounds 2**31 - 1 up): such values are
    clipped to the next float below, then get the exact bound.
    """
    bounds = np.iinfo(target)
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


def _range_within(dtype: np.dtype[Any], bounds: np.iinfo[Any]) -> tuple[Any, Any]:
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
