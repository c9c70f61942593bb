"""The supervisor of a pool's workers, the owner's child, once its first worker starts (`entry`).

It lives in a session of its own and never fills a slot itself. It starts the workers, starts them
again when they die, and ends with its owner. When the owner dies without a word it stops the
workers and removes the pool's files, provided that no new owner has come.

It looks at the pool itself (and imports NumPy for that) only when it has to: when something went
wrong, or after a second. Until then the processors belong to the workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from sharedvector._producer.events import EventReader, encode_event, wait_ready
from sharedvector._producer.failures import describe, traceback_of
from sharedvector._producer.guard import become_subreaper, end_strays
from sharedvector._producer.monitor import Verdict, status_words
from sharedvector._producer.payload import (
    EXIT_FATAL,
    EXIT_STALE,
    Job,
    attach_job,
    log_to_stderr,
    receive,
)

TYPE_CHECKING = False  # importing it takes longer than all that is here
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any

    from sharedvector._producer.view_watch import ViewWatch
    from sharedvector.vector import SharedVector

_TICK = 1.0  # seconds between two rounds when nothing happens
_HEAD_START = 0.5  # seconds that the first worker may take before the others start all the same
_RECOVER_EVERY = 2.0
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_ORPHAN_LIMIT = 5.0  # seconds that workers get when the owner is dead
_GUARD_MARGIN = 3.5  # seconds that a worker's guard gets beyond its worker
_KILL_LIMIT = 1.0  # seconds to wait for what was killed
_SAME_WORDS_EVERY = 60.0  # seconds between two lines about a worker that ends in the same way
_FATAL_LIMIT = 5.0  # seconds to wait for room in the owner's pipe for the last word


class _StaleError(Exception):
    """The segment is not this reign's any more."""


class Place:
    """One place for a worker process.

    Attributes:
        first: number of its first worker; a process with threads has several.
        pid: of the running process; 0 between two.
        useful: whether it has stored a chunk.
        last_words: what it said when it ended; empty when it said nothing.
        due: when to start the next one.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.pid = 0
        self.useful = False
        self.last_words = ""
        self.due = 0.0
        self._delay = _FIRST_DELAY
        self._told = ("", 0.0)  # how it ended when that was logged last, and when

    def ended(self) -> int | None:
        """Exit status of the process, negative for a signal; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0  # it may be another's from now on
        return os.waitstatus_to_exitcode(status)

    def is_news(self, words: str) -> bool:
        """Whether to log that it ended in this way: at once, and then every minute."""
        now = time.monotonic()
        if words == self._told[0] and now - self._told[1] < _SAME_WORDS_EVERY:
            return False
        self._told = (words, now)
        return True

    def postpone(self) -> None:
        """Set when to start again: soon after a useful run, later and later after others."""
        self._delay = _FIRST_DELAY if self.useful else min(2 * self._delay, _LONGEST_DELAY)
        self.due = time.monotonic() + self._delay
        self.useful = False
        self.last_words = ""


class Supervisor:
    """Runs the workers of one reign.

    Args:
        job: what to do.
        parcel_fd: the file with the job, for the workers.
        owner_fd: pidfd of the owner, or -1 where the kernel has none.
        report_fd: write end of a pipe to the owner, or -1 when it does not listen.
        events: the workers' pipe, both ends.
        first_pid: of the first worker; 0 when it could not be started.
        start_worker: starts a worker, see `entry.start_worker`.
    """

    def __init__(
        self,
        job: Job,
        parcel_fd: int,
        owner_fd: int,
        report_fd: int,
        events: tuple[int, int],
        first_pid: int,
        start_worker: Callable[[int, int, int, float], int],
    ) -> None:
        self._job = job
        self._parcel_fd = parcel_fd
        self._owner_fd = owner_fd
        self._report_fd = report_fd
        self._events_write = events[1]
        self._start_worker = start_worker
        self._places = [Place(n) for n in range(0, job.num_producers, job.threads)]
        self._places[0].pid = first_pid
        self._verdict = Verdict(job.source_size, job.slot_count, job.num_producers)
        self._vector: SharedVector | None = None
        self._view_watch: ViewWatch | None = None
        self._log_set_up = False
        began = time.monotonic()
        self._head_start_ends = began + _HEAD_START
        self._look_from = began + _TICK
        self._next_recover = 0.0
        self._told = False
        self._owner_buried = False
        self._wake_read, wake_write = os.pipe()
        for fd in (*events, self._wake_read, wake_write):
            os.set_blocking(fd, False)
        self._events = EventReader(events[0])
        self._poll = select.poll()
        self._poll.register(events[0], select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        if owner_fd >= 0:
            self._poll.register(owner_fd, select.POLLIN)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})

    def run(self) -> int:
        """Work until told to stop, until the owner is gone, or until a bootstrap is hopeless."""
        become_subreaper()  # of what is left when a worker and its guard are killed
        status = 0
        try:
            fatal = self._work()
        except _StaleError:
            status = EXIT_STALE
        else:
            if fatal is not None:
                self._tell_owner({"event": "fatal", "error": fatal})
                status = EXIT_FATAL
        self._end_workers(self._job.join_timeout)
        return status

    def _work(self) -> str | None:
        """Supervise; returns why the pool cannot be filled, None at any other end."""
        while not self._told_to_stop():
            self._read_events()
            self._reap()
            if self._owner_gone():
                break
            if self._vector is not None or time.monotonic() >= self._look_from:
                self._recover()
                self._watch_views()
                filled = len(self._pool())
                if filled < self._job.slot_count:
                    fatal = self._verdict.fatal(filled, time.monotonic())
                    if fatal is not None:
                        return fatal
            self._wait(self._start_due_workers())
        return None

    def _on_term(self, number: int, frame: object) -> None:
        self._told = True

    def _told_to_stop(self) -> bool:
        """Whether the owner has told it to stop; before that it has closed the pool.

        SIGTERM may come from others, to this process alone or to everything that runs here. Then
        the pool goes on until its owner closes it, or dies: of that signal as well, maybe later.
        """
        if self._told and not self._closed():
            self._told = False
        return self._told

    def _closed(self) -> bool:
        if not os.path.exists(os.path.join(self._job.directory, self._job.name)):
            return True  # and without having to attach
        from sharedvector import _core

        return self._pool().retired_get() == _core.RETIRED_CLOSED

    def _pool(self) -> SharedVector:
        """The pool, attached at the first call."""
        if self._vector is None:
            try:
                self._vector = attach_job(self._job)
            except (OSError, RuntimeError) as error:
                text = f"the supervisor cannot attach to the pool: {describe(error)}"
                self._tell_owner({"event": "fatal", "error": text})
                raise
            if self._vector is None:
                raise _StaleError
        return self._vector

    def log(self) -> logging.Logger:
        """The log, set up at the first call."""
        import logging

        if not self._log_set_up:
            log_to_stderr(self._job.log_level)
            self._log_set_up = True
        return logging.getLogger("sharedvector")

    # -- workers

    def _start_due_workers(self) -> float:
        """Start what is due; returns the seconds until the next is, at most a tick."""
        now = time.monotonic()
        left = _TICK if self._vector is not None else max(0.0, min(_TICK, self._look_from - now))
        for place in self._places:
            if place.pid != 0:
                continue
            # Together they would all be late; the pool is filled by whoever is there first.
            due = place.due if place is self._places[0] else max(place.due, self._head_start_ends)
            if due > now:
                left = min(left, due - now)
                continue
            try:
                place.pid = self._start_worker(
                    place.first, self._parcel_fd, self._events_write, self._job.join_timeout
                )
            except OSError as error:
                self.log().error("a producer worker could not be started: %s", error)
                words = f"it could not be started: {error}"
                self._verdict.crashed(place.first, words, len(self._pool()))
                place.postpone()
        return left

    def _reap(self) -> None:
        for place in self._places:
            status = place.ended() if place.pid != 0 else None
            if status is None:
                continue
            self._read_events()  # what it said before it ended
            self._end_strays()
            self._count_restart()
            words = status_words(status)
            if place.last_words:
                words = f"{words}; {place.last_words}"
            if place.is_news(words):
                # Status 0 is that of one that was told to end, by somebody else.
                level = "info" if status == 0 else "warning"
                getattr(self.log(), level)("producer worker %d ended (%s)", place.first, words)
            if status not in (EXIT_FATAL, EXIT_STALE):
                self._verdict.crashed(place.first, words, len(self._pool()))
            if status == EXIT_STALE:
                self._verdict.doom("the segment was removed while the pool was being filled")
            place.postpone()

    def _end_strays(self) -> None:
        """End what a killed guard could not end any more."""
        left = end_strays([place.pid for place in self._places])
        if left:
            self.log().warning("processes %s, which a loader has started, do not end", left)

    def _count_restart(self) -> None:
        from sharedvector import _core

        self._pool().counter_add(_core.COUNTER_RESTARTS)

    def _end_workers(self, limit: float) -> None:
        """Tell every guard to end its worker within ``limit`` seconds, and kill it if it does not.

        The owner may die while they take their time. Then its files are removed, and the workers
        have `_ORPHAN_LIMIT` seconds left.
        """
        running = [place for place in self._places if place.pid != 0]
        deadline = time.monotonic() + limit + _GUARD_MARGIN
        for place in running:
            os.kill(place.pid, signal.SIGTERM)
        while True:
            if not self._owner_buried and self._owner_gone():
                self._bury_owner()
                deadline = min(deadline, time.monotonic() + _ORPHAN_LIMIT)
            running = [place for place in running if not self._has_ended(place)]
            left = deadline - time.monotonic()
            if not running or left <= 0:
                break
            self._wait(min(left, _TICK))
            self._read_events()  # what is left there would wake the next wait
        for place in running:
            self.log().warning("a producer worker did not end in time and is killed")
            os.kill(place.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_LIMIT
        while any(place.ended() is None for place in running if place.pid != 0):
            if time.monotonic() >= deadline:
                break
            self._wait(0.1)
        self._end_strays()

    def _has_ended(self, place: Place) -> bool:
        status = place.ended()
        if status == -signal.SIGKILL:
            self.log().warning("a producer worker did not end in time and was killed")
        return status is not None

    def _recover(self) -> None:
        now = time.monotonic()
        if now < self._next_recover:
            return
        self._next_recover = now + _RECOVER_EVERY
        with contextlib.suppress(OSError, RuntimeError):
            self._pool().recover()

    def _watch_views(self) -> None:
        if self._view_watch is None:
            from sharedvector._producer.view_watch import ViewWatch

            self._view_watch = ViewWatch(self._pool(), self.log)
        self._view_watch.look()

    # -- events

    def _wait(self, seconds: float) -> None:
        self._poll.poll(max(1, int(seconds * 1000)))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass

    def _read_events(self) -> None:
        for event in self._events.read():
            with contextlib.suppress(KeyError, TypeError, IndexError):  # not from a worker of ours
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        worker = event["worker"]
        place = self._places[worker // self._job.threads]
        if kind == "up":
            self._head_start_ends = 0.0
            return
        if kind == "stored":
            place.useful = True
            self._verdict.stored(place.first)
            return
        if kind == "filled":
            self._tell_owner(event)  # who looks by itself too, but later
            return
        self._look_from = 0.0
        if kind == "unloadable":
            self._verdict.doom(event["error"])
        elif kind == "ended":
            place.last_words = event["error"]
        elif kind == "failed":
            self._verdict.failed(
                worker,
                event["source"],
                event["error"],
                event["empty"],
                time.monotonic(),
                event["refused"],
            )
            if not event["empty"]:
                self._tell_owner(event)

    def _tell_owner(self, event: dict[str, Any]) -> None:
        if self._report_fd < 0:
            return
        if event["event"] == "fatal":  # must not be lost to a pipe that is full for a moment
            wait_ready(self._report_fd, _FATAL_LIMIT, to_write=True)
        try:
            os.write(self._report_fd, encode_event(event))
        except BlockingIOError:
            return
        except OSError:  # the owner has stopped listening: the pool is filled
            os.close(self._report_fd)
            self._report_fd = -1

    # -- the owner

    def _owner_gone(self) -> bool:
        """Dead, or living on as another program (exec), which gives the lock up just the same."""
        if self._owner_fd >= 0 and wait_ready(self._owner_fd, 0):
            return True
        # Without a pidfd there is nothing else to look at.
        try:
            vector = self._vector if self._owner_fd >= 0 else self._pool()
        except _StaleError:
            return True  # or it is about to end its pool, which no longer needs us
        return vector is not None and not vector.owner_live()

    def _bury_owner(self) -> None:
        """Do what a dead owner could not do any more."""
        from sharedvector import _core
        from sharedvector._coordination import OwnerLock, PoolPaths, read_marker

        self._owner_buried = True
        if self._owner_fd >= 0:
            self._poll.unregister(self._owner_fd)  # it would wake every wait from now on
        paths = PoolPaths.for_name(self._job.name, self._job.lock_dir)
        vector = None
        try:
            # It may have died between the removal of the segment and that of the other files.
            with contextlib.suppress(_StaleError):
                vector = self._pool()
                vector.retire(_core.RETIRED_OWNER_DIED)
            lock = OwnerLock.try_acquire(paths, grace=1.0, generation=self._job.generation)
            if lock is not None:  # otherwise a new owner has come, and the names are its own
                with contextlib.suppress(_core.PoolBusyError):
                    if read_marker(paths) == lock.generation:
                        lock.clear_ready()
                if vector is not None:
                    with contextlib.suppress(FileNotFoundError):  # the name leads elsewhere
                        vector.remove_own()
                lock.release()
        except (OSError, RuntimeError) as error:
            self.log().warning("leftovers of pool %r could not be removed: %s", paths.name, error)


def supervise(
    parcel_fd: int,
    owner_fd: int,
    report_fd: int,
    events: tuple[int, int],
    first_pid: int,
    start_worker: Callable[[int, int, int, float], int],
) -> int:
    """Supervise until the end; returns the exit status. Arguments as `Supervisor`'s."""
    job = receive(parcel_fd)
    if report_fd >= 0:
        os.set_blocking(report_fd, False)
    supervisor = Supervisor(job, parcel_fd, owner_fd, report_fd, events, first_pid, start_worker)
    try:
        return supervisor.run()
    except Exception as error:
        text = f"the supervisor of pool {job.name!r} failed: {describe(error)}"
        supervisor.log().error("%s\n%s", text, traceback_of(error))
        return 1
