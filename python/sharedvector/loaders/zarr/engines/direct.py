"""The direct engine: local chunks, each decoded once, where possible in its last place."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sharedvector.loaders.casting import cast_volume, move
from sharedvector.loaders.zarr.engines.base import Scratch, as_bytes
from sharedvector.loaders.zarr.engines.chunks import ChunkReader
from sharedvector.loaders.zarr.metadata import Layout
from sharedvector.loaders.zarr.slabs import Array, Part

__all__ = ["DirectSource"]


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
        self.dtype = layout.dtype
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
