"""Metric families of Prometheus, made of diagnostics and of the statistics of pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from sharedvector.monitoring.leftovers import Swept
from sharedvector.stats import PoolStats

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise ImportError("Prometheus metrics need: pip install 'sharedvector[prometheus]'") from _error

__all__ = ["PoolSource", "diagnostics_metrics", "pool_metrics", "text_of"]

_PREFIX = "sharedvector_"
_POOL_PREFIX = "sharedvector_pool_"

_GAUGES = {
    "blocks_made": "blocks that this process made and has not removed",
    "blocks_made_bytes": "memory of the blocks that this process made and has not removed",
    "blocks_attached": "blocks of other processes that this process has mapped",
    "blocks_attached_bytes": "memory of the blocks of other processes that are mapped here",
    "blocks_all": "blocks of this user, whoever made them",
    "blocks_all_bytes": "memory of all blocks of this user",
    "shm_bytes": "size of the shared-memory file system",
    "shm_free_bytes": "free bytes of the shared-memory file system",
    "memory_free_bytes": "memory that machine and container still have",
    "container_limit_bytes": "memory limit of this process's control groups",
    "warn_above_bytes": "what warn_above() was told",
}
_POOL_COUNTERS = {
    "replace_events": "chunks replaced",
    "blocked_replaces": "replacements that found the slot pinned or no buffer free",
    "reads_at_replace_total": "reads that replaced chunks had got",
    "loads_direct": "volumes that a Zarr loader has decoded by itself",
    "loads_zarr": "volumes read through zarr-python",
    "loads_tensorstore": "volumes read through TensorStore",
    "missing_chunks": "Zarr chunks that were not stored, and so were fill values",
    "sources_loaded": "sources loaded to their end",
    "sources_failed": "sources that could not be loaded or stored",
    "sources_empty": "sources that gave no chunk",
    "restarts": "producer workers and supervisors started again",
    "waiting_for_views": "seconds that producer workers have waited for views to be dropped",
}
_POOL_GAUGES = {
    "reads_at_replace_max": "most reads that a replaced chunk had got",
    "reads_at_replace_mean": "mean reads of replaced chunks",
    "recent_count": "samples in the ring of recent replacements",
    "recent_mean": "mean reads of recently replaced chunks",
    "recent_median": "median reads of recently replaced chunks",
    "recent_p10": "10th percentile of the reads of recently replaced chunks",
    "recent_p90": "90th percentile of the reads of recently replaced chunks",
    "recent_max": "most reads of a recently replaced chunk",
    "slots": "filled slots",
    "slot_last_reads_mean": "mean over the slots of the reads of the chunk before",
    "slot_last_reads_median": "median over the slots of the reads of the chunk before",
    "slot_last_reads_max": "most reads of the chunk before, over the slots",
    "slots_never_replaced": "slots that still hold their first chunk",
    "slot_pending_reads_mean": "mean over the slots of the reads of the current chunk",
    "name_lost": "1: the pool's file was removed, and nobody new can attach",
}


class PoolSource(Protocol):
    """What has the statistics of a pool: PoolHandle, SharedMemoryDataset, ProducerService."""

    @property
    def name(self) -> str:
        """The pool's name."""

    def stats(self) -> PoolStats:
        """The pool's statistics."""


class Found(Protocol):
    """A `Diagnostics`, which has all that `_GAUGES` names."""

    @property
    def orphaned(self) -> tuple[Swept, ...]:
        """What dead processes have left behind."""


def text_of(found: Found) -> str:
    """Return what was found in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    return generate_latest(registry).decode()


class _Once:
    """A collector of what was found before."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return diagnostics_metrics(self._found)


def diagnostics_metrics(found: Found) -> Iterator[Metric]:
    for name, words in _GAUGES.items():
        value = getattr(found, name)
        if value is not None:
            yield GaugeMetricFamily(_PREFIX + name, _sentence(words), value=value)
    words = "blocks and pools of this user whose makers are dead"
    count = GaugeMetricFamily(f"{_PREFIX}orphans", _sentence(words), labels=["kind"])
    size = GaugeMetricFamily(
        f"{_PREFIX}orphans_bytes", _sentence(f"memory of {words}"), labels=["kind"]
    )
    for kind in ("block", "pool"):
        items = [item.bytes for item in found.orphaned if item.kind == kind]
        count.add_metric([kind], len(items))
        size.add_metric([kind], sum(items))
    yield count
    yield size


def pool_metrics(pools: Iterable[PoolSource]) -> Iterator[Metric]:
    words = "1 if the pool's statistics can be read, else 0"
    readable = GaugeMetricFamily(f"{_POOL_PREFIX}readable", _sentence(words), labels=["pool"])
    read: dict[str, PoolStats] = {}
    for pool in pools:
        try:
            read[pool.name] = pool.stats()
        except (OSError, RuntimeError, ValueError):  # gone, damaged or closed
            readable.add_metric([pool.name], 0)
        else:
            readable.add_metric([pool.name], 1)
    yield readable
    kinds: list[tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], dict[str, str]]]
    kinds = [(CounterMetricFamily, _POOL_COUNTERS), (GaugeMetricFamily, _POOL_GAUGES)]
    for kind, table in kinds:
        for name, words in table.items():
            family = kind(_POOL_PREFIX + name, _sentence(words), labels=["pool"])
            for pool_name, stats in read.items():
                family.add_metric([pool_name], getattr(stats, name))
            yield family


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
