"""The work of one producer: load sources in a random order and keep slots filled with them."""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from sharedvector import _core
from sharedvector._common import duration, integer, level_number
from sharedvector._producer.failures import FailureLog, describe
from sharedvector._producer.source_order import SourceOrder, seed_of
from sharedvector._producer.writer import BRAKE, ChunkRefusedError, Landing, Stopped, Store
from sharedvector.vector import SharedVector

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

__all__ = ["producer_worker"]

logger = logging.getLogger("sharedvector")

# What a loader may count, as running totals in its ``counters``, and where the pool counts it.
_COUNTERS = {
    "direct": _core.COUNTER_DIRECT,
    "zarr": _core.COUNTER_ZARR,
    "tensorstore": _core.COUNTER_TENSORSTORE,
    "missing_chunks": _core.COUNTER_MISSING,
}

Report = Callable[[dict[str, Any]], None]


class StopFlag(Protocol):
    """Whatever can say that it is time to end: an event of threading or multiprocessing."""

    def is_set(self) -> bool:
        """Return whether it is."""
        ...


class Producer:
    """Loads sources and stores their chunks: first into empty slots, then over read ones.

    A source that raises, gives nothing, or gives a chunk that the pool cannot hold is logged,
    counted and skipped; the chunks before are kept.

    Args:
        vector: the pool.
        loader: called with a source's number; or its ``load_into``, where it has that, with an
            allocator too (see `Loader`).
        source_size: how many sources there are.
        seed: of the order of sources; the same in all workers.
        stop: asked between two steps.
        sleep_seconds: pause after a source that gave nothing.
        workers: how many producers share the pool; spreads the brake.
        slot_count: slots to fill; None: all that the pool has.
        slots: refresh only these, in turn; None: the whole pool.
        report: told what happened, as dicts with "event": "stored", or "failed" with "source",
            "error" (for an empty source what the loader's ``explain_empty(source)``, if it has
            one, says), "empty", and "refused" (by the pool's settings).
    """

    def __init__(
        self,
        vector: SharedVector,
        loader: Loader,
        source_size: int,
        seed: int,
        stop: Callable[[], bool],
        *,
        sleep_seconds: float = 0.01,
        workers: int = 1,
        slot_count: int | None = None,
        slots: range | None = None,
        report: Report | None = None,
    ) -> None:
        self._vector = vector
        self._loader = loader
        self._load_into = optional(loader, "load_into")
        self._order = SourceOrder(source_size, seed)
        self._stop = stop
        self._sleep = sleep_seconds
        self._store = Store(
            vector,
            stop,
            BRAKE * sleep_seconds * workers,
            slot_count if slot_count is not None else vector.capacity,
            slots,
        )
        self._report = report if report is not None else lambda event: None
        self._failures = FailureLog()
        self._totals = dict.fromkeys(_COUNTERS, 0)
        self._storing = False

    def run(self) -> None:
        """Work until told to stop."""
        with contextlib.suppress(Stopped):
            while not self._stop():
                self._work_on(*self._order.draw(self._vector.counter_add(_core.COUNTER_SOURCE)))

    def _work_on(self, source: int, epoch: int) -> None:
        before = self._store.written
        landing = Landing(self._store, source, epoch, self._tell_stored)
        empty = self._storing = False
        try:
            empty = not self._load(landing, source)
        except (Exception, SystemExit) as error:
            self._failed(source, error)
        finally:
            landing.close()
            self._count()
        try:
            landing.drain()
        except (Exception, SystemExit) as error:
            self._storing = True
            self._failed(source, error)
        if empty and not self._stop():
            self._vector.counter_add(_core.COUNTER_EMPTY)
            self._report_failure(source, self._explain_empty(source), empty=True)
        if self._store.written == before and not self._stop():
            time.sleep(self._sleep)

    def _load(self, landing: Landing, source: int) -> int:
        """Load one source and store what it gives; returns how many chunks that were."""
        count = 0
        chunks: Any
        if self._load_into is None:
            chunks = self._loader(source)
        else:
            chunks = self._load_into(source, landing.allocate)
        try:
            for chunk in chunks:
                count += 1
                self._storing = True
                if not landing.take(chunk):
                    return count
                self._storing = False
        finally:
            if isinstance(chunks, Generator):
                chunks.close()
        self._vector.counter_add(_core.COUNTER_LOADS)
        return count

    def _tell_stored(self) -> None:
        self._report({"event": "stored"})

    def _count(self) -> None:
        """Add what the loader has counted since the last source to the pool's counters."""
        totals = optional(self._loader, "counters")
        if not isinstance(totals, dict):
            return
        for name, counter in _COUNTERS.items():
            try:
                total = operator.index(totals.get(name, 0))
            except TypeError:
                continue
            if total > self._totals[name]:
                self._vector.counter_add(counter, total - self._totals[name])
                self._totals[name] = total

    def _failed(self, source: int, error: BaseException) -> None:
        if self._stop():
            return  # what the end has interrupted is no failure
        self._vector.counter_add(_core.COUNTER_ERRORS)
        self._failures.tell(source, error, "stored" if self._storing else "loaded")
        refused = isinstance(error, ChunkRefusedError)
        self._report_failure(source, describe(error), refused=refused)

    def _report_failure(
        self, source: int, text: str, *, empty: bool = False, refused: bool = False
    ) -> None:
        event = {"event": "failed", "source": source, "error": text}
        self._report({**event, "empty": empty, "refused": refused})

    def _explain_empty(self, source: int) -> str:
        """Why a source has no chunk, where the loader can tell."""
        explain = optional(self._loader, "explain_empty")
        if explain is None:
            return ""
        try:
            return str(explain(source))
        except Exception as error:
            logger.debug("no word on why source %d is empty:", source, exc_info=error)
            return ""


def producer_worker(
    name: str,
    chunk_size: int,
    max_memory_size: int,
    slot_range: tuple[int, int],
    source_size: int,
    slot_count: int,
    loader: Loader,
    stop_event: StopFlag,
    sleep_seconds: float,
    worker_id: int = 0,
    dtype: str = "float32",
    log_level: int | str = 20,
) -> None:
    """Work as one producer, in the calling process, until ``stop_event`` is set.

    `ProducerService` does this in processes of its own and watches over them; call it only to
    arrange that otherwise.

    Args:
        name: of the segment; it is made when it does not exist.
        chunk_size: bytes of one chunk, for making it.
        max_memory_size: bytes of all slots, for making it; 0: as many as ``slot_count`` needs.
        slot_range: first slot that this worker refreshes, and the one after its last.
        source_size: how many sources there are.
        slot_count: slots that all workers together fill before they refresh.
        loader: called with a source's number.
        stop_event: anything with ``is_set()``.
        sleep_seconds: pause after a source that gave nothing.
        worker_id: number of this worker among those of the pool.
        dtype: of the chunks; must be the segment's.
        log_level: of the logger "sharedvector": a number, or a name such as "INFO".

    Raises:
        ValueError: ``dtype`` is not the segment's, or a bad range, count, time or ``log_level``.
        TypeError: a count is no integer, or the time no number.
        OSError: the segment cannot be made.
    """
    first, end = (integer("slot_range", slot) for slot in slot_range)
    if not 0 <= first < end:
        raise ValueError(f"slot_range should be (first, end) with 0 <= first < end: {slot_range}")
    source_size = integer("source_size", source_size, 1)
    slot_count = integer("slot_count", slot_count, 1)
    sleep_seconds = duration("sleep_seconds", sleep_seconds)
    logger.setLevel(level_number("log_level", log_level))
    vector = open_segment(name, chunk_size, max_memory_size, slot_count, dtype)
    if not end <= slot_count <= vector.capacity:
        raise ValueError(
            f"slot_range {slot_range} should lie within slot_count={slot_count}, and that within "
            f"the {vector.capacity} slots of {name!r}"
        )
    number_loader(loader, worker_id)
    producer = Producer(
        vector,
        loader,
        source_size,
        seed_of(vector.generation),
        stop_event.is_set,
        sleep_seconds=sleep_seconds,
        slot_count=slot_count,
        slots=range(first, end),
    )
    producer.run()


def open_segment(
    name: str, chunk_size: int, max_memory_size: int, slot_count: int, dtype: str
) -> SharedVector:
    """Attach to a segment of this dtype, or make it."""
    try:
        return SharedVector(name, dtype=dtype, create=False)
    except FileNotFoundError:
        if max_memory_size:
            return SharedVector(name, chunk_size, max_memory_size, dtype=dtype)
        return SharedVector(name, chunk_size, dtype=dtype, slot_count=slot_count)


def optional(loader: object, name: str, default: Any = None) -> Any:
    """Return what a loader offers beyond the protocol; the default when it does not, or fails."""
    try:
        return getattr(loader, name, default)
    except Exception as error:
        logger.debug("the loader's %s cannot be read: %s", name, describe(error))
        return default


def number_loader(loader: object, worker_id: int) -> None:
    """Tell a loader that wants to know the number of its worker, and can be told."""
    try:
        if hasattr(loader, "worker_id"):
            loader.worker_id = worker_id
    except Exception as error:
        logger.debug("the loader's worker_id cannot be set: %s", describe(error))
