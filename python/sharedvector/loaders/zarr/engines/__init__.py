"""The engines that read a Zarr volume into slabs: direct, zarr-python and TensorStore.

Each gives a `Source` for one volume. Its `read` fills the parts of a range of slices, wherever
they are, and goes through the volume once.

Promises: a damaged chunk is an error that names it, never data.
Uses: layouts, slabs, casts, and the library of the engine.
Tests: ``test_zarr_engines.py``, ``test_zarr_chunks.py``, ``test_zarr_store.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.loaders.zarr.engines.base import Scratch, Source, rows_of
    from sharedvector.loaders.zarr.engines.chunks import ChunkReader
    from sharedvector.loaders.zarr.engines.direct import DirectSource
    from sharedvector.loaders.zarr.engines.tensorstore import TensorStoreSource, why_not_tensorstore
    from sharedvector.loaders.zarr.engines.zarr_python import (
        ZarrSource,
        open_store,
        read_metadata_files,
        watch,
    )

__all__ = [
    "ChunkReader",
    "DirectSource",
    "Scratch",
    "Source",
    "TensorStoreSource",
    "ZarrSource",
    "open_store",
    "read_metadata_files",
    "rows_of",
    "watch",
    "why_not_tensorstore",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": "Scratch Source rows_of",
        ".chunks": "ChunkReader",
        ".direct": "DirectSource",
        ".tensorstore": "TensorStoreSource why_not_tensorstore",
        ".zarr_python": "ZarrSource open_store read_metadata_files watch",
    },
)
