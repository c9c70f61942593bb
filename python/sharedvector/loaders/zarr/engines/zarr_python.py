"""The engine zarr-python, and its stores: opened, listed, and watched for missing chunks."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import NDBuffer
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore, ZipStore

from sharedvector.loaders.volumes import METADATA_FILES, ROOT_FILES
from sharedvector.loaders.zarr.engines.base import Scratch, block, rows_of, scatter
from sharedvector.loaders.zarr.slabs import Array, Part

__all__ = ["ZarrSource", "open_store", "read_metadata_files", "watch"]

_AT_ONCE = 32  # metadata files that are asked for at the same time


def open_store(root: Path | str) -> Any:
    """Return a read-only store of a directory, a zip file or a URL.

    Raises:
        FileNotFoundError: no such file or directory. ValueError: no zip file.
        ImportError: neither fsspec nor obstore reads that URL here; the text says what is missing.
    """
    if isinstance(root, Path):
        if not root.exists():
            raise FileNotFoundError(f"wanted a database of Zarr volumes, but {root} does not exist")
        if root.is_dir():
            return LocalStore(root, read_only=True)
        try:
            return sync(ZipStore.open(root, mode="r"))
        except zipfile.BadZipFile as error:
            raise ValueError(f"wanted a zip file of Zarr volumes, but {root}: {error}") from error
    try:
        return FsspecStore.from_url(root, read_only=True)
    except (ImportError, ValueError) as error:  # no fsspec, or no file system of that kind
        try:
            from obstore.store import from_url
        except ImportError:
            raise ImportError(
                f"{root} is read with fsspec and its file system for that protocol, or with "
                f"obstore; pip install one of them ({error})"
            ) from error
    return ObjectStore(from_url(root), read_only=True)


def read_metadata_files(
    root: Path | str, known: Callable[[Mapping[str, bytes]], Collection[str]]
) -> dict[str, dict[str, bytes]]:
    """Return the metadata files of ``root`` itself (as "") and of the directories in it.

    Args:
        root: zip file or URL.
        known: gives the names that the root's own files describe, as consolidated metadata do. Of
            these no files are read, and a store that cannot be listed gives no others.

    Returns:
        The content of files by directory and name; none for a directory without metadata.

    Raises:
        As `open_store`. OSError: the store cannot be read, or has no listing and nothing is known.
    """
    store = open_store(root)
    try:
        return sync(_read_metadata_files(store, known))
    except NotImplementedError as error:
        raise OSError(
            f"{root} cannot be listed: {error}; consolidate the metadata of the group of its "
            "volumes (zarr.consolidate_metadata)"
        ) from error
    except Exception as error:
        if isinstance(root, Path):
            raise
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(f"{root} cannot be read: {type(error).__name__}: {error}") from error
    finally:
        store.close()


async def _read_metadata_files(
    store: Any, known: Callable[[Mapping[str, bytes]], Collection[str]]
) -> dict[str, dict[str, bytes]]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def read(files: Sequence[str], name: str = "") -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for file in files:
            async with limit:
                key = f"{name}/{file}" if name else file
                content = await store.get(key, prototype=default_buffer_prototype())
            if content is not None:
                found[file] = content.to_bytes()
            if "zarr.json" in found:
                break
        return found

    async def look(name: str) -> tuple[str, dict[str, bytes] | None]:
        found = await read(METADATA_FILES, name)
        # What has nothing below it may be a plain file; nobody misses it.
        return name, found if found or await _has_files(store, name) else None

    own = await read(ROOT_FILES)
    there = known(own)
    try:
        names = {name.strip("/") async for name in store.list_dir("")}
        seen = await asyncio.gather(*map(look, names - {"", *ROOT_FILES, *there}))
    except Exception:  # libraries raise what they like
        if not there:
            raise
        seen = []
    return {**{name: files for name, files in seen if files is not None}, "": own}


async def _has_files(store: Any, name: str) -> bool:
    # Not list_prefix(), which finds all files below: of a directory that may be huge. A plain file
    # lists itself.
    return any([entry.rpartition("/")[2] != name async for entry in store.list_dir(name)])


def watch(store: Any) -> tuple[Any, list[str]]:
    """Return a store that reads from another one, and the list where it names missing chunks."""
    watched = _Watched(store)
    return watched, watched.absent


class _Watched(WrapperStore[Any]):
    """Writes down which keys, other than metadata, were not there."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.absent: list[str] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        value = await super().get(key, prototype, byte_range)
        if value is None and key.rpartition("/")[2] not in METADATA_FILES:
            self.absent.append(key)
        return value


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
        watched, self._absent = watch(store)
        self._array: Any = zarr.open_array(store=watched, path=path, mode="r", zarr_format=None)
        self.shape: tuple[int, ...] = self._array.shape
        self.dtype = np.dtype(self._array.dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0 or self.dtype.kind == "T":
            raise ValueError(f"its dtype {self.dtype} has no fixed size")
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
        if self.dtype.newbyteorder("=") == parts[0].view.dtype.newbyteorder("=") and all(
            part.stop % self._chunk == 0 for part in parts[:-1]
        ):
            for part in parts:
                self._select(part.start, part.stop, part.view)
        else:
            begin, end = parts[0].start, parts[-1].stop
            slices = block(self._scratch, (end - begin, *self.shape[1:]), self.dtype)
            self._select(begin, end, slices)
            scatter(slices, parts)
        if self._refuse and len(self._absent) > before:
            raise ValueError(
                f"chunk {self._absent[before]} is missing; missing='fill' takes the fill value "
                f"{self._array.fill_value} for it"
            )

    def _select(self, start: int, stop: int, out: Array) -> None:
        self._array.get_basic_selection((slice(start, stop),), out=NDBuffer.from_numpy_array(out))
