"""Statistics of a pool as one plain record, ready for any logger."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from sharedvector import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sharedvector.vector import SharedVector

__all__ = ["PoolStats", "collect_stats", "stats_capacity_for"]

_MIN_SAMPLES = 4096


@dataclass(frozen=True)
class PoolStats:
    """How often the chunks of a pool are read before they are replaced.

    A *sample* is the number of reads that one chunk got between its publication and its
    replacement. The ``recent_*`` fields look at the samples still in the segment's ring, the
    ``slot_*`` fields at every filled slot, the others at the whole life of the pool (or since
    ``reset_stats``). Means, medians and percentiles are ``float``, the rest are ``int``; all are
    0 where there is nothing to count.

    Attributes:
        replace_events: chunks replaced.
        blocked_replaces: replacements that found the slot pinned or no buffer free.
        reads_at_replace_total: sum over all samples.
        reads_at_replace_max: largest sample.
        reads_at_replace_mean: mean sample.
        recent_count: samples in the ring.
        recent_mean: their mean.
        recent_median: their median.
        recent_p10: their 10th percentile, linearly interpolated.
        recent_p90: their 90th percentile, linearly interpolated.
        recent_max: the largest of them.
        slots: filled slots.
        slot_last_reads_mean: mean over the slots of each slot's latest sample.
        slot_last_reads_median: their median.
        slot_last_reads_max: the largest of them.
        slots_never_replaced: slots that still hold their first chunk.
        slot_pending_reads_mean: mean over the slots of the reads of the current chunk so far.
        loads_direct: volumes that a Zarr loader has read and decoded by itself.
        loads_zarr: volumes that it has read through zarr-python.
        loads_tensorstore: volumes that it has read through TensorStore.
        missing_chunks: Zarr chunks that were not stored, and so were fill values.
        sources_loaded: sources that the producers have loaded to their end.
        sources_failed: sources that could not be loaded, or not be stored.
        sources_empty: sources that gave no chunk.
        restarts: producer workers and supervisors that were started again.
        waiting_for_views: seconds that the producer workers, all together, have waited because
            views were held of every chunk that they could replace, or of every spare buffer. It
            grows while they wait.
        held_by: a line for each process that holds views now: its pid, command, how many, since
            when it is attached, and the age of the oldest chunk among them. No view is older than
            its chunk; when it was taken is not recorded.
        name_lost: 1 when the pool's name leads to this segment no longer, because its file was
            removed: those attached go on, and nobody else can attach; 0 while it does.
    """

    replace_events: int
    blocked_replaces: int
    reads_at_replace_total: int
    reads_at_replace_max: int
    reads_at_replace_mean: float
    recent_count: int
    recent_mean: float
    recent_median: float
    recent_p10: float
    recent_p90: float
    recent_max: int
    slots: int
    slot_last_reads_mean: float
    slot_last_reads_median: float
    slot_last_reads_max: int
    slots_never_replaced: int
    slot_pending_reads_mean: float
    loads_direct: int = 0
    loads_zarr: int = 0
    loads_tensorstore: int = 0
    missing_chunks: int = 0
    sources_loaded: int = 0
    sources_failed: int = 0
    sources_empty: int = 0
    restarts: int = 0
    waiting_for_views: float = 0.0
    held_by: tuple[str, ...] = ()
    name_lost: int = 0

    def as_dict(self, prefix: str = "sharedvector/") -> dict[str, int | float]:
        """Return every number under ``prefix + name``, as Python ``int`` and ``float`` only.

        ``held_by``, which is text, is left out.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            f"{prefix}{name}": value
            for name, value in values.items()
            if isinstance(value, int | float)
        }


def collect_stats(vector: SharedVector) -> PoolStats:
    """Read the statistics of an attached pool.

    The counters are read one after the other while others go on reading and replacing, so the
    fields of one record may differ by the events of those microseconds. Nothing is changed and
    nothing is counted as a read.

    Args:
        vector: an open handle on the pool.

    Returns:
        The statistics; all zero for a pool without chunks.
    """
    counters = vector.stats
    events = int(counters["replace_events"])
    total = int(counters["reads_at_replace_total"])
    samples = vector.read_samples()
    latest = vector.last_reads()
    writes = vector.write_counts()
    p10, median, p90 = _percentiles(samples, (10, 50, 90))
    return PoolStats(
        replace_events=events,
        blocked_replaces=int(counters["blocked_replaces"]),
        reads_at_replace_total=total,
        reads_at_replace_max=int(counters["reads_at_replace_max"]),
        reads_at_replace_mean=total / events if events else 0.0,
        recent_count=int(samples.size),
        recent_mean=_mean(samples),
        recent_median=median,
        recent_p10=p10,
        recent_p90=p90,
        recent_max=_max(samples),
        slots=int(writes.size),
        slot_last_reads_mean=_mean(latest),
        slot_last_reads_median=_percentiles(latest, (50,))[0],
        slot_last_reads_max=_max(latest),
        slots_never_replaced=int(np.count_nonzero(writes <= 1)),
        slot_pending_reads_mean=_mean(vector.read_counts()),
        loads_direct=vector.counter_add(_core.COUNTER_DIRECT, 0),
        loads_zarr=vector.counter_add(_core.COUNTER_ZARR, 0),
        loads_tensorstore=vector.counter_add(_core.COUNTER_TENSORSTORE, 0),
        missing_chunks=vector.counter_add(_core.COUNTER_MISSING, 0),
        sources_loaded=vector.counter_add(_core.COUNTER_LOADS, 0),
        sources_failed=vector.counter_add(_core.COUNTER_ERRORS, 0),
        sources_empty=vector.counter_add(_core.COUNTER_EMPTY, 0),
        restarts=vector.counter_add(_core.COUNTER_RESTARTS, 0),
        waiting_for_views=vector.counter_add(_core.COUNTER_HELD_MS, 0) / 1000,
        held_by=view_holders(vector),
        name_lost=int(not leads_to(vector)),
    )


def view_holders(vector: SharedVector) -> tuple[str, ...]:
    """Describe each process that holds views of a pool, for people (see ``PoolStats.held_by``)."""
    now = time.time_ns()
    return tuple(
        f"pid {row['pid']} ({row['command'].strip()}): {row['pins']} "
        f"view{'' if row['pins'] == 1 else 's'}, the oldest of a chunk from "
        f"{_seconds(now - row['oldest_ns'])} s ago; attached for "
        f"{_seconds(now - row['attached_ns'])} s"
        for row in vector.rows()
        if row["pins"]
    )


def _seconds(nanoseconds: int) -> int:
    return max(0, nanoseconds) // 1_000_000_000


def leads_to(vector: SharedVector) -> bool:
    """Return whether the segment's name leads to this very segment, and not to another or none."""
    try:
        found = os.stat(os.path.join(vector.directory, vector.name))
    except OSError:
        return False
    return found.st_ino == vector.inode


def stats_capacity_for(slot_count: int) -> int:
    """Return how many samples the ring of a pool of ``slot_count`` slots should hold.

    Two full refresh cycles, and never fewer than 4096, so that percentiles of small pools rest
    on enough samples.
    """
    return max(_MIN_SAMPLES, 2 * int(slot_count))


def _mean(counts: NDArray[np.unsignedinteger]) -> float:
    return float(counts.mean()) if counts.size else 0.0


def _max(counts: NDArray[np.unsignedinteger]) -> int:
    return int(counts.max()) if counts.size else 0


def _percentiles(counts: NDArray[np.unsignedinteger], points: tuple[int, ...]) -> list[float]:
    if not counts.size:
        return [0.0] * len(points)
    return [float(value) for value in np.percentile(counts, points)]
