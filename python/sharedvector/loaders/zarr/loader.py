"""The loader of Zarr volumes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedvector._common import integer
from sharedvector.dtypes import encode_dtype
from sharedvector.loaders.base import Chunk, no_meta, place_of, read_error
from sharedvector.loaders.casting import CutFractions, resolve_numpy_dtype
from sharedvector.loaders.spacing import read_spacings
from sharedvector.loaders.volumes import as_path, as_root, shorten
from sharedvector.loaders.zarr.discovery import find_volumes
from sharedvector.loaders.zarr.opener import ENGINES, Opener
from sharedvector.loaders.zarr.slabs import Allocate, Cut, Part

if TYPE_CHECKING:
    from sharedvector.loaders.zarr.engines import Source

__all__ = ["ZarrLoader"]

logger = logging.getLogger("sharedvector")

_AXES = 3


class ZarrLoader:
    """Slabs of Zarr volumes; each array directly under a directory is one volume.

    A volume is read once, turned end to end along axis 0 with probability 1/2, and cut into slabs
    of ``slices_per_chunk`` along axis 0; what is left over at the end is dropped. Volumes thinner
    than a slab are named in the log. So is whatever else is in the directory and is no plain file:
    links to nothing, groups, stray directories, arrays of other than three axes. They are not
    counted.

    **Flips.** Every process draws from a generator of its own, made at its first call (in a forked
    child: its own first call). ``seed=None`` takes it from the operating system; an ``int`` makes
    it the same in each run for the same ``seed`` and the same `worker_id`. The worker's number
    alone tells the streams of one seed apart: set `worker_id` in each worker before its first
    call. The pool's producers do.

    **Engines.** "direct" reads local Zarr v3 arrays on a regular grid, little-endian, plain or
    with one of the codecs zstd, blosc, gzip and numcodecs.lz4, in shards or not: each chunk is read
    once and decoded once, into its place. "zarr" is zarr-python and reads all that it can: Zarr v2,
    zip files, URLs, other codecs. "tensorstore" is for object stores. "auto" takes direct where it
    can and zarr elsewhere; the log says which, and why. All give the same chunks.

    One thread uses a loader at a time; others take a copy (`pickle`).

    Args:
        directory: where the volumes are: a directory, a ``.zip`` file, or a URL that fsspec or
            obstore reads. A URL that cannot be listed needs a group with consolidated metadata.
        slices_per_chunk: slices in one slab; 0, the default, takes the whole volume as one chunk.
        spacing_file: path or ``file://`` URL of JSON ``{volume name: [x, y, z]}`` as
            `write_spacing_manifest` writes it; each chunk then carries (z, y, x), the order of the
            array's axes, as its metadata.
        dtype: dtype of the chunks; other volumes are cast by `cast_volume`: into integers they
            are clipped, fractions are cut off, and NaN becomes 0. The log tells of a volume of
            which next to nothing is left by that, such as values from 0 to 1.
        seed: see above.
        engine: "auto", "direct", "zarr" or "tensorstore"; see above.
        missing: what becomes of Zarr chunks that were never stored: "fill" gives the array's fill
            value for them, as the format says, and counts them; "error" raises; slabs
            given before stay.

    Attributes:
        chunk_dtype: dtype of the chunks, as text.
        chunk_size: bytes of the largest chunk, by the volumes' metadata; None if none is readable.
        worker_id: number of the process among those with the same seed; 0 at first.
        buffers_at_once: the most slabs that `load_into` has allocated and not yet given.
        releases_gil: whether threads load as well as processes do.
        counters: volumes read by each engine, and "missing_chunks" (the engine zarr counts files;
            tensorstore counts none); begins at 0 in a copy.

    Raises:
        FileNotFoundError: no such directory, no volume in it, or no ``spacing_file``.
        ValueError: bad ``dtype``, ``slices_per_chunk``, ``engine`` or ``missing``; a volume that
            the engine cannot read, with the reason; one without three finite numbers in the
            spacing file.
        TypeError: ``slices_per_chunk`` is no integer.
        ImportError: the engine tensorstore, or what reads that URL, is not installed.
    """

    def __init__(
        self,
        directory: Path | str,
        slices_per_chunk: int = 0,
        spacing_file: Path | str | None = None,
        dtype: str = "int16",
        seed: int | None = None,
        engine: str = "auto",
        missing: str = "fill",
    ) -> None:
        self._slices = integer("slices_per_chunk", slices_per_chunk)
        if self._slices < 0:
            raise ValueError(
                f"slices_per_chunk should be positive, or 0 for whole volumes, got {self._slices}"
            )
        self._dtype = resolve_numpy_dtype(dtype)
        self._root = as_root(directory)
        volumes = _only_3d(self._root, find_volumes(self._root))
        self._names = tuple(volumes)
        self._depths = tuple(_depth(metadata) for metadata in volumes.values())
        self.chunk_dtype = encode_dtype(self._dtype)
        self.chunk_size = _largest_chunk(volumes, self._slices, self._dtype.itemsize)
        self._opener = Opener(self._root, self._slices, engine, missing, volumes)
        self._warn_of_thin_volumes(volumes)
        self._fractions = CutFractions(self._dtype)
        self._spacings = None
        if spacing_file is not None:
            self._spacings = read_spacings(as_path("spacing_file", spacing_file), self._names)
        self._seed = seed
        self.worker_id = 0
        self.buffers_at_once = self._opener.buffers_at_once
        self.releases_gil = self._opener.releases_gil
        self.counters = _no_counts()
        self._generator: tuple[tuple[int, int], random.Random] | None = None

    def __len__(self) -> int:
        """Return the number of volumes."""
        return len(self._names)

    def __call__(self, source_index: int) -> list[Chunk]:
        """Read one volume.

        Returns:
            Its slabs in order, each an array of its own of shape (slices_per_chunk, ...). ``[]``
            for a volume thinner than a slab.

        Raises:
            IndexError: no such source.
            OSError, ValueError, RuntimeError: it cannot be read; the message names the volume and,
                where one is damaged, the chunk.
            ImportError: zarr is not installed.
        """
        return list(self.load_into(source_index, lambda shape: np.empty(shape, self._dtype)))

    def load_into(self, source_index: int, allocate: Allocate) -> Iterator[Chunk]:
        """Read one volume into given memory.

        Args:
            source_index: number of the volume.
            allocate: makes a writable C-contiguous array of this loader's dtype and a given shape.
                At most `buffers_at_once` are open at a time.

        Returns:
            An iterator over the chunks that `__call__` gives, in the same order. Each is yielded as
            soon as it is complete; its array is one that ``allocate`` made, and not touched again.

        Raises:
            As `__call__`; IndexError at once, the others while iterating. A damaged chunk is never
            part of what was yielded.
        """
        source_index = place_of(source_index, len(self))
        return self._load(source_index, self._names[source_index], self._draw(), allocate)

    def _load(
        self, source_index: int, name: str, flip: bool, allocate: Allocate
    ) -> Iterator[Chunk]:
        refused: list[Exception] = []

        def make(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
            try:
                return allocate(shape)
            except Exception as error:
                refused.append(error)
                raise

        try:
            engine, source = self._opener.open(name)
            with contextlib.closing(source):
                shape = source.shape
                if len(shape) != _AXES:
                    raise ValueError(f"a volume should have {_AXES} axes, this has shape {shape}")
                cut = Cut(shape[0], self._slices or shape[0], flip)
                levels = self._fractions.watch(name, source.dtype)
                for slab in cut.fill(source.read, source.rows, shape[1:], make):
                    if levels is not None:
                        levels.add(slab)
                    yield Chunk(slab, self._meta(source_index))
                missing = source.missing
                if levels is not None and levels.few:
                    self._fractions.look(f"{self._root}{os.sep}{name}", _values(source))
        except ImportError:
            raise
        except Exception as error:
            if error in refused:
                raise  # not the volume's fault
            raise read_error(f"{self._root}{os.sep}{name}", error) from error
        self.counters[engine] += 1
        self.counters["missing_chunks"] += missing

    def explain_empty(self, source_index: int) -> str:
        """Return why a volume gives no chunk, for the message about a pool that stays empty."""
        place = place_of(source_index, len(self))
        return (
            f"volume {self._names[place]} has {self._depths[place]} slices, "
            f"slices_per_chunk={self._slices}"
        )

    def _warn_of_thin_volumes(self, volumes: Mapping[str, dict[str, Any]]) -> None:
        thin = [
            f"{name} ({depth})"
            for name, depth in zip(self._names, self._depths, strict=True)
            if depth is not None and depth < self._slices
        ]
        if thin:
            logger.warning(
                "%s: %d of %d volumes have fewer slices than slices_per_chunk=%d and give no "
                "chunk: %s",
                self._root, len(thin), len(self._names), self._slices, shorten(thin),
            )  # fmt: skip
        empty = [
            f"{name} (shape {tuple(metadata['shape'])})"
            for name, metadata in volumes.items()
            if 0 in _shape(metadata)
        ]
        if empty:
            logger.warning(
                "%s: %d of %d volumes hold no voxels: %s",
                self._root, len(empty), len(self._names), shorten(empty),
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: paths and settings, no generator and no counts."""
        return {**self.__dict__, "_generator": None, "counters": _no_counts()}

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


def _no_counts() -> dict[str, int]:
    return dict.fromkeys((*ENGINES, "missing_chunks"), 0)


def _only_3d(root: Path | str, volumes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The arrays that have the axes of a volume, or may have them as their metadata are damaged."""
    others = {
        name: f"{name} (shape {shape})"
        for name, shape in ((name, _shape(metadata)) for name, metadata in volumes.items())
        if isinstance(volumes[name].get("shape"), list) and len(shape) != _AXES
    }
    if len(others) == len(volumes):
        raise FileNotFoundError(
            f"wanted Zarr arrays of {_AXES} axes (slices, rows, columns) directly under {root}, "
            f"found only {shorten(list(others.values()))}"
        )
    if others:
        logger.warning(
            "%s: %d of %d arrays do not have the %d axes of a volume and are left out: %s",
            root, len(others), len(volumes), _AXES, shorten(list(others.values())),
        )  # fmt: skip
    return {name: metadata for name, metadata in volumes.items() if name not in others}


def _shape(metadata: dict[str, Any]) -> tuple[Any, ...]:
    """The shape of a volume as its metadata have it; () where they are damaged."""
    shape = metadata.get("shape")
    return tuple(shape) if isinstance(shape, list) else ()


def _largest_chunk(volumes: Mapping[str, dict[str, Any]], slices: int, itemsize: int) -> int | None:
    """Bytes of the largest chunk of any volume; None when no metadata tell."""
    sizes = []
    for shape in map(_shape, volumes.values()):
        if shape and all(type(length) is int for length in shape):
            depth = slices or shape[0]
            if 0 < depth <= shape[0]:
                sizes.append(max(1, depth * math.prod(shape[1:]) * itemsize))
    return max(sizes, default=None)


def _depth(metadata: dict[str, Any]) -> int | None:
    """Slices of a volume as its metadata have it; None where they are damaged."""
    depth = next(iter(_shape(metadata)), None)
    return depth if isinstance(depth, int) else None


def _values(source: Source) -> Iterator[np.ndarray[Any, Any]]:
    """All of a volume, as it is stored, some slices at a time."""
    depth, *tail = source.shape
    for begin in range(0, depth, source.rows):
        end = min(begin + source.rows, depth)
        values = np.empty((end - begin, *tail), source.dtype.newbyteorder("="))
        source.read([Part(begin, end, values)])
        yield values
