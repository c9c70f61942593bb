"""The engine TensorStore."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from sharedvector.loaders.volumes import is_local
from sharedvector.loaders.zarr.engines.base import Scratch, block, rows_of, scatter
from sharedvector.loaders.zarr.slabs import Part

__all__ = ["TensorStoreSource", "why_not_tensorstore"]


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
        self.dtype = np.dtype(self._array.dtype.numpy_dtype)
        if self.dtype.hasobject:
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
        if apart and self.dtype == parts[0].view.dtype:
            views = [part.view for part in parts]
        else:
            views = [block(self._scratch, (end - begin, *self.shape[1:]), self.dtype)]
        # A write of TensorStore casts by wrapping: both sides have the same dtype here.
        targets = [self._library.array(view, copy=False, write=True) for view in views]
        self._library.concat(targets, axis=0).write(self._array[begin:end]).result()
        if views[0] is not parts[0].view:
            scatter(views[0], parts)


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
