"""What a new interpreter runs to become a pool's supervisor, or a worker's guard and its worker.

This file is run by its path and needs nothing but the interpreter, as whatever it imports delays
the first chunk: the supervisor's interpreter starts without ``site`` (``-S``), and its first worker
starts before anything is imported. (`signal` would take longer than all of this file.)
`supervision`, `guard` and `worker` have the rest.
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIG_UNBLOCK,
    SIGCHLD,
    SIGTERM,
    pthread_sigmask,
)

_THIS = os.path.abspath(__file__)
_ENVIRONMENT = dict(os.environ)


def start_worker(first: int, parcel_fd: int, events_fd: int, limit: float) -> int:
    """Start a worker process under its guard; returns the guard's pid. OSError if that fails.

    Args:
        first: number of its (first) worker.
        parcel_fd: the file with the job; inheritable, as the next one.
        events_fd: write end of the pipe for its events.
        limit: seconds that the worker may take to end once its guard is told to (SIGTERM).
    """
    arguments = map(str, (parcel_fd, events_fd, first, os.getpid(), limit))
    # This process starts with SIGTERM blocked, and the owner may block what it likes.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", _THIS, "worker", *arguments],
        _ENVIRONMENT,
        setsigmask=(),
    )


def take_import_path(parcel_fd: int) -> None:
    """Import from where the owner does, as `payload.write_parcel` has written it down."""
    head = os.pread(parcel_fd, 32, 0).partition(b"\n")[0]
    begin, length = len(head) + 1, int(head)
    paths = b""
    while len(paths) < length:
        part = os.pread(parcel_fd, length - len(paths), begin + len(paths))
        if not part:
            raise EOFError("the file with the job is cut short")
        paths += part
    sys.path[:] = [os.fsdecode(path) for path in paths.split(b"\0")]


def be_supervisor(parcel_fd: int, owner_fd: int, report_fd: int, limit: float) -> int:
    """Supervise until the end; returns the exit status.

    Args:
        parcel_fd: the file with the job.
        owner_fd: pidfd of the owner, or -1.
        report_fd: write end of a pipe to the owner, or -1.
        limit: seconds that workers may take to end.
    """
    for fd in (owner_fd, report_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    events_read, events_write = os.pipe()
    os.set_inheritable(events_write, True)
    try:
        first_pid = start_worker(0, parcel_fd, events_write, limit)
    except OSError:
        first_pid = 0  # tried again, and told, by those who have a log

    import site

    site.main()
    take_import_path(parcel_fd)
    from sharedvector._producer.supervision import supervise

    events = (events_read, events_write)
    return supervise(parcel_fd, owner_fd, report_fd, events, first_pid, start_worker)


def be_worker(parcel_fd: int, events_fd: int, first: int, supervisor: int, limit: float) -> int:
    """Fork a worker, and be its guard; returns the exit status of the process that returns.

    Args:
        parcel_fd, events_fd, first, limit: see `start_worker`.
        supervisor: pid of the parent.
    """
    take_import_path(parcel_fd)
    this = os.getpid()
    pthread_sigmask(SIG_BLOCK, (SIGCHLD, SIGTERM))  # the guard takes them one by one
    worker = os.fork()
    if worker == 0:
        # Until it has something to close, SIGTERM ends it where it is.
        pthread_sigmask(SIG_UNBLOCK, (SIGCHLD, SIGTERM))
        from sharedvector._producer.worker import work

        return work(parcel_fd, events_fd, first, this, limit)
    os.close(parcel_fd)
    os.close(events_fd)
    from sharedvector._producer.guard import guard

    return guard(worker, supervisor, limit)


def main() -> None:
    """Be what the first argument says, with what the others say, and exit."""
    what, *numbers, limit = sys.argv[1:]
    if what == "supervisor":
        parcel_fd, owner_fd, report_fd = map(int, numbers)
        sys.exit(be_supervisor(parcel_fd, owner_fd, report_fd, float(limit)))
    parcel_fd, events_fd, first, supervisor = map(int, numbers)
    sys.exit(be_worker(parcel_fd, events_fd, first, supervisor, float(limit)))


if __name__ == "__main__":
    main()
