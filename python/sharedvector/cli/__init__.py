"""The commands: a producer as a job step of its own, Zarr databases, and the segments of this node.

Promises: an error is one line on standard error and an exit status.
Uses: everything else.
Tests: ``test_cli.py``, ``test_verify.py``, ``test_spacing.py``, ``test_bench_*.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector._coordination import PoolBusyError
    from sharedvector.cli.command import main
    from sharedvector.cli.producer import (
        EXIT_BUSY,
        instantiate_loader,
        producer_main,
        resolve_source_size,
    )
    from sharedvector.cli.zarr import spacing_manifest_main, verify_main

__all__ = [
    "EXIT_BUSY",
    "PoolBusyError",
    "instantiate_loader",
    "main",
    "producer_main",
    "resolve_source_size",
    "spacing_manifest_main",
    "verify_main",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sharedvector._coordination": "PoolBusyError",
        ".command": "main",
        ".producer": "EXIT_BUSY instantiate_loader producer_main resolve_source_size",
        ".zarr": "spacing_manifest_main verify_main",
    },
)
