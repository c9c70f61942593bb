"""The engines that read a Zarr volume into slabs: direct, zarr and tensorstore.

Each gives a `Source` for one volume. Its `read` fills the parts of a range of slices, wherever
they are, and goes through the volume once.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sharedvector._cast import cast_volume, move
from sharedvector._volumes import is_local
from sharedvector._zarr_chunks import ChunkReader, Scratch, as_bytes
from sharedvector._zarr_plan import Array, Layout, Part

__all__ = ["DirectSource", "Source", "TensorStoreSource", "ZarrSource", "rows_of"]

REMOTE_CHUNKS = 8  # chunks that are asked for at once where each answer takes its time


class Source(Protocol):
    """One volume, opened."""

    shape: tuple[int, ...]
    rows: int  # slices to read at once: a multiple of the chunks' depth

    @property
    def missing(self) -> int:
        """How many chunks were not there, so far."""
        ...

    def read(self, parts: list[Part]) -> None:
        """Fill the parts, which follow each other, of one range of ``rows`` slices."""
        ...

    def close(self) -> None:
        """Give back what it holds open; harmless when repeated."""
        ...


class _Column(NamedTuple):
    """Where the chunks of one column along axis 0 lie within a slice."""

    place: tuple[int, ...]  # of the chunk, without axis 0
    inside: tuple[slice, ...]  # of the volume's slices
    used: tuple[slice, ...]  # of the chunk's slices: without the padding at the edges
    wide: bool  # the chunk's slices are whole slices of the volume


class DirectSource:
    """Reads local chunks and decodes each of them once, where possible in its last place.

    Args:
        directory: of the array.
        layout: of the array.
        refuse_missing: raise for a missing chunk instead of taking the fill value.
        scratch: memory of this thread, for encoded chunks and for those that are moved afterwards.
    """

    def __init__(
        self, directory: Path, layout: Layout, refuse_missing: bool, scratch: Scratch
    ) -> None:
        self.shape = layout.shape
        self.rows = layout.chunk[0]
        self.missing = 0
        self._layout = layout
        self._scratch = scratch
        self._refuse = refuse_missing
        self._reader = ChunkReader(directory, layout, scratch)
        # Not made before the slabs are: they are what tells a volume that is far too large.
        self._columns: list[_Column] | None = None
        self._chunk_bytes = layout.chunk_bytes
        self._plain = layout.plain
        self._fill: Array | None = None

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def read(self, parts: list[Part]) -> None:
        """See `Source`."""
        row = parts[0].start // self.rows
        if self._columns is None:
            self._columns = _columns(self._layout)
        for column in self._columns:
            index = (row, *column.place)
            if not self._read_chunk(index, column, parts):
                self._fill_in(index, column, parts)

    def _read_chunk(self, index: tuple[int, ...], column: _Column, parts: list[Part]) -> bool:
        """Bring one chunk into all parts that it touches; False when it is missing."""
        layout = self._layout
        same = parts[0].view.dtype == layout.dtype
        begin = index[0] * self.rows
        if same and column.wide and self._plain:
            skip = (parts[0].start - begin) * (self._chunk_bytes // self.rows)
            return self._reader.read(index, _pieces(parts), skip)
        if same and len(parts) == 1:
            view = parts[0].view[(slice(None), *column.inside)]
            if view.shape == layout.chunk and view.flags.c_contiguous:
                return self._reader.decode(index, as_bytes(view))
        raw = self._scratch.take("decoded", self._chunk_bytes)
        if not self._reader.decode(index, raw):
            return False
        chunk = raw.view(layout.dtype).reshape(layout.chunk)
        for part in parts:
            used = slice(part.start - begin, part.stop - begin)
            move(part.view[(slice(None), *column.inside)], chunk[(used, *column.used)])
        return True

    def _fill_in(self, index: tuple[int, ...], column: _Column, parts: list[Part]) -> None:
        if self._refuse:
            raise ValueError(
                f"chunk {self._reader.describe(index)} is missing; missing='fill' takes the fill "
                f"value {self._layout.fill} for it"
            )
        self.missing += 1
        if self._fill is None:
            self._fill = cast_volume(np.array(self._layout.fill), parts[0].view.dtype)
        for part in parts:
            part.view[(slice(None), *column.inside)] = self._fill


class ZarrSource:
    """Reads through zarr-python: whatever it can open.

    Args:
        store: a store of zarr, opened for reading.
        path: of the array in the store.
        remote: whether each chunk asked for has to travel.
        step: slices of a slab; 0: all.
        refuse_missing: raise when a chunk is missing.
        scratch: memory of this thread.

    Raises:
        ValueError, TypeError, OSError, RuntimeError: there is no array that zarr can open.
    """

    def __init__(
        self, store: Any, path: str, remote: bool, step: int, refuse_missing: bool, scratch: Scratch
    ) -> None:
        import zarr

        from sharedvector._zarr_store import watch

        watched, self._absent = watch(store)
        self._array: Any = zarr.open_array(store=watched, path=path, mode="r", zarr_format=None)
        self.shape: tuple[int, ...] = self._array.shape
        self._dtype = np.dtype(self._array.dtype)
        if self._dtype.hasobject or self._dtype.itemsize == 0 or self._dtype.kind == "T":
            raise ValueError(f"its dtype {self._dtype} has no fixed size")
        chunk: tuple[int, ...] = self._array.chunks
        self._chunk = chunk[0] if chunk else 1
        self._scratch = scratch
        self._refuse = refuse_missing
        self.rows = rows_of(self.shape, chunk, step or self.shape[0], remote) if chunk else 1

    @property
    def missing(self) -> int:
        """Files of chunks that were not there."""
        return len(self._absent)

    def close(self) -> None:
        """Nothing is open between two reads."""

    def read(self, parts: list[Part]) -> None:
        """See `Source`."""
        before = len(self._absent)
        if self._dtype.newbyteorder("=") == parts[0].view.dtype.newbyteorder("=") and all(
            part.stop % self._chunk == 0 for part in parts[:-1]
        ):
            for part in parts:
                self._select(part.start, part.stop, part.view)
        else:
            begin, end = parts[0].start, parts[-1].stop
            block = _block(self._scratch, (end - begin, *self.shape[1:]), self._dtype)
            self._select(begin, end, block)
            _scatter(block, parts)
        if self._refuse and len(self._absent) > before:
            raise ValueError(
                f"chunk {self._absent[before]} is missing; missing='fill' takes the fill value "
                f"{self._array.fill_value} for it"
            )

    def _select(self, start: int, stop: int, out: Array) -> None:
        from zarr.buffer.cpu import NDBuffer

        self._array.get_basic_selection((slice(start, stop),), out=NDBuffer.from_numpy_array(out))


class TensorStoreSource:
    """Reads through TensorStore.

    Args:
        location: directory or URL of the array.
        version: of the Zarr format, 2 or 3.
        step: slices of a slab; 0: all.
        refuse_missing: raise when a chunk is missing; otherwise nobody counts them.
        scratch: memory of this thread.

    Raises:
        ImportError: TensorStore is not installed.
        RuntimeError: this process was forked from one that has used it.
        ValueError: there is no array that TensorStore can open.
    """

    missing = 0

    def __init__(
        self, location: Path | str, version: int, step: int, refuse_missing: bool, scratch: Scratch
    ) -> None:
        self._library = _tensorstore()
        spec = {
            "driver": "zarr3" if version == 3 else "zarr",
            "kvstore": _kvstore(location),
            "fill_missing_data_reads": not refuse_missing,
            "recheck_cached_data": False,
        }
        self._array: Any = self._library.open(spec, read=True, open=True).result()
        self.shape: tuple[int, ...] = tuple(self._array.shape)
        self._dtype = np.dtype(self._array.dtype.numpy_dtype)
        if self._dtype.hasobject:
            raise ValueError(f"its dtype {self._array.dtype} has no fixed size")
        chunk = self._array.chunk_layout.read_chunk.shape
        self._chunk = chunk[0] if chunk else 1
        self._scratch = scratch
        remote = isinstance(location, str)
        self.rows = rows_of(self.shape, tuple(chunk), step or self.shape[0], remote) if chunk else 1

    def close(self) -> None:
        """Nothing is open between two reads."""

    def read(self, parts: list[Part]) -> None:
        """See `Source`."""
        begin, end = parts[0].start, parts[-1].stop
        # Parts are read side by side: two that share a chunk may each fetch and decode it.
        apart = all(part.stop % self._chunk == 0 for part in parts[:-1])
        if apart and self._dtype == parts[0].view.dtype:
            views = [part.view for part in parts]
        else:
            views = [_block(self._scratch, (end - begin, *self.shape[1:]), self._dtype)]
        # A write of TensorStore casts by wrapping: both sides have the same dtype here.
        targets = [self._library.array(view, copy=False, write=True) for view in views]
        self._library.concat(targets, axis=0).write(self._array[begin:end]).result()
        if views[0] is not parts[0].view:
            _scatter(views[0], parts)


def rows_of(shape: tuple[int, ...], chunk: tuple[int, ...], step: int, remote: bool) -> int:
    """Return how many slices a library is asked for at once, in whole rows of chunks.

    As many as a slab has; where chunks travel at least so many rows that several are on their way
    at the same time.
    """
    rows = -(-step // chunk[0])
    if remote:
        in_row = math.prod(
            -(-size // part) for size, part in zip(shape[1:], chunk[1:], strict=True)
        )
        rows = max(rows, -(-REMOTE_CHUNKS // max(1, in_row)))
    return rows * chunk[0]


def _columns(layout: Layout) -> list[_Column]:
    columns = []
    for index in itertools.product(*(range(count) for count in layout.grid[1:])):
        inside, used = [], []
        for i, part, size in zip(index, layout.chunk[1:], layout.shape[1:], strict=True):
            width = min(part, size - i * part)
            inside.append(slice(i * part, i * part + width))
            used.append(slice(0, width))
        wide = layout.chunk[1:] == layout.shape[1:]
        columns.append(_Column(index, tuple(inside), tuple(used), wide))
    return columns


def _pieces(parts: list[Part]) -> list[Array]:
    """The parts as contiguous bytes, in the order of the volume: turned ones slice by slice."""
    pieces: list[Array] = []
    for part in parts:
        if part.view.flags.c_contiguous:
            pieces.append(as_bytes(part.view))
        else:
            pieces.extend(as_bytes(part.view[i : i + 1]) for i in range(len(part.view)))
    return pieces


def _block(scratch: Scratch, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    raw = scratch.take("block", math.prod(shape) * dtype.itemsize)
    return raw.view(dtype).reshape(shape)


def _scatter(block: Array, parts: list[Part]) -> None:
    begin = parts[0].start
    for part in parts:
        move(part.view, block[part.start - begin : part.stop - begin])


_used_by: int | None = None  # the process that used TensorStore first
_TENSORSTORE_URLS = ("s3://", "gs://", "http://", "https://")


def why_not_tensorstore(root: Path | str) -> str | None:
    """Return why TensorStore cannot read volumes of ``root``; None when it can."""
    if importlib.util.find_spec("tensorstore") is None:
        return "it needs: pip install 'sharedvector[tensorstore]'"
    if isinstance(root, str) and not root.startswith(_TENSORSTORE_URLS):
        return f"it reads local directories and {', '.join(_TENSORSTORE_URLS)}"
    return None if isinstance(root, str) or is_local(root) else "it reads no zip files"


def _tensorstore() -> Any:
    """The library, refused where it would abort the process."""
    global _used_by
    if _used_by not in (None, os.getpid()):
        raise RuntimeError(
            f"TensorStore was used in process {_used_by} before it forked this one, and would "
            "abort here; start workers with the spawn method, or use another engine"
        )
    import tensorstore

    _used_by = os.getpid()
    return tensorstore


def _kvstore(location: Path | str) -> Any:
    if isinstance(location, Path):
        return {"driver": "file", "path": f"{location}{os.sep}"}
    return f"{location}/"
