"""Voxel spacing of a directory of Zarr volumes: found, gathered into one file, read back."""

from __future__ import annotations

from sharedvector.loaders import collect_spacings, write_spacing_manifest

__all__ = [
    "collect_spacings",
    "write_spacing_manifest",
]
