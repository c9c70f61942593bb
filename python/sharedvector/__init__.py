"""A pool of array chunks in shared memory: one producer per node, any number of readers.

The package needs NumPy and cloudpickle. torch, zarr and tqdm are imported by the parts that use
them, when they are used. Every name here is imported at its first use, NumPy with it: the processes
that feed a pool start in half the time.
"""

from __future__ import annotations

from importlib import import_module
from sys import modules
from types import ModuleType

from sharedvector._common import lazy_names

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from typing import Any

    from sharedvector._coordination import (
        OwnerLock,
        PoolBusyError,
        PoolPaths,
        PoolSpawnError,
        ReadyState,
        probe_ready,
    )
    from sharedvector._core import __version__
    from sharedvector._pool import (
        PoolGoneError,
        PoolHandle,
        ProducerService,
        ProducerSpec,
        ensure_pool,
        pool,
    )
    from sharedvector.arrays import SharedArray, amap_slices, map_slices, share, split
    from sharedvector.lifecycle import LifecycleGuard
    from sharedvector.loaders import (
        Chunk,
        Loader,
        NumpyLoader,
        ZarrLoader,
        cast_volume,
        collect_spacings,
        no_meta,
        write_spacing_manifest,
    )
    from sharedvector.monitoring import Diagnostics, diagnostics, sweep, warn_above
    from sharedvector.stats import PoolStats, collect_stats, stats_capacity_for
    from sharedvector.training import PoolLoader, SharedMemoryDataset
    from sharedvector.vector import (
        ArraySizeError,
        DataModifiedError,
        FormatError,
        InUseError,
        OutOfMemoryError,
        PoolStalledError,
        Reservation,
        SharedVector,
        remove_shared_memory,
    )
    from sharedvector.vector import MemoryError as MemoryError

__all__ = [
    "ArraySizeError",
    "Chunk",
    "DataModifiedError",
    "Diagnostics",
    "FormatError",
    "InUseError",
    "LifecycleGuard",
    "Loader",
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

_HOMES = {
    "._core": "__version__",
    "._coordination": ("OwnerLock PoolBusyError PoolPaths PoolSpawnError ReadyState probe_ready"),
    "._pool": "PoolGoneError PoolHandle ProducerService ProducerSpec ensure_pool pool",
    ".arrays": "SharedArray amap_slices map_slices share split",
    ".lifecycle": "LifecycleGuard",
    ".loaders": (
        "Chunk Loader NumpyLoader ZarrLoader cast_volume collect_spacings no_meta "
        "write_spacing_manifest"
    ),
    ".monitoring": "Diagnostics diagnostics sweep warn_above",
    ".stats": "PoolStats collect_stats stats_capacity_for",
    ".training": "PoolLoader SharedMemoryDataset",
    ".vector": (
        "ArraySizeError DataModifiedError FormatError InUseError MemoryError OutOfMemoryError "
        "PoolStalledError Reservation SharedVector remove_shared_memory"
    ),
}
_lazy_name, __dir__ = lazy_names(__name__, _HOMES)


class _Package(ModuleType):
    """The package itself; ``sharedvector.pool`` is the function, not the module of that name.

    The import system sets a package's attribute to each submodule that it loads, and would hide the
    function.
    """

    @property
    def __all__(self) -> list[str]:
        """What ``import *`` takes: not what needs torch, where torch is not installed."""
        names: list[str] = vars(self)["__all__"]
        try:
            missing = import_module("importlib.util").find_spec("torch") is None
        except ValueError:  # somebody keeps it from being imported
            missing = True
        without = _HOMES[".training"].split() if missing else []
        return [name for name in names if name not in without]

    def __setattr__(self, name: str, value: object) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    # Not in __all__, as `import *` should not hide the builtin, which it is derived from.
    if name in __all__ or name == "MemoryError":
        return _lazy_name(name)
    submodule = f"{__name__}.{name}"
    if not name.startswith("__"):
        try:
            return import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name != submodule:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


modules[__name__].__class__ = _Package
