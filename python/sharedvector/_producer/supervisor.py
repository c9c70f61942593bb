"""The supervisor of a pool's workers, the owner's child: this file, run by a new interpreter.

It lives in a session of its own and never fills a slot itself. It starts the workers, starts them
again when they die, and ends with its owner. When the owner dies without a word it stops the
workers and removes the pool's files, provided that no new owner has come.

The first worker starts before anything is imported, even ``site`` (``-S``), as the owner waits for
it; `supervision` has the rest.
"""

from __future__ import annotations

import os
import sys

_CODE = "from sharedvector._producer.worker import main; main()"
_ENVIRONMENT = dict(os.environ)  # with the whole import path, as the owner has set it up


def start_worker(first: int, parcel_fd: int, events_fd: int) -> int:
    """Start a worker process; returns its pid. OSError when it cannot be started.

    Args:
        first: number of its (first) worker.
        parcel_fd: the file with the job; inheritable, as the next one.
        events_fd: write end of the pipe for its events.
    """
    arguments = map(str, (parcel_fd, events_fd, first, os.getpid()))
    command = [sys.executable, "-P", "-c", _CODE, *arguments]
    # This process starts with SIGTERM blocked, and the owner may block what it likes.
    return os.posix_spawn(sys.executable, command, _ENVIRONMENT, setsigmask=())


def main() -> None:
    """Supervise, and exit; arguments: file of the job, pidfd of the owner, pipe to the owner."""
    parcel_fd, owner_fd, report_fd = map(int, sys.argv[1:4])
    for fd in (owner_fd, report_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    events_read, events_write = os.pipe()
    os.set_inheritable(events_write, True)
    try:
        first_pid = start_worker(0, parcel_fd, events_write)
    except OSError:
        first_pid = 0  # tried again, and told, by those who have a log

    import site

    site.main()
    from sharedvector._producer.supervision import supervise

    events = (events_read, events_write)
    sys.exit(supervise(parcel_fd, owner_fd, report_fd, events, first_pid, start_worker))


if __name__ == "__main__":
    main()
