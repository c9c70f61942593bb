"""Plain arrays in shared memory, for the workers of a process pool.

One process makes a block with :func:`share` or :meth:`SharedArray.empty` and sends the handle, or
slices of it, to others: they are pickled as a name and bounds, and read without a copy. Only the
process that made a block removes it.

Promises: a block goes with its maker, and arrays that are alive stay valid.
Uses: `monitoring`, the segment.
Tests: ``test_arrays.py``, ``test_array_crashes.py``, ``test_blocks.py``, ``test_layout.py``,
``test_cuts.py``, ``test_slices.py``, ``test_task.py``, ``test_tasks.py``, ``test_pool_tasks.py``.
"""

from __future__ import annotations

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from sharedvector.arrays.shared_array import SharedArray, share
    from sharedvector.arrays.shared_array import _attach as _attach
    from sharedvector.arrays.slices import amap_slices, map_slices, split
    from sharedvector.monitoring import Diagnostics, Swept, diagnostics, sweep, warn_above

__all__ = [
    "Diagnostics",
    "SharedArray",
    "Swept",
    "amap_slices",
    "diagnostics",
    "map_slices",
    "share",
    "split",
    "sweep",
    "warn_above",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".shared_array": "SharedArray _attach share",
        ".slices": "amap_slices map_slices split",
        "sharedvector.monitoring": "Diagnostics Swept diagnostics sweep warn_above",
    },
)
