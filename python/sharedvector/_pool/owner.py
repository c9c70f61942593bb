"""The owner's side of a pool: make it, have it filled, keep its supervisor alive, take it down."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

from sharedvector import _core
from sharedvector._common import check_wanted, in_caller, nap
from sharedvector._coordination import (
    OwnerLock,
    PoolBusyError,
    PoolPaths,
    PoolSpawnError,
)
from sharedvector._pool.config import PoolConfig
from sharedvector._pool.files import PoolFiles
from sharedvector._pool.preflight import log_leftovers
from sharedvector._producer import (
    EventReader,
    Job,
    open_parcel,
    pack_loader,
    seed_of,
    start_supervisor,
    status_words,
    wait_ready,
)
from sharedvector.lifecycle import LifecycleGuard
from sharedvector.monitoring import Progress
from sharedvector.stats import stats_capacity_for
from sharedvector.vector import FormatError, SharedVector

logger = logging.getLogger("sharedvector")

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_GIVE_UP_AFTER = 5  # supervisors in a row that loaded nothing
_ROOM_LIMIT = 10.0  # seconds to wait until a dead pool's processes give their memory back
_DYING_LIMIT = 2.0  # seconds that a dying owner may go on looking alive without its lock
_KILL_MARGIN = 8.0  # seconds that a supervisor gets beyond what its workers get
_LOOK_EVERY = 0.02
_LOOK_AT_FILES_EVERY = 1.0
_TRY_EVERY = 0.2


class BootstrapInterrupted(PoolSpawnError):
    """The reign was ended from outside while the pool was being filled."""


class Reign:
    """One owner's pool, from the segment's making to its removal.

    Made by the process that holds the lock; a forked child that inherits the object can do
    nothing with it.

    Args:
        paths: of the pool.
        lock: held. The reign releases it.
        config: what to make.

    Attributes:
        ready: whether the pool has been filled.
        failure: why the producer was given up; None while it is not.
    """

    def __init__(self, paths: PoolPaths, lock: OwnerLock, config: PoolConfig) -> None:
        self.ready = False
        self.failure: str | None = None
        self._paths = paths
        self._files = PoolFiles(paths, lock)
        self._config = config
        self._pid = os.getpid()
        self._guard = LifecycleGuard(self._take_down)
        self._closing = threading.Event()
        # Held while a supervisor starts. Reentrant: a signal handler of the user may call close().
        self._mutex = threading.RLock()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._files_watcher: threading.Thread | None = None
        self._job: Job | None = None
        self._loader = b""
        self._vector: SharedVector | None = None
        self._last_error: str | None = None

    @property
    def held(self) -> bool:
        """Whether this process is the pool's owner through this object."""
        return self._pid == os.getpid() and not self._guard.cleaned and self._files.lock.held

    @property
    def generation(self) -> str:
        """Token of this reign."""
        return self._files.lock.generation

    @property
    def vector(self) -> SharedVector:
        """The segment, between `start` and `close`; RuntimeError before and after."""
        vector = self._vector
        if vector is None:
            raise RuntimeError(f"pool {self._paths.name!r} is not started")
        return vector

    def start(
        self, deadline: float | None = None, should_stop: Callable[[], bool] | None = None
    ) -> None:
        """Make the segment, have it filled, and say that it is ready.

        On failure everything is taken down again and the lock released.

        Args:
            deadline: latest time to be ready, on ``time.monotonic()``'s clock; None: no limit.
            should_stop: asked while waiting.

        Raises:
            PoolBusyError: the pool has a living owner that uses another lock directory.
            PoolSpawnError: the segment cannot be made (no space, ...), the loader cannot be sent,
                or nothing can be loaded.
            TimeoutError: not ready by the deadline.
            BootstrapInterrupted: ``should_stop`` returned True, or `close` was called.
        """
        self._guard.arm()
        try:
            self._loader = in_caller(lambda: pack_loader(self._config.loader))
            log_leftovers(self._paths)
            self._make_segment(deadline)
            self._job = self._make_job()
            with _refusals_in_words(self._paths.name):
                self._bootstrap(deadline, should_stop)
            try:
                self._files.lock.write_ready()
            except OSError as error:  # its page is the last that a pool needs
                raise PoolSpawnError(
                    f"pool {self._paths.name!r} cannot be marked as ready: {error}"
                ) from error
            self.ready = True
            self._watcher = _start_thread(self._watch, "supervisor-watch")
            self._files_watcher = _start_thread(self._watch_files, "file-watch")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the pool's files, stop the producer, release the lock. Harmless when repeated.

        Those attached keep their data. Takes at most ``join_timeout`` and some seconds. When
        it is interrupted, no step is left out but waiting for the producer's end, and the next call
        (at the latest that at exit) waits again. In a forked child it does nothing.
        """
        self._guard.trigger()

    def _take_down(self) -> None:
        self._closing.set()
        # The files go before the producer does: nothing that happens to this process while the
        # workers take their time can leave them behind.
        try:
            _run_all(
                self._end_files_watch,  # which would make them again
                self._clear_marker,  # nobody should attach any more
                self._remove_segment,
                self._end_supervisor,
                self._files.lock.release,
            )
        except Exception as error:
            self._vector = None
            logger.error("pool %r could not be taken down whole: %s", self._paths.name, error)
            raise
        # Not before: while this process is attached, the supervisor sees that its owner lives. And
        # not kept longer: whoever keeps the handle should not keep the memory.
        self._vector = None

    def _end_files_watch(self) -> None:
        if self._files_watcher is not None:
            self._files_watcher.join(_KILL_MARGIN)

    def _clear_marker(self) -> None:
        self._files.take_marker_back()

    def _watch_files(self) -> None:
        """See to it that the pool's name leads to it, until it does not or the reign ends."""
        vector = self.vector
        while not self._closing.wait(_LOOK_AT_FILES_EVERY):
            try:
                self._files.look(vector)
            except (OSError, RuntimeError) as error:
                logger.warning("files of pool %r are missing: %s", self._paths.name, error)
            if self._files.lost is not None:
                self.failure = self._files.lost
                return

    def _remove_segment(self) -> None:
        """Say that the segment is not refreshed any more, and remove its name."""
        vector = self._vector
        if vector is not None:
            vector.retire(_core.RETIRED_CLOSED)
            with contextlib.suppress(FileNotFoundError):  # the name leads elsewhere
                vector.remove_own()

    # -- the segment

    def _make_segment(self, deadline: float | None) -> None:
        """Make the segment in place of any leftover."""
        began = time.monotonic()
        leftover = self._paths.segment.exists()
        while True:
            try:
                self._check_free()
                self._files.lock.clear_ready()  # first: nobody attaches to what goes
                self._vector = SharedVector(
                    self._paths.name,
                    chunk_size=self._config.chunk_size,
                    dtype=self._config.dtype,
                    stats_capacity=stats_capacity_for(self._config.slot_count),
                    slot_count=self._config.slot_count,
                    spare_buffers=self._config.spares,
                    processes=self._config.attached,
                    replace=True,
                    owned=True,
                    generation=self._files.lock.generation,
                )
                break
            except PoolBusyError:
                # A process that is being killed gives its lock and its segment up one by one.
                if not _within(began + _DYING_LIMIT, deadline):
                    raise
            except OSError as error:
                # The dead owner's workers may still hold the memory that we need.
                wait = error.errno == errno.ENOSPC and leftover
                if not wait or not _within(began + _ROOM_LIMIT, deadline):
                    raise PoolSpawnError(
                        f"pool {self._paths.name!r} cannot be made: {error}"
                    ) from error
            nap(_TRY_EVERY)

    def _check_free(self) -> None:
        """PoolBusyError while the segment's owner lives: its marker stays too.

        It has another lock directory, or somebody removed its lock file.
        """
        with contextlib.suppress(FileNotFoundError, FormatError):
            found = _core.look(self._paths.name)
            if found["owner_live"]:
                raise PoolBusyError(
                    f"pool {self._paths.name!r} has a living owner, process {found['owner_pid']} "
                    f"({found['owner_command']}); end it; or, if it uses another lock directory "
                    "(lock_dir, SHAREDVECTOR_LOCK_DIR), use that one"
                )

    def _make_job(self) -> Job:
        return Job(
            name=self._paths.name,
            directory=self.vector.directory,
            lock_dir=str(self._paths.lock_dir),
            generation=self._files.lock.generation,
            seed=seed_of(self._files.lock.generation),
            **self._config.for_workers(),
        )

    # -- the bootstrap

    def _bootstrap(self, deadline: float | None, should_stop: Callable[[], bool] | None) -> None:
        """Start the supervisor and wait until every slot is filled."""
        name, slot_count, vector = self._paths.name, self._config.slot_count, self.vector
        progress = Progress(name, slot_count, self._config.log_level)
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        events = EventReader(read_end)
        starts = _Starts(vector)
        try:
            self._start_supervisor(write_end)
            while (filled := len(vector)) < slot_count:
                wait_ready(read_end, _LOOK_EVERY)
                self._read_events(events)
                status = self._supervisor.poll() if self._supervisor is not None else None
                if status is not None:
                    self._read_events(events)
                    if not starts.again(self._closing) and not self._closing.is_set():
                        raise self._spawn_error(
                            f"its supervisor ended {_GIVE_UP_AFTER} times ({status_words(status)})"
                            f"{self._cause()}"
                        )
                    self._start_supervisor(write_end)
                if self._closing.is_set() or (should_stop is not None and should_stop()):
                    raise BootstrapInterrupted(f"pool {name!r} was stopped while being filled")
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"pool {name!r} is not ready in time: "
                        f"{filled}/{slot_count} slots filled{self._cause()}"
                    )
                check_wanted()
                progress.update(filled)
        finally:
            progress.close(len(vector))
            os.close(read_end)
            os.close(write_end)

    def _read_events(self, events: EventReader) -> None:
        for event in events.read():
            if event["event"] == "fatal":
                raise self._spawn_error(event["error"])
            if event["event"] == "failed":
                self._last_error = f"source {event['source']}: {event['error']}"

    def _cause(self) -> str:
        return f"; last error: {self._last_error}" if self._last_error else ""

    def _spawn_error(self, reason: str) -> PoolSpawnError:
        return PoolSpawnError(f"pool {self._paths.name!r} could not be filled: {reason}")

    # -- the supervisor

    def _start_supervisor(self, write_end: int | None = None) -> None:
        """Start a supervisor, unless the reign is ending."""
        assert self._job is not None
        with self._mutex, contextlib.ExitStack() as stack:
            if self._closing.is_set():
                return
            parcel = stack.enter_context(open_parcel(self._job, self._loader))
            owner_fd = _own_pidfd()
            if owner_fd >= 0:
                stack.callback(os.close, owner_fd)
            pipe = -1 if write_end is None else write_end
            limit = self._config.producer_join_timeout
            self._supervisor = start_supervisor(parcel.fileno(), owner_fd, pipe, limit)

    def _watch(self) -> None:
        """Start the supervisor again whenever it ends before the reign does."""
        vector = self.vector
        starts = _Starts(vector)
        while self._supervisor is not None:
            status = self._supervisor.wait()
            if self._closing.is_set():
                return
            logger.warning(
                "the supervisor of pool %r ended (%s)", self._paths.name, status_words(status)
            )
            # Without its name nobody can attach to the segment, a further supervisor either.
            if self._files.lost is not None or not starts.again(self._closing):
                break
            try:
                self._start_supervisor()
            except (OSError, PoolSpawnError) as error:
                logger.error("the supervisor could not be started: %s", error)
        if not self._closing.is_set():
            in_vain = f"its supervisor ended {_GIVE_UP_AFTER} times without loading anything"
            self.failure = self._files.lost or in_vain
            logger.error("pool %r is not refreshed any more: %s", self._paths.name, self.failure)
            vector.retire(_core.RETIRED_PRODUCER)

    def _end_supervisor(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long; the workers' guards then end the rest."""
        # A start that is under way comes to its end, unless the system never lets it.
        taken = self._mutex.acquire(timeout=self._config.producer_join_timeout + _KILL_MARGIN)
        try:
            process = self._supervisor
        finally:
            if taken:
                self._mutex.release()
        if process is None:
            return
        process.terminate()
        if self._ended(process, self._config.producer_join_timeout + _KILL_MARGIN):
            return
        logger.warning("the supervisor of pool %r does not end; killed", self._paths.name)
        process.kill()
        self._ended(process, _KILL_MARGIN)
        self._end_session(
            process.pid, min(self._config.producer_join_timeout, _KILL_MARGIN) + _KILL_MARGIN
        )

    @staticmethod
    def _end_session(leader: int, limit: float) -> None:
        """Wait until nothing is left of a killed supervisor's process group; then kill that."""
        deadline = time.monotonic() + limit
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(leader, 0)
                time.sleep(_LOOK_EVERY)
            os.killpg(leader, signal.SIGKILL)

    def _ended(self, process: subprocess.Popen[bytes], limit: float) -> bool:
        """Whether a supervisor ends within ``limit`` seconds; the watcher waits for it if alive."""
        watcher = self._watcher
        if watcher is not None and watcher.is_alive() and watcher is not threading.current_thread():
            watcher.join(limit)
            return not watcher.is_alive()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        return True


def _run_all(step: Callable[[], None], *others: Callable[[], None]) -> None:
    """Call every step in turn, whatever the ones before it raise."""
    try:
        step()
    finally:
        if others:
            _run_all(*others)


@contextlib.contextmanager
def _refusals_in_words(name: str) -> Iterator[None]:
    """Turn the system's refusals (too many files, processes, ...) into PoolSpawnError."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise PoolSpawnError(f"pool {name!r} could not be filled: {error}") from error


def _start_thread(call: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=call, name=f"sharedvector-{name}", daemon=True)
    thread.start()
    return thread


def _within(limit: float, deadline: float | None) -> bool:
    """Whether there is time left for another try."""
    return time.monotonic() < (limit if deadline is None else min(limit, deadline))


class _Starts:
    """Counts starts in vain and waits before the next one: longer each time."""

    def __init__(self, vector: SharedVector) -> None:
        self._vector = vector
        self._loads = self._count_loads()
        self._vain = 0

    def again(self, closing: threading.Event) -> bool:
        """Wait until the next start is due; False when there should be none."""
        self._vector.counter_add(_core.COUNTER_RESTARTS)
        loads = self._count_loads()
        self._vain = 0 if loads > self._loads else self._vain + 1
        self._loads = loads
        if self._vain >= _GIVE_UP_AFTER:
            return False
        delay = min(_FIRST_DELAY * 2.0**self._vain, _LONGEST_DELAY)
        return not closing.wait(delay)

    def _count_loads(self) -> int:
        return self._vector.counter_add(_core.COUNTER_LOADS, 0)


def _own_pidfd() -> int:
    """A pidfd of this process, which tells its child of our death; -1 where there is none."""
    try:
        return os.pidfd_open(os.getpid())
    except (OSError, AttributeError):
        return -1
