"""One producer worker: ``python -m sharedvector._worker``, the supervisor's child.

It dies with its supervisor, ignores SIGINT, and ends quietly on SIGTERM.

SIGTERM raises `Stopped` wherever the worker is, in the loader too, which need not let it through:
whatever catches everything swallows it, and ``__del__`` and callbacks have nobody to give it to.
So it also sets a flag that the producer looks at between two steps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import sys
import types
import warnings
from typing import Any, NoReturn

from sharedvector._events import encode_event
from sharedvector._job import EXIT_FATAL, EXIT_STALE, REMEDY, Job, attach_job, logger, receive
from sharedvector.lifecycle import install_parent_death_signal
from sharedvector.producer import Producer, describe, number_loader
from sharedvector.vector import SharedVector


class Stopped(BaseException):
    """Raised by SIGTERM wherever the worker is."""


class _Stop:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self._asked = False

    def asked(self) -> bool:
        return self._asked

    def on_signal(self, number: int, frame: types.FrameType | None) -> None:
        if self._asked:
            # The first is on its way out, or was swallowed by something that takes long. The pool
            # is made for workers that end anywhere.
            os._exit(0)
        self._asked = True
        _say_no_more()
        raise Stopped


class Reporter:
    """Sends events to the supervisor until the pool is filled; never waits for it.

    Args:
        fd: write end of the pipe.
        worker_id: goes into each event.
        vector: the pool.
    """

    def __init__(self, fd: int, worker_id: int, vector: SharedVector) -> None:
        self._fd = fd
        self._worker_id = worker_id
        self._vector = vector
        self._told_stored = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Send one event, unless nobody needs it any more."""
        if event["event"] == "stored":
            # One is enough to know that this worker gets somewhere.
            if self._told_stored:
                return
            self._told_stored = True
        elif event["event"] == "failed" and len(self._vector) == self._vector.capacity:
            return
        self.send(event)

    def send(self, event: dict[str, Any]) -> None:
        """Send one event as a line of JSON; dropped when the pipe is full or closed."""
        with contextlib.suppress(OSError):
            os.write(self._fd, encode_event({**event, "worker": self._worker_id}))


def main() -> int:
    """Run one worker; the arguments are descriptors and numbers, see `_supervisor`."""
    parcel_fd, events_fd, worker_id, supervisor_pid = map(int, sys.argv[1:5])
    install_parent_death_signal()
    if os.getppid() != supervisor_pid:
        return 0  # it died before we could ask to be told
    stop = _Stop()
    status = 0
    with contextlib.suppress(Stopped):
        signal.signal(signal.SIGTERM, stop.on_signal)
        job = receive(parcel_fd)
        os.set_inheritable(events_fd, False)
        status = _work(job, events_fd, worker_id, stop)
    if stop.asked():
        _leave()
    return status


def _say_no_more() -> None:
    """Silence what libraries say about work that SIGTERM leaves half-done."""
    warnings.simplefilter("ignore")  # coroutines that were never awaited
    sys.unraisablehook = lambda unraisable: None
    logging.getLogger("asyncio").disabled = True


def _leave() -> NoReturn:
    """End without the interpreter's own end, which would mourn interrupted tasks of libraries.

    Nothing here needs it: the kernel drops the row's lock with the process.
    """
    with contextlib.suppress(Exception):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _work(job: Job, events_fd: int, worker_id: int, stop: _Stop) -> int:
    vector = attach_job(job)
    if vector is None:
        return EXIT_STALE
    report = Reporter(events_fd, worker_id, vector)
    try:
        loader = pickle.loads(job.loader)
    except (Exception, SystemExit) as error:
        if stop.asked():
            return 0
        text = f"the loader cannot be made in the producer process: {describe(error)}; {REMEDY}"
        logger.error(text)
        report.send({"event": "unloadable", "error": text})
        return EXIT_FATAL
    number_loader(loader, worker_id)
    producer = Producer(
        vector,
        loader,
        job.source_size,
        job.seed,
        stop.asked,
        sleep_seconds=job.sleep_seconds,
        worker_id=worker_id,
        workers=job.num_producers,
        report=report,
    )
    try:
        producer.run()
    except Stopped:
        raise
    except BaseException as error:
        if stop.asked():
            return 0
        # What is no Exception is the loader's: KeyboardInterrupt too, as SIGINT is ignored.
        who = "a producer worker failed" if isinstance(error, Exception) else "the loader ended it"
        text = f"{who}: {describe(error)}"
        logger.warning("producer worker %d: %s", worker_id, text)
        logger.debug("producer worker %d:", worker_id, exc_info=error)
        report.send({"event": "ended", "error": text})
    return 1


if __name__ == "__main__":
    sys.exit(main())
