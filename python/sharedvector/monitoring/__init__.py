"""What is in shared memory, what of it was left behind, and how far an operation has come.

Promises: looking changes nothing, and only what dead processes left is removed.
Uses: the segment and its statistics; prometheus_client and tqdm where they are needed.
Tests: ``test_diagnostics.py``, ``test_metrics.py``, ``test_arrays.py``, ``test_pool.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.monitoring.families import PoolSource
    from sharedvector.monitoring.holdings import (
        DEFAULT_DIRECTORY,
        WARN_ABOVE_ENV,
        directory_of,
        made_one,
        tell_holdings,
    )
    from sharedvector.monitoring.leftovers import Swept, sweep
    from sharedvector.monitoring.progress import Progress, Waiting
    from sharedvector.monitoring.prometheus import DiagnosticsCollector, exposition
    from sharedvector.monitoring.usage import Diagnostics, diagnostics, warn_above

__all__ = [
    "DEFAULT_DIRECTORY",
    "WARN_ABOVE_ENV",
    "Diagnostics",
    "DiagnosticsCollector",
    "PoolSource",
    "Progress",
    "Swept",
    "Waiting",
    "diagnostics",
    "directory_of",
    "exposition",
    "made_one",
    "sweep",
    "tell_holdings",
    "warn_above",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".families": "PoolSource",
        ".holdings": "DEFAULT_DIRECTORY WARN_ABOVE_ENV directory_of made_one tell_holdings",
        ".leftovers": "Swept sweep",
        ".progress": "Progress Waiting",
        ".prometheus": "DiagnosticsCollector exposition",
        ".usage": "Diagnostics diagnostics warn_above",
    },
)
