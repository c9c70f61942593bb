"""Decode a whole Zarr database once, and name every chunk that is damaged or missing."""

from __future__ import annotations

from sharedvector.cli import verify_main
from sharedvector.loaders import Problem, Report, verify_database

__all__ = [
    "Problem",
    "Report",
    "verify_database",
    "verify_main",
]

if __name__ == "__main__":
    raise SystemExit(verify_main())
