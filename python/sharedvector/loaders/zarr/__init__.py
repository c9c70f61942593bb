"""Zarr volumes: found, described by their metadata, cut into slabs, read by the engine that fits.

Promises: every engine gives the same chunks.
Uses: `engines` below, and beside it casts, paths and spacings.
Tests: ``test_zarr_open.py``, ``test_zarr_plan.py``, ``test_volumes.py``, ``test_loaders.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.loaders.zarr.discovery import Skipped, choose_volumes, find_volumes, survey
    from sharedvector.loaders.zarr.engines import ChunkReader, Scratch, open_store, watch
    from sharedvector.loaders.zarr.loader import ZarrLoader
    from sharedvector.loaders.zarr.metadata import Layout, NotDirectError, read_layout

__all__ = [
    "ChunkReader",
    "Layout",
    "NotDirectError",
    "Scratch",
    "Skipped",
    "ZarrLoader",
    "choose_volumes",
    "find_volumes",
    "open_store",
    "read_layout",
    "survey",
    "watch",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".discovery": "Skipped choose_volumes find_volumes survey",
        ".engines": "ChunkReader Scratch open_store watch",
        ".loader": "ZarrLoader",
        ".metadata": "Layout NotDirectError read_layout",
    },
)
