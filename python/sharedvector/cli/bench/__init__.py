"""``python -m sharedvector bench share``: every way of giving an array to workers, measured here.

Promises: what was measured is what is told.
Uses: `arrays`; matplotlib for charts.
Tests: ``test_bench_*.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.cli.bench.share import add_arguments, run

__all__ = [
    "add_arguments",
    "run",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".share": "add_arguments run",
    },
)
