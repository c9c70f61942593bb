"""Chunks of a Zarr array in local files: found, checked, read and decoded into given memory.

A chunk is read once, with one system call, or, where `_core.guard_file_maps` was called and the
page cache has it, not at all; and decoded once, into its last place. What the codecs of numcodecs
let pass is looked at before: a frame that decodes to fewer bytes than a chunk has would leave the
rest of the destination as it was, and a blosc frame that has lost its end would be read beyond it.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from sharedvector import _core
from sharedvector.loaders.zarr.engines.base import Scratch
from sharedvector.loaders.zarr.metadata import Layout
from sharedvector.loaders.zarr.slabs import Array

__all__ = ["ChunkReader"]

_IOV_MAX = 1024  # pieces of memory that one system call fills
_MAX_FILES = 64  # shards that are kept open
_ABSENT = 2**64 - 1  # offset and size of a chunk that a shard does not have
_MAPPED_BYTES = 2**20  # from here on a map costs less than the copy that it saves
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class _Extent(NamedTuple):
    """The encoded bytes of a chunk."""

    fd: int
    offset: int
    size: int


class _Shard(NamedTuple):
    fd: int
    size: int
    table: Array  # uint64, shape (*chunks, 2): offset and size of each


class ChunkReader:
    """Reads chunks of one array; for one thread.

    Args:
        directory: of the array.
        layout: of the array.
        scratch: memory for encoded chunks.
    """

    def __init__(self, directory: Path | str, layout: Layout, scratch: Scratch) -> None:
        self._directory = f"{directory}{os.sep}"
        self._layout = layout
        self._scratch = scratch
        self._decode, self._check = _codec(layout.codec)
        if layout.shards is not None or layout.checksum:
            importlib.import_module("google_crc32c")  # an ImportError now is no damaged chunk
        self._plain = layout.plain
        self._chunk_bytes = layout.chunk_bytes
        # Codecs make incompressible data a little larger; more is no chunk of this array.
        self._most = layout.chunk_bytes + layout.chunk_bytes // 8 + 65536
        self._shards: dict[tuple[int, ...], _Shard | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the shards that are open."""
        while self._shards:
            _, shard = self._shards.popitem()
            if shard is not None:
                os.close(shard.fd)

    def decode(self, index: tuple[int, ...], out: Array) -> bool:
        """Decode one chunk.

        Args:
            index: of the chunk, along each axis.
            out: uint8, 1-D, contiguous, as long as a decoded chunk.

        Returns:
            False when there is no such chunk; ``out`` is unchanged then.

        Raises:
            OSError: it cannot be read. ValueError: it is damaged. The text names its file; ``out``
                holds anything.
        """
        return self._with_extent(index, lambda extent: self._decode_into(extent, out))

    def read(self, index: tuple[int, ...], pieces: Sequence[Array], skip: int) -> bool:
        """Read adjacent pieces of a chunk, of an array that is `plain`.

        Args:
            index: as in `decode`.
            pieces: uint8, 1-D, contiguous.
            skip: bytes of the chunk before the first piece.

        Returns and raises as `decode`.
        """

        def work(extent: _Extent) -> None:
            self._check_plain(extent)
            _read_exactly(extent.fd, pieces, extent.offset + skip)

        return self._with_extent(index, work)

    def _with_extent(self, index: tuple[int, ...], work: Callable[[_Extent], None]) -> bool:
        try:
            if self._layout.shards is not None:
                extent = self._find_in_shard(index)
                if extent is not None:
                    work(extent)
                return extent is not None
            fd = _open(self._directory + self._layout.file_name(index))
            if fd is None:
                return False
            try:
                work(_Extent(fd, 0, os.fstat(fd).st_size))
            finally:
                os.close(fd)
        except MemoryError:
            raise
        except Exception as error:  # codecs raise what they like
            raise self._named(error, index) from error
        return True

    def _named(self, error: Exception, index: tuple[int, ...]) -> Exception:
        """An error with the file of the chunk in its text."""
        where = f"chunk {self.describe(index)}"
        if isinstance(error, OSError) and error.errno is not None:
            return OSError(error.errno, f"{where}: {error.strerror}")
        return ValueError(f"{where}: {error}")

    def describe(self, index: tuple[int, ...]) -> str:
        """Return the file of a chunk, below the array's directory, and its place in a shard."""
        shards = self._layout.shards
        if shards is None:
            return self._layout.file_name(index)
        outer = tuple(i // n for i, n in zip(index, shards.chunks, strict=True))
        inner = tuple(i % n for i, n in zip(index, shards.chunks, strict=True))
        return f"{inner} of shard {self._layout.file_name(outer)}"

    def _decode_into(self, extent: _Extent, out: Array) -> None:
        if self._plain:
            self._check_plain(extent)
            return _read_exactly(extent.fd, [out], extent.offset)
        if extent.size > self._most:
            raise ValueError(
                f"{extent.size} encoded bytes for a chunk of {out.nbytes}; the file is damaged"
            )
        # Bytes with a checksum are read: it vouches for nothing that changes before it is decoded.
        checksum = self._layout.checksum
        if not checksum and extent.size >= _MAPPED_BYTES and self._decode_mapped(extent, out):
            return None
        encoded = self._scratch.take("encoded", extent.size)
        _read_exactly(extent.fd, [encoded], extent.offset)
        return self._decode_bytes(_without_crc(encoded) if checksum else encoded, out)

    def _decode_mapped(self, extent: _Extent, out: Array) -> bool:
        """Decode straight from the page cache; False: read it, which also tells what is wrong."""
        before = _last_change(extent.fd)
        mapped = _core.map_file(extent.fd, extent.offset, extent.size)
        if mapped is None:
            return False
        try:
            self._decode_bytes(np.frombuffer(memoryview(mapped), np.uint8), out)
        except Exception:
            return False
        return mapped.whole and _last_change(extent.fd) == before

    def _decode_bytes(self, encoded: Array, out: Array) -> None:
        size = self._check(encoded)
        if size is None or size == out.nbytes:
            self._decode(encoded, out)
            return
        if size > out.nbytes:
            raise ValueError(f"it decodes to {size} bytes, a chunk has {out.nbytes}")
        # Less in the first frame: damaged, or there are more frames.
        decoded = np.frombuffer(self._decode(encoded), np.uint8)
        if decoded.nbytes != out.nbytes:
            raise ValueError(f"it decodes to {decoded.nbytes} bytes, a chunk has {out.nbytes}")
        out[...] = decoded

    def _check_plain(self, extent: _Extent) -> None:
        if extent.size != self._chunk_bytes:
            raise ValueError(f"{extent.size} bytes, a chunk has {self._chunk_bytes}")

    def _find_in_shard(self, index: tuple[int, ...]) -> _Extent | None:
        assert self._layout.shards is not None
        chunks = self._layout.shards.chunks
        outer = tuple(i // n for i, n in zip(index, chunks, strict=True))
        if outer not in self._shards:
            if len(self._shards) >= _MAX_FILES or any(k[0] != outer[0] for k in self._shards):
                self.close()
            self._shards[outer] = self._open_shard(outer)
        shard = self._shards[outer]
        if shard is None:
            return None
        inner = tuple(i % n for i, n in zip(index, chunks, strict=True))
        offset, size = (int(value) for value in shard.table[inner])
        if offset == size == _ABSENT:
            return None
        if offset + size > shard.size:
            raise ValueError(
                f"its index says bytes {offset} to {offset + size}, the file has {shard.size}"
            )
        return _Extent(shard.fd, offset, size)

    def _open_shard(self, outer: tuple[int, ...]) -> _Shard | None:
        shards = self._layout.shards
        assert shards is not None
        fd = _open(self._directory + self._layout.file_name(outer))
        if fd is None:
            return None
        try:
            size, index_size = os.fstat(fd).st_size, 16 * math.prod(shards.chunks) + 4
            if size < index_size:
                raise ValueError(f"{size} bytes, the index of a shard has {index_size}")
            raw = np.empty(index_size, np.uint8)
            _read_exactly(fd, [raw], 0 if shards.index_first else size - index_size)
            table = _without_crc(raw).view("<u8").reshape(*shards.chunks, 2)
            return _Shard(fd, size, table)
        except BaseException:
            os.close(fd)
            raise


def _open(path: str) -> int | None:
    """Open a file for reading; None when there is none."""
    try:
        # A FIFO of that name is an error later, nothing to wait for.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None


def _last_change(fd: int) -> tuple[int, int]:
    """What tells a file from itself after it was written or cut."""
    found = os.fstat(fd)
    return found.st_size, found.st_ctime_ns


def _read_exactly(fd: int, pieces: Sequence[Array], offset: int) -> None:
    """Fill pieces of memory with adjacent bytes of a file."""
    wanted = sum(piece.nbytes for piece in pieces)
    got = os.preadv(fd, [piece.data for piece in pieces[:_IOV_MAX]], offset) if wanted else 0
    if got == wanted:
        return
    for piece in pieces:  # more pieces or bytes than one call takes, or the file is short
        done = min(got, piece.nbytes)
        got -= done
        while done < piece.nbytes:
            more = os.preadv(fd, [piece[done:].data], offset + done)
            if not more:
                raise ValueError("it ends too early; the file is damaged or being written")
            done += more
        offset += piece.nbytes


def _without_crc(raw: Array) -> Array:
    """All but the checksum at the end, which has to be right."""
    import google_crc32c

    if raw.nbytes < 4:
        raise ValueError(f"{raw.nbytes} bytes hold no checksum; the file is damaged")
    stored = int.from_bytes(raw[-4:].tobytes(), "little")
    found = google_crc32c.value(raw[:-4])
    if found != stored:
        raise ValueError(f"checksum {stored:#010x} is stored, that of the bytes is {found:#010x}")
    return raw[:-4]


def _codec(name: str | None) -> tuple[Callable[..., Any], Callable[[Array], int | None]]:
    """How to decode a chunk into memory, and how to tell the size of what it decodes to."""
    if name is None:
        return _copy, lambda encoded: encoded.nbytes
    module: Any = importlib.import_module(f"numcodecs.{name}")
    if name == "blosc":
        # Its own threads would be shared by all that decode here, and wait for each other.
        module.use_threads = False
    kinds = {
        "zstd": ("Zstd", _zstd_size),
        "blosc": ("Blosc", _blosc_size),
        "gzip": ("GZip", _gzip_size),
        "lz4": ("LZ4", _lz4_size),
    }
    kind, size = kinds[name]
    return getattr(module, kind)().decode, size


def _copy(encoded: Array, out: Array | None = None) -> Array:
    """What a codec does that does nothing."""
    if out is not None:
        out[...] = encoded
    return encoded


def _zstd_size(frame: Array) -> int | None:
    """What the header of the first frame says; None when it does not say."""
    head = frame[:18].tobytes()
    if len(head) < 6 or head[:4] != _ZSTD_MAGIC:
        return 0  # the decoder tells what it thinks of it
    single = head[4] >> 5 & 1
    begin = 6 - single + (0, 1, 2, 4)[head[4] & 3]
    length = (single, 2, 4, 8)[head[4] >> 6]
    if not length:
        return None
    size = int.from_bytes(head[begin : begin + length], "little")
    return size + 256 if length == 2 else size


def _blosc_size(frame: Array) -> int:
    head = frame[:16].tobytes()
    if len(head) < 16:
        raise ValueError(f"{len(head)} bytes are no blosc frame; the file is damaged")
    encoded = int.from_bytes(head[12:16], "little")
    if encoded != frame.nbytes:
        raise ValueError(
            f"a blosc frame of {encoded} bytes, found {frame.nbytes}; the file is damaged"
        )
    return int.from_bytes(head[4:8], "little")


def _gzip_size(member: Array) -> int:
    """What the end says: the size of the last member, modulo 2**32."""
    return int.from_bytes(member[-4:].tobytes(), "little")


def _lz4_size(frame: Array) -> int:
    return int.from_bytes(frame[:4].tobytes(), "little")
