"""The supervisor of a pool's workers: ``python -m sharedvector._supervisor``, the owner's child.

It lives in a session of its own and never fills a slot itself. It starts the workers, starts them
again when they die, and ends with its owner. When the owner dies without a word it stops the
workers and removes the pool's files, provided that no new owner has come.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from sharedvector import _core
from sharedvector._events import EventReader, encode_event
from sharedvector._job import (
    EXIT_FATAL,
    EXIT_STALE,
    Job,
    attach_job,
    logger,
    receive,
    remove_pool_files,
    start_child,
)
from sharedvector._verdict import Verdict, status_words
from sharedvector.coordination import OwnerLock, PoolPaths
from sharedvector.vector import SharedVector

_TICK = 1.0  # seconds between two rounds when nothing happens
_RECOVER_EVERY = 2.0
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_ORPHAN_LIMIT = 5.0  # seconds that workers get when the owner is dead
_FATAL_LIMIT = 5.0  # seconds to wait for room in the owner's pipe for the last word


class Worker:
    """One place for a worker process.

    Attributes:
        process: the running one; None between two.
        useful: whether it has stored a chunk.
        last_words: what it said when it ended; empty when it said nothing.
        due: when to start the next one.
    """

    def __init__(self, worker_id: int) -> None:
        self.worker_id = worker_id
        self.process: subprocess.Popen[bytes] | None = None
        self.useful = False
        self.last_words = ""
        self.due = 0.0
        self._delay = _FIRST_DELAY

    def postpone(self) -> None:
        """Set when to start again: soon after a useful run, later and later after others."""
        self._delay = _FIRST_DELAY if self.useful else min(2 * self._delay, _LONGEST_DELAY)
        self.due = time.monotonic() + self._delay
        self.process = None
        self.useful = False
        self.last_words = ""


class Supervisor:
    """Runs the workers of one reign.

    Args:
        job: what to do.
        parcel_fd: the file with the job, for the workers.
        vector: the pool.
        owner_fd: pidfd of the owner, or -1 where the kernel has none.
        report_fd: write end of a pipe to the owner, or -1 when it does not listen.
    """

    def __init__(
        self, job: Job, parcel_fd: int, vector: SharedVector, owner_fd: int, report_fd: int
    ) -> None:
        self._job = job
        self._parcel_fd = parcel_fd
        self._vector = vector
        self._report_fd = report_fd
        self._workers = [Worker(number) for number in range(job.num_producers)]
        self._verdict = Verdict(job.source_size, job.slot_count, job.num_producers)
        self._events_read, self._events_write = os.pipe()
        self._wake_read, wake_write = os.pipe()
        for fd in (self._events_read, self._events_write, self._wake_read, wake_write):
            os.set_blocking(fd, False)
        self._events = EventReader(self._events_read)
        self._stopping = False
        self._owner_buried = False
        self._next_recover = 0.0
        self._poll = select.poll()
        self._poll.register(self._events_read, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._owner_fd = owner_fd
        if owner_fd >= 0:
            os.set_inheritable(owner_fd, False)
            self._poll.register(owner_fd, select.POLLIN)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self) -> int:
        """Work until told to stop, until the owner is gone, or until a bootstrap is hopeless."""
        fatal: str | None = None
        while fatal is None and not self._stopping:
            self._wait(self._start_due_workers())
            self._read_events()
            self._reap()
            if self._owner_gone():
                break
            self._recover()
            filled = len(self._vector)
            if filled < self._job.slot_count:
                fatal = self._verdict.fatal(filled, time.monotonic())
        if fatal is not None:
            self._tell_owner({"event": "fatal", "error": fatal})
        self._end_workers(self._job.join_timeout)
        return 0 if fatal is None else EXIT_FATAL

    def _on_term(self, number: int, frame: object) -> None:
        self._stopping = True

    # -- workers

    def _start_due_workers(self) -> float:
        """Start what is due; returns the seconds until the next is, at most a tick."""
        now = time.monotonic()
        left = _TICK
        for worker in self._workers:
            if worker.process is not None:
                continue
            if worker.due > now:
                left = min(left, worker.due - now)
                continue
            try:
                worker.process = start_child(
                    "_worker",
                    self._parcel_fd,
                    [self._events_write, worker.worker_id, os.getpid()],
                    session=False,
                    fds=(self._events_write,),
                )
            except OSError as error:
                logger.error("a producer worker could not be started: %s", error)
                words = f"it could not be started: {error}"
                self._verdict.crashed(worker.worker_id, words, len(self._vector))
                worker.postpone()
        return left

    def _reap(self) -> None:
        for worker in self._workers:
            status = worker.process.poll() if worker.process is not None else None
            if status is None:
                continue
            self._read_events()  # what it said before it ended
            self._vector.counter_add(_core.COUNTER_RESTARTS)
            if not self._stopping:
                words = status_words(status)
                if worker.last_words:
                    words = f"{words}; {worker.last_words}"
                logger.warning("producer worker %d ended (%s)", worker.worker_id, words)
                if status not in (EXIT_FATAL, EXIT_STALE):
                    self._verdict.crashed(worker.worker_id, words, len(self._vector))
                if status == EXIT_STALE:
                    self._verdict.doom("the segment was removed while the pool was being filled")
            worker.postpone()

    def _end_workers(self, limit: float) -> None:
        """End every worker: SIGTERM, and SIGKILL after ``limit`` seconds.

        The owner may die while they take their time. Then its files are removed, and the workers
        have `_ORPHAN_LIMIT` seconds left.
        """
        running = [w.process for w in self._workers if w.process is not None]
        deadline = time.monotonic() + limit
        for process in running:
            process.terminate()
        while True:
            if not self._owner_buried and self._owner_gone():
                self._bury_owner()
                deadline = min(deadline, time.monotonic() + _ORPHAN_LIMIT)
            running = [process for process in running if process.poll() is None]
            left = deadline - time.monotonic()
            if not running or left <= 0:
                break
            self._wait(min(left, _TICK))
            self._read_events()  # what is left there would wake the next wait
        for process in running:
            logger.warning("a producer worker did not end in time and is killed")
            process.kill()
            process.wait()

    def _recover(self) -> None:
        now = time.monotonic()
        if now < self._next_recover:
            return
        self._next_recover = now + _RECOVER_EVERY
        with contextlib.suppress(OSError, RuntimeError):
            self._vector.recover()

    # -- events

    def _wait(self, seconds: float) -> None:
        self._poll.poll(max(1, int(seconds * 1000)))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass

    def _read_events(self) -> None:
        for event in self._events.read():
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "stored":
            self._workers[event["worker"]].useful = True
            self._verdict.stored(event["worker"])
        elif kind == "unloadable":
            self._verdict.doom(event["error"])
        elif kind == "ended":
            self._workers[event["worker"]].last_words = event["error"]
        elif kind == "failed":
            self._verdict.failed(
                event["worker"],
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
            select.select([], [self._report_fd], [], _FATAL_LIMIT)
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
        if self._owner_fd >= 0 and select.select([self._owner_fd], [], [], 0)[0]:
            return True
        return not self._vector.owner_live()

    def _bury_owner(self) -> None:
        """Do what a dead owner could not do any more."""
        self._owner_buried = True
        if self._owner_fd >= 0:
            self._poll.unregister(self._owner_fd)  # it would wake every wait from now on
        self._vector.retire(_core.RETIRED_OWNER_DIED)
        paths = PoolPaths.for_name(self._job.name, self._job.lock_dir)
        try:
            lock = OwnerLock.try_acquire(paths, grace=1.0, generation=self._job.generation)
            if lock is not None:  # otherwise a new owner has come, and the names are its own
                remove_pool_files(lock, paths, self._vector.inode, self._vector.directory)
                lock.release()
        except (OSError, RuntimeError) as error:
            logger.warning("leftovers of pool %r could not be removed: %s", paths.name, error)


def main() -> int:
    """Supervise; arguments: file of the job, pidfd of the owner, pipe to the owner."""
    parcel_fd, owner_fd, report_fd = map(int, sys.argv[1:4])
    job = receive(parcel_fd)
    if report_fd >= 0:
        os.set_inheritable(report_fd, False)
        os.set_blocking(report_fd, False)
    vector = attach_job(job)
    if vector is None:
        return EXIT_STALE
    try:
        return Supervisor(job, parcel_fd, vector, owner_fd, report_fd).run()
    except Exception as error:
        logger.error("the supervisor of pool %r failed: %s", job.name, error)
        logger.debug("the supervisor failed:", exc_info=error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
