"""A pool and its producer as an object: for a job step of its own, or inside a program."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sharedvector._common import aside, check_wanted, here_or_aside, integer, level_number
from sharedvector._coordination import OwnerLock, PoolBusyError, PoolPaths, probe_owner
from sharedvector._pool.config import PoolConfig, ProducerKind, ProducerSpec
from sharedvector._pool.owner import BootstrapInterrupted, Reign
from sharedvector._pool.registry import CLOSING_LIMIT, Turn
from sharedvector.stats import PoolStats, collect_stats
from sharedvector.vector import PoolStalledError

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

__all__ = ["ProducerService", "partition"]

logger = logging.getLogger("sharedvector")

_LOOK_EVERY = 0.2  # seconds between two looks of run() at its producer


def partition(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``range(total)`` into ``parts`` pieces (start, end), the longer ones first.

    Raises:
        ZeroDivisionError: ``parts`` is 0.
        TypeError: one of them is no integer.
    """
    parts = integer("parts", parts)  # NumPy's small integers would overflow below
    size, longer = divmod(integer("total", total), parts)
    ends = [(number + 1) * size + min(number + 1, longer) for number in range(parts)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class ProducerService:
    """Owns a pool: makes it, fills it, refreshes it until `stop`.

    The producers are processes of their own, or threads of one (see ``producer_kind``), started
    anew when they die. They end with this process, however it ends, and the pool's files with them.

    Args:
        name: of the pool.
        loader: gives the chunks of a source; it is sent to the workers by pickle (what belongs to
            the main program by cloudpickle).
        source_size: how many sources there are; None: ``len(loader)``.
        slot_count: chunks to keep in shared memory.
        chunk_size: largest chunk, in bytes; None: what the loader's ``chunk_size`` says.
        num_producers: workers; not more than there are slots.
        sleep_seconds: pause after a source that gave nothing. While nobody reads, the pool
            replaces one chunk every ten pauses.
        producer_join_timeout: seconds that workers may take to end before they are killed.
        dtype: of the chunks; None: what the loader's ``chunk_dtype`` says, else float32.
        generation: token of this reign; None draws one.
        lock_dir: directory of the coordination files; None takes ``$SHAREDVECTOR_LOCK_DIR``, else
            /dev/shm.
        log_level: of the producers' log on standard error: a number, or a name such as "INFO".
        spare_buffers: buffers beyond the slots; None: one per worker (as many as the loader's
            ``buffers_at_once``, if it has that), at most an eighth of the slots.
        producer_kind: "process", "thread", or "auto", as in `ProducerSpec`.
        processes: attached processes whose memory is reserved with the pool, as in `ProducerSpec`.

    Raises:
        ValueError: a value that no pool can have.
        TypeError: ``loader`` is none, a count is no integer, a time no number, or neither
            ``chunk_size`` nor the loader says how large chunks are.
    """

    def __init__(
        self,
        name: str,
        loader: Loader,
        source_size: int | None,
        slot_count: int,
        chunk_size: int | None = None,
        num_producers: int = 4,
        sleep_seconds: float = 0.01,
        producer_join_timeout: float = 5.0,
        dtype: str | None = None,
        generation: str | None = None,
        lock_dir: Path | str | None = None,
        log_level: int | str = logging.INFO,
        spare_buffers: int | None = None,
        producer_kind: ProducerKind = "auto",
        processes: int | None = None,
    ) -> None:
        self._paths = PoolPaths.for_name(name, lock_dir)
        spec = ProducerSpec(
            loader=loader,
            source_size=source_size,
            chunk_size=chunk_size,
            dtype=dtype,
            num_producers=num_producers,
            sleep_seconds=sleep_seconds,
            producer_join_timeout=producer_join_timeout,
            spare_buffers=spare_buffers,
            producer_kind=producer_kind,
            processes=processes,
        )
        self._config = PoolConfig.of(spec, slot_count, level_number("log_level", log_level))
        self._wanted_generation = generation
        self._generation = generation if generation is not None else uuid.uuid4().hex
        self._reign: Reign | None = None
        self._mutex = threading.Lock()
        self._turn = Turn()
        self._stop_asked = False  # no Event: a handler of a signal may call stop()

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._paths.name

    @property
    def config(self) -> PoolConfig:
        """What the pool is made of and how it is fed, with what the loader has told."""
        return self._config

    @property
    def generation(self) -> str:
        """Token of this reign; without one given, each start after a stop has another."""
        return self._generation

    @property
    def started(self) -> bool:
        """Whether the pool is filled and this object's."""
        return self._reign is not None and self._reign.ready and self._reign.held

    def start(self) -> None:
        """Make the pool and return when every slot is filled. Does nothing when started.

        Whatever goes wrong, nothing is left behind. It waits for the loader as long as that takes:
        `stop` from another thread ends it.

        Raises:
            PoolBusyError: another owner is alive, be it with this lock directory or another.
            PoolSpawnError: the segment cannot be made, or nothing can be loaded; the message has
                the loader's own error.
        """
        self._stop_asked = False
        aside(lambda: self._start(lambda: self._stop_asked))

    def _start(self, should_stop: Callable[[], bool]) -> None:
        with self._mutex:
            if self.started:
                return
            if self._reign is not None:
                self._close()  # its name may be lost, and its producer run
                if self._wanted_generation is None:
                    self._generation = uuid.uuid4().hex
            lock = OwnerLock.try_acquire(self._paths, generation=self._generation)
            if lock is None:
                pid = probe_owner(self._paths)[2]
                raise PoolBusyError(
                    f"pool {self.name!r} has an owner already (process {pid}); attach to it, end "
                    "that process, or choose another name"
                )
            self._reign = Reign(self._paths, lock, self._config)
            try:
                self._reign.start(should_stop=should_stop)
                check_wanted()
            except BaseException:
                self._close()  # when `stop` in another thread has ended it, the pool may be there
                raise

    def stop(self) -> None:
        """End the producers and remove the pool. Those attached keep their data.

        Harmless when not started, when repeated, and in a forked child. While another thread stops
        it, this waits until the pool is gone, at most ``producer_join_timeout`` and some seconds.
        """
        self._stop_asked = True
        here_or_aside(self._close)

    def _close(self) -> None:
        with self._turn.take(self._config.producer_join_timeout + CLOSING_LIMIT):
            if self._reign is not None:
                self._reign.close()

    def run(self) -> None:
        """Start, stay until SIGTERM or SIGINT (or `stop` from another thread), and stop.

        Signal handlers are set only in the main thread and only for this call.

        Raises:
            PoolStalledError: the producer failed again and again and was given up.
            PoolBusyError, PoolSpawnError: as `start`.
        """
        self._stop_asked = False
        with _signals() as asked:
            try:
                try:
                    aside(lambda: self._start(lambda: bool(asked) or self._stop_asked))
                except BootstrapInterrupted:
                    return
                reign = self._reign
                while reign is not None and not asked:
                    if reign.failure is not None:
                        raise PoolStalledError(
                            f"pool {self.name!r} is not refreshed any more: {reign.failure}; "
                            "start it again"
                        )
                    if not reign.held:
                        return
                    time.sleep(_LOOK_EVERY)
            finally:
                self.stop()

    def stats(self) -> PoolStats:
        """Return the pool's statistics.

        Raises:
            RuntimeError: the service is not started.
        """
        reign = self._reign
        if reign is None or not self.started:
            raise RuntimeError("the service is not started: call start() before stats()")
        return collect_stats(reign.vector)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, exc_type: object, exc: object, tb: object) -> None:
        """Stop."""
        self.stop()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT in a list, in the main thread; the old handlers come back after.

    A list, as a handler must not take the lock of an event that it may have interrupted.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.signal(number, lambda got, frame: asked.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            # None: it was set by something that is not Python, and cannot be put back.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
