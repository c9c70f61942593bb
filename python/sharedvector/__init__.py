"""A pool of array chunks in shared memory: one producer per node, any number of readers.

Importing this package needs NumPy alone. torch, zarr and tqdm are imported by the parts that use
them, when they are used. Every name here is imported at its first use, NumPy with it: the processes
that feed a pool start in half the time.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from typing import Any

    from sharedvector._core import __version__
    from sharedvector._diagnostics import Diagnostics, diagnostics, warn_above
    from sharedvector._slices import amap_slices, map_slices, split
    from sharedvector.arrays import SharedArray, share, sweep
    from sharedvector.coordination import (
        OwnerLock,
        PoolBusyError,
        PoolPaths,
        PoolSpawnError,
        ReadyState,
        probe_ready,
    )
    from sharedvector.dataset import SharedMemoryDataset
    from sharedvector.lifecycle import LifecycleGuard
    from sharedvector.loaders import (
        Chunk,
        Loader,
        NumpyLoader,
        ZarrLoader,
        cast_volume,
        no_meta,
    )
    from sharedvector.pool import PoolGoneError, PoolHandle, ProducerSpec, ensure_pool, pool
    from sharedvector.pool_loader import PoolLoader
    from sharedvector.service import ProducerService
    from sharedvector.spacing import collect_spacings, write_spacing_manifest
    from sharedvector.stats import PoolStats, collect_stats, stats_capacity_for
    from sharedvector.vector import (
        ArraySizeError,
        DataModifiedError,
        FormatError,
        InUseError,
        MemoryError,
        OutOfMemoryError,
        PoolStalledError,
        Reservation,
        SharedVector,
        remove_shared_memory,
    )

__all__ = [
    "ArraySizeError",
    "Chunk",
    "DataModifiedError",
    "Diagnostics",
    "FormatError",
    "InUseError",
    "LifecycleGuard",
    "Loader",
    "MemoryError",
    "NumpyLoader",
    "OutOfMemoryError",
    "OwnerLock",
    "PoolBusyError",
    "PoolGoneError",
    "PoolHandle",
    "PoolLoader",
    "PoolPaths",
    "PoolSpawnError",
    "PoolStalledError",
    "PoolStats",
    "ProducerService",
    "ProducerSpec",
    "ReadyState",
    "Reservation",
    "SharedArray",
    "SharedMemoryDataset",
    "SharedVector",
    "ZarrLoader",
    "__version__",
    "amap_slices",
    "cast_volume",
    "collect_spacings",
    "collect_stats",
    "diagnostics",
    "ensure_pool",
    "map_slices",
    "no_meta",
    "pool",
    "probe_ready",
    "remove_shared_memory",
    "share",
    "split",
    "stats_capacity_for",
    "sweep",
    "warn_above",
    "write_spacing_manifest",
]

_MODULE_OF = {
    "ArraySizeError": "vector",
    "Chunk": "loaders",
    "DataModifiedError": "vector",
    "Diagnostics": "_diagnostics",
    "FormatError": "vector",
    "InUseError": "vector",
    "LifecycleGuard": "lifecycle",
    "Loader": "loaders",
    "MemoryError": "vector",
    "NumpyLoader": "loaders",
    "OutOfMemoryError": "vector",
    "OwnerLock": "coordination",
    "PoolBusyError": "coordination",
    "PoolGoneError": "pool",
    "PoolHandle": "pool",
    "PoolLoader": "pool_loader",
    "PoolPaths": "coordination",
    "PoolSpawnError": "coordination",
    "PoolStalledError": "vector",
    "PoolStats": "stats",
    "ProducerService": "service",
    "ProducerSpec": "pool",
    "ReadyState": "coordination",
    "Reservation": "vector",
    "SharedArray": "arrays",
    "SharedMemoryDataset": "dataset",
    "SharedVector": "vector",
    "ZarrLoader": "loaders",
    "__version__": "_core",
    "amap_slices": "_slices",
    "cast_volume": "loaders",
    "collect_spacings": "spacing",
    "collect_stats": "stats",
    "diagnostics": "_diagnostics",
    "ensure_pool": "pool",
    "map_slices": "_slices",
    "no_meta": "loaders",
    "pool": "pool",
    "probe_ready": "coordination",
    "remove_shared_memory": "vector",
    "share": "arrays",
    "split": "_slices",
    "stats_capacity_for": "stats",
    "sweep": "arrays",
    "warn_above": "_diagnostics",
    "write_spacing_manifest": "spacing",
}


class _Package(ModuleType):
    """The package itself; ``sharedvector.pool`` is the function, not the module of that name.

    The import system sets a package's attribute to each submodule that it loads, and would hide the
    function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _MODULE_OF and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is not None:
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
    submodule = f"{__name__}.{name}"
    if not name.startswith("__"):
        try:
            return import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name != submodule:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


import_module("sys").modules[__name__].__class__ = _Package
