"""How a producer's chunks get into the pool: decoded in their final place, or copied there.

A worker may hold several buffers at once, and all workers share few spare ones. So that they never
wait for each other in a circle, a worker waits for a buffer only while it holds none.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from sharedvector import _core
from sharedvector._producer.view_watch import ViewWatch
from sharedvector.vector import InUseError, OutOfMemoryError, SharedVector
from sharedvector.vector import MemoryError as TooLargeError

logger = logging.getLogger("sharedvector")

BRAKE = 10  # pauses between two replacements while nobody reads, for all workers together
_WRITE_TIMEOUT = 1.0  # seconds to wait for a free buffer, or for views, that count as blocked
_LOOK_AGAIN = 0.1  # longest wait for a slot without a look whether it is told to stop
_OWN_REFERENCES = 2  # to a reservation's array that nobody else has: its own, and that of the look


class Stopped(BaseException):
    """Raised where a worker is when it is told to stop; no loader should catch it."""


class ChunkRefusedError(ValueError):
    """The pool's settings rule a chunk out: its dtype or its size."""


class Held:
    """Counts the time that a worker waits because views are held of everything.

    Args:
        vector: the pool.
        watch: told of it, where nobody else looks.
    """

    def __init__(self, vector: SharedVector, watch: ViewWatch | None) -> None:
        self._vector = vector
        self._watch = watch
        self._uncounted = 0.0

    def waited(self, seconds: float) -> None:
        """Add to the time; each whole second is one blocked replacement."""
        self._vector.counter_add(_core.COUNTER_HELD_MS, max(1, round(seconds * 1000)))
        self._uncounted += seconds
        if self._uncounted >= _WRITE_TIMEOUT:
            self._uncounted -= _WRITE_TIMEOUT
            self._vector.count_blocked()
        if self._watch is not None:
            self._watch.look()


class Store:
    """Where the chunks of one worker go: first into empty slots, then over read ones.

    Args:
        vector: the pool.
        stop: asked between two steps.
        brake: seconds between two replacements of this worker while nobody reads.
        slot_count: slots that all workers together fill before they refresh.
        slots: refresh only these, in turn; None: the whole pool, shared with other workers.

    Attributes:
        written: chunks stored so far.
        held: counts what this worker waits for views.
    """

    def __init__(
        self,
        vector: SharedVector,
        stop: Callable[[], bool],
        brake: float,
        slot_count: int,
        slots: range | None = None,
    ) -> None:
        self.vector = vector
        self.stop = stop
        self.written = 0
        self._brake = brake
        self._slot_count = min(slot_count, vector.capacity)
        self._slots = slots
        self._turn = 0
        self._last_write = time.monotonic()
        # A worker with slots of its own has no supervisor that would tell who holds views.
        watch = None if slots is None else ViewWatch(vector, lambda: logger)
        self.held = Held(vector, watch)

    def publish(self, reservation: _core.Reservation, meta: Any, source: int, epoch: int) -> bool:
        """Make a filled buffer current; False when told to stop before that.

        While slots are empty it goes into the next of them. Then it replaces the next chunk that
        was read and that nobody holds a view of; after the brake one that was not read.
        """
        while not self.stop():
            if self._filling():
                try:
                    reservation.publish(None, meta, source_index=source, source_epoch=epoch)
                except OutOfMemoryError:
                    continue  # another worker has filled the last slot
                return self._wrote()
            now = time.monotonic()
            left = self._last_write + self._brake - now
            try:
                slot = reservation.publish_turn(
                    self._range(),
                    meta,
                    source_index=source,
                    source_epoch=epoch,
                    unread=left <= 0,
                    timeout=min(left, _LOOK_AGAIN) if left > 0 else _LOOK_AGAIN,
                )
            except InUseError:
                self.held.waited(time.monotonic() - now)
                continue
            if slot is not None:
                if self._slots is not None:
                    self._turn = slot + 1 - self._slots.start
                return self._wrote()
        return False

    def copy(
        self, data: np.ndarray[Any, Any], meta: Any, source: int, epoch: int, *, patient: bool
    ) -> bool:
        """Copy a chunk into the pool; False when told to stop before that.

        Raises:
            InUseError: no buffer is free, and not ``patient``.
        """
        try:
            reservation = self.reserve(data.shape, patient=patient)
        except Stopped:
            return False
        if reservation is None:
            raise InUseError("no buffer is free")
        with reservation:
            _core.move(reservation.array, data, 0)
            return self.publish(reservation, meta, source, epoch)

    def reserve(self, shape: Any, *, patient: bool) -> _core.Reservation | None:
        """Take a free buffer for an array of this shape; None when none is and not ``patient``.

        Raises:
            ChunkRefusedError: a buffer cannot hold such an array.
            TypeError: it is no shape.
            Stopped: told to stop.
        """
        while not self.stop():
            try:
                return self.vector.reserve(shape, timeout=_WRITE_TIMEOUT if patient else 0.0)
            except InUseError:
                if not patient:
                    return None
                # Other workers may hold the spare buffers for as long as nobody reads: that alone
                # blocks nothing, and who waits with a chunk for views tells of them.
                rows = self.vector.rows()
                if any(row["pins"] for row in rows) and not any(row["claims"] for row in rows):
                    self.held.waited(_WRITE_TIMEOUT)
            except (TooLargeError, ValueError) as error:
                raise ChunkRefusedError(
                    f"{error}; make chunks smaller or chunk_size larger"
                ) from error
        raise Stopped

    def _wrote(self) -> bool:
        self._last_write = time.monotonic()
        self.written += 1
        return True

    def _filling(self) -> bool:
        return len(self.vector) < self._slot_count

    def _range(self) -> tuple[int, int, int] | None:
        """The slots of this worker alone, as ``publish_turn`` takes them."""
        return None if self._slots is None else (self._slots.start, self._slots.stop, self._turn)


class Landing:
    """The chunks of one source on their way into the pool.

    Args:
        store: where they go.
        source, epoch: where they come from.
        stored: called after each chunk that has arrived.
    """

    def __init__(self, store: Store, source: int, epoch: int, stored: Callable[[], None]) -> None:
        self._store = store
        self._source = source
        self._epoch = epoch
        self._stored = stored
        self._open: dict[int, _core.Reservation] = {}  # by address
        self._heap: weakref.WeakValueDictionary[int, np.ndarray[Any, Any]]  # by address
        self._heap = weakref.WeakValueDictionary()
        self._gone: set[int] = set()  # addresses of what was published
        self._waiting: list[tuple[np.ndarray[Any, Any], Any]] = []  # for a free buffer
        self._over = False
        self._allocating = threading.Lock()

    def allocate(self, shape: Any) -> np.ndarray[Any, Any]:
        """Return a writable C-contiguous array of the pool's dtype, to be filled and given back.

        Its memory is a buffer of the pool, or the heap when none is free and this worker holds
        one. Only while it holds none does the call wait. An array that nothing refers to any more
        is given back. Threads may call it.

        Args:
            shape: of the array.

        Raises:
            ChunkRefusedError: larger than the pool's chunk_size, or no shape of an array.
            TypeError: lengths that are no integers.
            RuntimeError: the source has been loaded.
            Stopped: the worker is told to stop.
        """
        with self._allocating:  # two threads of one loader would both wait, holding none
            if self._over:
                raise RuntimeError("allocate() belongs to one call of load_into(), which is over")
            self._drop_forgotten()
            reservation = self._store.reserve(shape, patient=not self._open)
            if reservation is None:
                array = np.empty(shape, self._store.vector.numpy_dtype)
                self._heap[_address(array)] = array
                return array
            array = reservation.array
            place = _address(array)
            self._open[place] = reservation
            self._gone.discard(place)
            return array

    def take(self, chunk: Any) -> bool:
        """Store a chunk; False when told to stop before that.

        Raises:
            ChunkRefusedError: the pool cannot hold it.
            TypeError: it is no chunk.
            ValueError: its metadata are wrong, or its array was given before.
        """
        data, meta = self._checked(chunk)
        place = _address(data)
        reservation = self._open.get(place)
        if (
            reservation is not None
            and data.shape == reservation.array.shape
            and data.flags.c_contiguous
        ):
            if not self._store.publish(reservation, meta, self._source, self._epoch):
                return False
            del self._open[place]
            self._gone.add(place)
            self._stored()
            return self.drain()
        self._refuse_given(data, place)
        if not data.flags.c_contiguous:
            data = data.copy(order="C")
        self._drop_forgotten()
        if not self.drain():
            return False
        if not self._waiting:
            try:
                return self._copy(data, meta)
            except InUseError:
                pass
        # The loader may use its memory again.
        self._waiting.append((data if place in self._heap else data.copy(), _kept(meta)))
        return True

    def drain(self) -> bool:
        """Copy the chunks that wait for a buffer; False when told to stop before that.

        While the source holds buffers, the rest goes on waiting until it has given them back.
        """
        while self._waiting:
            data, meta = self._waiting.pop(0)
            try:
                if not self._copy(data, meta):
                    return False
            except InUseError:
                self._waiting.insert(0, (data, meta))
                return True
        return True

    def _copy(self, data: np.ndarray[Any, Any], meta: Any) -> bool:
        """Copy one chunk; False when told to stop before, InUseError when it has to wait."""
        patient = not self._open
        if not self._store.copy(data, meta, self._source, self._epoch, patient=patient):
            return False
        self._heap.pop(_address(data), None)
        self._stored()
        return True

    def _drop_forgotten(self) -> None:
        """Give back what was allocated and can not be given any more, as no array is left of it."""
        for place, reservation in list(self._open.items()):
            if sys.getrefcount(reservation.array) <= _OWN_REFERENCES:
                del self._open[place]
                reservation.cancel()

    def _refuse_given(self, data: np.ndarray[Any, Any], place: int) -> None:
        """Raise if an array lies in a buffer that was published: it may hold anything by now."""
        size = self._store.vector.chunk_size
        if data.nbytes and any(0 <= place - begin < size for begin in self._gone):
            raise ValueError(
                "an array from allocate() was given twice; once it is given it belongs to readers"
            )

    def close(self) -> None:
        """Give back what was allocated and has not been given to `take`."""
        self._over = True
        while self._open:
            self._open.popitem()[1].cancel()
        self._heap.clear()

    def _checked(self, chunk: Any) -> tuple[np.ndarray[Any, Any], Any]:
        """Data and meta of a chunk; ChunkRefusedError or TypeError if the pool cannot hold it."""
        try:
            if isinstance(chunk, np.ndarray):
                raise TypeError  # two rows would pass for data and metadata
            data, meta = chunk
        except (TypeError, ValueError):
            raise TypeError(
                f"a loader should give a list of Chunk(data, meta), got a {type(chunk).__name__}"
            ) from None
        if not isinstance(data, np.ndarray):
            raise TypeError(f"a chunk's data should be an array, got a {type(data).__name__}")
        vector = self._store.vector
        if data.dtype != vector.numpy_dtype:
            raise ChunkRefusedError(
                f"the chunk has dtype {data.dtype}, the pool {vector.dtype}; let the loader "
                "convert it, or give the pool that dtype"
            )
        if data.nbytes > vector.chunk_size:
            raise ChunkRefusedError(
                f"the chunk of shape {data.shape} has {data.nbytes} bytes, the pool's chunk_size "
                f"is {vector.chunk_size} bytes; make chunks smaller or chunk_size larger"
            )
        return data, meta


def _kept(meta: Any) -> Any:
    """Metadata that stay what they are."""
    return None if meta is None else np.array(meta, np.float64)


def _address(array: np.ndarray[Any, Any]) -> int:
    """Where an array's memory begins."""
    return int(array.__array_interface__["data"][0])
