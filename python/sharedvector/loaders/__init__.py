"""Loaders: what turns one source (a file, a volume) into chunks for a pool.

Promises: a loader gives a whole chunk or an error that names the source.
Uses: the segment's dtypes and the casts of the core; zarr, numcodecs, tensorstore and tqdm where
they are needed.
Tests: ``test_loaders.py``, ``test_cast.py``, ``test_spacing.py``, ``test_verify.py``,
``test_volumes.py``, ``test_zarr_*.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.loaders.base import Chunk, Loader, no_meta
    from sharedvector.loaders.casting import cast_volume, resolve_numpy_dtype
    from sharedvector.loaders.numpy import NumpyLoader
    from sharedvector.loaders.spacing import collect_spacings, write_spacing_manifest
    from sharedvector.loaders.verify import Problem, Report, verify_database
    from sharedvector.loaders.zarr import ZarrLoader

__all__ = [
    "Chunk",
    "Loader",
    "NumpyLoader",
    "Problem",
    "Report",
    "ZarrLoader",
    "cast_volume",
    "collect_spacings",
    "no_meta",
    "resolve_numpy_dtype",
    "verify_database",
    "write_spacing_manifest",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": "Chunk Loader no_meta",
        ".casting": "cast_volume resolve_numpy_dtype",
        ".numpy": "NumpyLoader",
        ".spacing": "collect_spacings write_spacing_manifest",
        ".verify": "Problem Report verify_database",
        ".zarr": "ZarrLoader",
    },
)
