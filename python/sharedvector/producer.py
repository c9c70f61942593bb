"""The work of one producer: load sources in a random order and keep slots filled with them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sharedvector import _core
from sharedvector._order import SourceOrder, seed_of
from sharedvector.vector import InUseError, OutOfMemoryError, SharedVector

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

__all__ = ["producer_worker"]

logger = logging.getLogger("sharedvector")

BRAKE = 10  # pauses between two replacements while nobody reads, for all workers together
_WRITE_TIMEOUT = 1.0  # seconds to wait for a free buffer before it counts as blocked
_LOOK_AGAIN = 0.1  # sleep of the brake before it looks for readers again
_LOOK_SHARE = 20  # that sleep is at least so many times what the look takes (many slots)
_LOG_BURST = 5  # failed sources that are logged at once, then one per _LOG_INTERVAL
_LOG_INTERVAL = 10.0

Report = Callable[[dict[str, Any]], None]


class StopFlag(Protocol):
    """Whatever can say that it is time to end: an event of threading or multiprocessing."""

    def is_set(self) -> bool:
        """Return whether it is."""
        ...


class ChunkRefusedError(ValueError):
    """The pool's settings rule a chunk out: its dtype or its size."""


class FailureLog:
    """Tells of each failed source once, and not of all of them at once.

    Sources that fail for the same reason, numbers aside, wait for their turn.
    """

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._reasons: dict[str, float] = {}  # when each was told last
        self._credit = float(_LOG_BURST)
        self._then = time.monotonic()
        self._silent = 0

    def tell(self, source: int, error: BaseException, what: str) -> None:
        """Log one failure: a line at WARNING, the traceback at DEBUG."""
        if source in self._told:
            return
        now = time.monotonic()
        self._credit = min(_LOG_BURST, self._credit + (now - self._then) / _LOG_INTERVAL)
        self._then = now
        text = describe(error)
        reason = re.sub(r"\d+", "#", text)
        if self._credit < 1 or now - self._reasons.get(reason, -_LOG_INTERVAL) < _LOG_INTERVAL:
            self._silent += 1
            return
        self._credit -= 1
        self._reasons[reason] = now
        self._told.add(source)
        more = f" ({self._silent} more failures were not logged)" if self._silent else ""
        self._silent = 0
        logger.warning("source %d could not be %s: %s%s", source, what, text, more)
        logger.debug("source %d:", source, exc_info=error)


def describe(error: BaseException) -> str:
    """Return an error's type and text in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception as another:
        text = f"(its text cannot be made: {type(another).__name__})"
    return f"{type(error).__name__}: {text}".rstrip(": ")


class Producer:
    """Loads sources and stores their chunks: first into empty slots, then over read ones.

    A source that raises, gives nothing, or gives a chunk that the pool cannot hold is logged,
    counted and skipped.

    Args:
        vector: the pool.
        loader: called with a source's number.
        source_size: how many sources there are.
        seed: of the order of sources; the same in all workers.
        stop: asked between two steps.
        sleep_seconds: pause after a source that gave nothing.
        worker_id: number of this worker.
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
        worker_id: int = 0,
        workers: int = 1,
        slot_count: int | None = None,
        slots: range | None = None,
        report: Report | None = None,
    ) -> None:
        self._vector = vector
        self._loader = loader
        self._order = SourceOrder(source_size, seed)
        self._stop = stop
        self._sleep = sleep_seconds
        self._brake = BRAKE * sleep_seconds * workers
        self._slot_count = slot_count if slot_count is not None else vector.capacity
        self._slots = slots
        self._worker_id = worker_id
        self._workers = workers
        self._turn = 0
        self._report = report if report is not None else lambda event: None
        self._failures = FailureLog()
        self._stored = 0
        self._last_write = time.monotonic()

    def run(self) -> None:
        """Work until told to stop."""
        while not self._stop():
            self._work_on(*self._order.draw(self._vector.counter_add(_core.COUNTER_SOURCE)))

    def _work_on(self, source: int, epoch: int) -> None:
        before = self._stored
        try:
            chunks = self._loader(source)
            self._vector.counter_add(_core.COUNTER_LOADS)
        except (Exception, SystemExit) as error:
            self._failed(source, error, "loaded")
            chunks = []
        else:
            try:
                empty = not self._store_all(chunks, source, epoch)
            except (Exception, SystemExit) as error:
                self._failed(source, error, "stored")
            else:
                if empty and not self._stop():
                    self._vector.counter_add(_core.COUNTER_EMPTY)
                    self._report_failure(source, self._explain_empty(source), empty=True)
        if self._stored == before and not self._stop():
            time.sleep(self._sleep)

    def _failed(self, source: int, error: BaseException, what: str) -> None:
        if self._stop():
            return  # what the end has interrupted is no failure
        self._vector.counter_add(_core.COUNTER_ERRORS)
        self._failures.tell(source, error, what)
        refused = isinstance(error, ChunkRefusedError)
        self._report_failure(source, describe(error), refused=refused)

    def _report_failure(
        self, source: int, text: str, *, empty: bool = False, refused: bool = False
    ) -> None:
        event = {"event": "failed", "source": source, "error": text}
        self._report({**event, "empty": empty, "refused": refused})

    def _explain_empty(self, source: int) -> str:
        """Why a source has no chunk, where the loader can tell."""
        explain = getattr(self._loader, "explain_empty", None)
        if explain is None:
            return ""
        try:
            return str(explain(source))
        except Exception as error:
            logger.debug("no word on why source %d is empty:", source, exc_info=error)
            return ""

    def _store_all(self, chunks: Iterable[Any], source: int, epoch: int) -> int:
        """Store what a loader gave; returns how many chunks that were."""
        count = 0
        for chunk in chunks:
            count += 1
            data, meta = self._checked(chunk)
            if not self._store(data, meta, source, epoch):
                break
            self._stored += 1
            self._report({"event": "stored"})
        return count

    def _checked(self, chunk: Any) -> tuple[np.ndarray[Any, Any], Any]:
        """Data and meta of a chunk; ChunkRefusedError or TypeError if the pool cannot hold it."""
        try:
            data, meta = chunk
        except (TypeError, ValueError):
            raise TypeError(
                f"a loader should give a list of Chunk(data, meta), got a {type(chunk).__name__}"
            ) from None
        if not isinstance(data, np.ndarray):
            raise TypeError(f"a chunk's data should be an array, got a {type(data).__name__}")
        if data.dtype != self._vector.numpy_dtype:
            raise ChunkRefusedError(
                f"the chunk has dtype {data.dtype}, the pool {self._vector.dtype}; let the loader "
                "convert it, or give the pool that dtype"
            )
        if data.nbytes > self._vector.chunk_size:
            raise ChunkRefusedError(
                f"the chunk of shape {data.shape} has {data.nbytes} bytes, the pool's chunk_size "
                f"is {self._vector.chunk_size} bytes; make chunks smaller or chunk_size larger"
            )
        return data if data.flags.c_contiguous else data.copy(order="C"), meta

    def _store(self, data: np.ndarray[Any, Any], meta: Any, source: int, epoch: int) -> bool:
        """Put one chunk into the pool; False when told to stop before that."""
        while self._filling():
            if self._stop():
                return False
            try:
                self._vector.append(data, meta, source_index=source, source_epoch=epoch)
            except OutOfMemoryError:
                break
            except InUseError:
                # Other workers hold the last free buffers; soon these are slots.
                continue
            self._last_write = time.monotonic()
            return True
        slot = self._next_slot()
        while slot is not None and not self._stop():
            try:
                self._vector.replace(
                    slot,
                    data,
                    meta,
                    refuse=False,
                    timeout=_WRITE_TIMEOUT,
                    source_index=source,
                    source_epoch=epoch,
                )
            except InUseError:
                # Readers hold every spare buffer: the chunk waits for the first that comes back.
                self._vector.count_blocked()
                continue
            self._last_write = time.monotonic()
            return True
        return False

    def _filling(self) -> bool:
        return len(self._vector) < self._slot_count

    def _next_slot(self) -> int | None:
        """The slot to refresh, after the brake if nothing was read; None when told to stop."""
        released = self._last_write + self._brake
        while not self._stop():
            began = time.monotonic()
            slot = self._read_slot()
            now = time.monotonic()
            if slot is not None:
                return slot
            if now >= released:
                return self._slot_in_turn()
            time.sleep(min(released - now, max(_LOOK_AGAIN, _LOOK_SHARE * (now - began))))
        return None

    def _read_slot(self) -> int | None:
        """A slot whose chunk has been read; None when there is none (among the next few)."""
        if self._slots is None:
            slot, unread = self._vector.refresh_next()
            return None if unread else slot
        slot = self._slot_in_turn(advance=False)
        return self._slot_in_turn() if self._vector.get_chunk_read_count(slot) else None

    def _slot_in_turn(self, advance: bool = True) -> int:
        """The next of this worker's own round through the slots; workers begin far apart."""
        slots = self._slots if self._slots is not None else range(self._vector.capacity)
        filled = max(1, min(len(self._vector), slots.stop) - slots.start)
        begin = filled * self._worker_id // self._workers if self._slots is None else 0
        slot = slots.start + (begin + self._turn) % filled
        self._turn += advance
        return slot


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
    log_level: int = 20,
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
        log_level: of the logger "sharedvector".

    Raises:
        ValueError: ``dtype`` is not the segment's, or a bad range or ``source_size``.
        OSError: the segment cannot be made.
    """
    first, end = slot_range
    if not 0 <= first < end:
        raise ValueError(f"slot_range should be (first, end) with 0 <= first < end: {slot_range}")
    if source_size < 1:
        raise ValueError(f"source_size should be at least 1, got {source_size}")
    logger.setLevel(log_level)
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


def number_loader(loader: object, worker_id: int) -> None:
    """Tell a loader that wants to know the number of its worker, and can be told."""
    try:
        if hasattr(loader, "worker_id"):
            loader.worker_id = worker_id
    except Exception as error:
        logger.debug("the loader's worker_id cannot be set: %s", describe(error))
