"""One process of producer workers, the child of its guard (`guard`).

Mostly it has one worker, in its main thread; or one in each of several threads, with a loader of
its own. It dies with its guard, ignores SIGINT, and ends quietly on SIGTERM: it closes its loaders,
runs the exit functions (``atexit``), and does not wait for either longer than it may.

SIGTERM raises `Stopped` wherever the main thread is, in the loader too, which need not let it
through: whatever catches everything swallows it, and ``__del__`` and callbacks have nobody to give
it to. So it also sets a flag that each producer looks at between two steps; threads have only that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any

from sharedvector import _core
from sharedvector._producer.events import encode_event
from sharedvector._producer.failures import describe, traceback_of
from sharedvector._producer.payload import (
    EXIT_FATAL,
    EXIT_STALE,
    REMEDY,
    Job,
    attach_job,
    log_to_stderr,
    make_loader,
    receive,
)
from sharedvector._producer.producer import Producer, number_loader, optional
from sharedvector._producer.writer import Stopped
from sharedvector.lifecycle import install_parent_death_signal
from sharedvector.vector import SharedVector

logger = logging.getLogger("sharedvector")

_EXIT_FAILED = 1
# Of the time to end: what the threads get, then what closing and exit functions get at least.
_THREADS_SHARE = 0.7
_EXIT_SHARE = 0.15


class _Stop:
    """Whether it is time to end."""

    def __init__(self) -> None:
        self._asked = False

    def asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        self._asked = True

    def on_signal(self, number: int, frame: types.FrameType | None) -> None:
        if self._asked:
            return  # a whole job was told to end: by its manager, by the guard, by the supervisor
        self._asked = True
        _say_no_more()
        raise Stopped


class _Exit:
    """The end of the process, with the status of its work.

    The interpreter's own end would mourn interrupted tasks of libraries, and take modules apart
    under their threads. Nothing needs that here: the kernel drops the row's lock with the process.
    So the last exit function ends it. The first that is registered is the last to run.

    Attributes:
        status: to end with.
    """

    def __init__(self) -> None:
        self.status = 0
        self._timer: threading.Timer | None = None
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._disarm)  # a child of the loader ends as it likes

    def within(self, seconds: float) -> None:
        """End the process after so many seconds, whatever it still does. The first call counts."""
        if self._timer is None:
            self._timer = threading.Timer(seconds, lambda: os._exit(self.status))
            self._timer.daemon = True
            self._timer.start()

    def _leave(self) -> None:
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(self.status)

    def _disarm(self) -> None:
        atexit.unregister(self._leave)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Reporter:
    """Sends events to the supervisor until the pool is filled; never waits for it.

    Args:
        fd: write end of the pipe.
        worker_id: goes into each event.
        vector: the pool.
        slot_count: slots to fill.
    """

    def __init__(self, fd: int, worker_id: int, vector: SharedVector, slot_count: int) -> None:
        self._fd = fd
        self._worker_id = worker_id
        self._vector = vector
        self._slot_count = slot_count
        self._told_stored = False
        self._told_filled = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Send one event, unless nobody needs it any more."""
        if self._told_filled and self._told_stored:
            return
        filled = len(self._vector) >= self._slot_count
        if event["event"] == "stored":
            # One is enough to know that this worker gets somewhere.
            if not self._told_stored:
                self._told_stored = True
                self.send(event)
            if filled:
                self._told_filled = True
                self.send({"event": "filled"})
        elif not filled:
            self.send(event)

    def send(self, event: dict[str, Any]) -> None:
        """Send one event as a line of JSON; dropped when the pipe is full or closed."""
        with contextlib.suppress(OSError):
            os.write(self._fd, encode_event({**event, "worker": self._worker_id}))


class Crew:
    """The workers of one process.

    Args:
        job: what to do.
        parcel_fd: file of the job, with the loader.
        events_fd: write end of the pipe to the supervisor.
        vector: the pool.
        stop: whether it is time to end.
        leaving: the end of the process.
    """

    def __init__(
        self,
        job: Job,
        parcel_fd: int,
        events_fd: int,
        vector: SharedVector,
        stop: _Stop,
        leaving: _Exit,
    ) -> None:
        self._job = job
        self._parcel_fd = parcel_fd
        self._events_fd = events_fd
        self._vector = vector
        self._stop = stop
        self._leaving = leaving
        self._status = 0
        self._failed = threading.Event()

    def work(self, worker_id: int) -> int:
        """Be one worker until told to stop; returns the exit status of the process."""
        job = self._job
        report = Reporter(self._events_fd, worker_id, self._vector, job.slot_count)
        report.send({"event": "up"})
        try:
            loader: Any = make_loader(self._parcel_fd)
        except (Exception, SystemExit) as error:
            if self._stop.asked():
                return 0
            text = f"the loader cannot be made in the producer process: {describe(error)}; {REMEDY}"
            logger.error("%s\n%s", text, traceback_of(error))
            report.send({"event": "unloadable", "error": text})
            return EXIT_FATAL
        number_loader(loader, worker_id)
        producer = Producer(
            self._vector,
            loader,
            job.source_size,
            job.seed,
            self._stop.asked,
            sleep_seconds=job.sleep_seconds,
            workers=job.num_producers,
            report=report,
        )
        try:
            producer.run()
        except BaseException as error:
            if self._stop.asked():
                return 0
            # What is no Exception is the loader's: KeyboardInterrupt too, as SIGINT is ignored.
            who = (
                "a producer worker failed"
                if isinstance(error, Exception)
                else "the loader ended it"
            )
            text = f"{who}: {describe(error)}"
            logger.warning("producer worker %d: %s\n%s", worker_id, text, traceback_of(error))
            report.send({"event": "ended", "error": text})
            return _EXIT_FAILED
        finally:
            self._leaving.within((_THREADS_SHARE + _EXIT_SHARE) * job.join_timeout)
            close_loader(loader)
        return 0

    def work_in_threads(self) -> int:
        """Be all workers until told to stop, or until one fails: then the others end as well, and
        the supervisor starts all of them again. Returns the exit status of the process.
        """
        threads = [
            threading.Thread(target=self._thread, args=(number,), name=f"producer-{number}")
            for number in range(self._job.threads)
        ]
        for thread in threads:
            thread.daemon = True  # whoever does not end in time must not keep the process
            thread.start()
        try:
            while not self._failed.wait(1.0):
                pass  # until SIGTERM raises Stopped
        finally:
            deadline = time.monotonic() + _THREADS_SHARE * self._job.join_timeout
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        return self._status

    def _thread(self, worker_id: int) -> None:
        status = self.work(worker_id)
        if not self._stop.asked():
            logger.warning(
                "producer worker %d ends its process, all %d workers of which start again",
                worker_id,
                self._job.threads,
            )
            self._status = status
            self._stop.ask()
            self._failed.set()


def work(parcel_fd: int, events_fd: int, first: int, guard: int, limit: float) -> int:
    """Run the workers of one process; returns the exit status.

    Args:
        parcel_fd, events_fd, first, limit: see `entry.start_worker`.
        guard: pid of the parent.
    """
    leaving = _Exit()  # before anything is imported that registers exit functions
    install_parent_death_signal()
    if os.getppid() != guard:
        return 0  # it died before we could ask to be told
    stop = _Stop()
    with contextlib.suppress(Stopped):
        signal.signal(signal.SIGTERM, stop.on_signal)
        for fd in (parcel_fd, events_fd):
            os.set_inheritable(fd, False)
        leaving.status = _work(parcel_fd, events_fd, first, stop, leaving)
    leaving.within(_EXIT_SHARE * limit)
    return leaving.status


def _work(parcel_fd: int, events_fd: int, first: int, stop: _Stop, leaving: _Exit) -> int:
    # A volume that is cut short while a worker decodes it is an error of that volume; one that is
    # rewritten in place at that moment may at worst end this process, which is started again.
    _core.guard_file_maps()
    job = receive(parcel_fd)
    log_to_stderr(job.log_level)
    try:
        vector = attach_job(job)
    except (OSError, RuntimeError, MemoryError) as error:
        text = f"a producer worker cannot attach to the pool: {describe(error)}"
        event = {"event": "ended", "error": text, "worker": first}
        with contextlib.suppress(OSError):
            os.write(events_fd, encode_event(event))
        return _EXIT_FAILED
    if vector is None:
        return EXIT_STALE
    crew = Crew(job, parcel_fd, events_fd, vector, stop, leaving)
    return crew.work(first) if job.threads == 1 else crew.work_in_threads()


def close_loader(loader: Any) -> None:
    """Let a loader end what it has started, by its ``close()``, or else its ``__exit__()``."""
    try:
        end = optional(loader, "close")
        if callable(end):
            end()
        elif hasattr(type(loader), "__exit__"):
            loader.__exit__(None, None, None)
    except Exception as error:
        logger.warning("the loader could not be closed: %s", describe(error))


def _say_no_more() -> None:
    """Silence what libraries say about work that SIGTERM leaves half-done."""
    warnings.simplefilter("ignore")  # coroutines that were never awaited
    sys.unraisablehook = lambda unraisable: None
    logging.getLogger("asyncio").disabled = True
