"""The guard of a worker process, its parent: it ends what the worker leaves behind.

It does nothing but wait. When its worker has ended, however it did, the guard ends every process
that the worker has started and what these have started, in whatever session or process group: the
kernel gives them to the guard as their new parent (PR_SET_CHILD_SUBREAPER). It tells the worker to
end when it is told to itself, or when its supervisor dies; a worker that does not end in time is
killed. Then it ends as its worker did.

If the guard is killed, its worker dies with it, and the supervisor does for what is left what the
guard would have done.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

from sharedvector.lifecycle import install_parent_death_signal

TYPE_CHECKING = False  # its worker starts meanwhile: what a guard imports delays the first chunk
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn

_ORPHAN_LIMIT = 5.0  # seconds that a worker gets when its supervisor is dead
_LAST_CHANCE = 1.0  # seconds that what a worker has left gets between SIGTERM and SIGKILL
STRAYS_LIMIT = 3.0  # seconds to wait for the end of what was killed, too
_TICK = 5.0  # seconds between two looks whether the supervisor lives, where no signal tells it
_LOOK_EVERY = 0.02
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> bool:
    """Have the kernel give orphaned descendants to this process; whether it does."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    prctl.restype = ctypes.c_int
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return int(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def has_children() -> bool:
    """Whether this process has any child, dead ones that nobody has waited for included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children_of(parent: int) -> list[int]:
    """Return the children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            if len(fields) > 1 and int(fields[1]) == parent:
                found.append(int(entry))
    return found


def end_strays(known: Collection[int] = ()) -> list[int]:
    """End every child of this process but the known ones, and what they leave in turn.

    They get SIGTERM, and SIGKILL a second later. Only children are sent signals, as the id of a
    child cannot become another process's; theirs come here when they die.

    Returns:
        Those that have not ended within `STRAYS_LIMIT` seconds, such as one that hangs in a dead
        file system.
    """
    began = time.monotonic()
    told: set[int] = set()
    while True:
        left = []
        for pid in children_of(os.getpid()) if known or has_children() else ():
            if pid not in known and os.waitpid(pid, os.WNOHANG)[0] == 0:
                left.append(pid)
        passed = time.monotonic() - began
        if not left or passed >= STRAYS_LIMIT:
            return left
        for pid in left:
            if passed >= _LAST_CHANCE:
                os.kill(pid, signal.SIGKILL)
            elif pid not in told:
                told.add(pid)
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
        time.sleep(_LOOK_EVERY)


def guard(worker: int, supervisor: int, limit: float) -> NoReturn:
    """Wait until the worker has ended, end what it has left, and end as it did.

    Args:
        worker: a child of this process. SIGTERM and SIGCHLD are blocked.
        supervisor: pid of the parent.
        limit: seconds that the worker may take to end.
    """
    become_subreaper()
    install_parent_death_signal(signal.SIGTERM)
    status = _wait(worker, supervisor, limit)
    left = end_strays()
    if left:
        text = f"processes {left}, which a loader has started, do not end"
        print(f"sharedvector[{os.getpid()}]: {text}", file=sys.stderr, flush=True)
    _end_as(os.waitstatus_to_exitcode(status))


def _wait(worker: int, supervisor: int, limit: float) -> int:
    """Wait until the worker has ended; returns its status, as ``os.waitpid`` gives it."""
    deadline = float("inf")
    orphaned = False
    while True:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == worker:
                return found[1]
        now = time.monotonic()
        if not orphaned and os.getppid() != supervisor:
            orphaned = True
            os.kill(worker, signal.SIGTERM)
            deadline = min(deadline, now + min(limit, _ORPHAN_LIMIT))
        if now >= deadline:
            os.kill(worker, signal.SIGKILL)
            deadline = float("inf")
        left = max(0.0, min(_TICK, deadline - now))
        told = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, left)
        if told is not None and told.si_signo == signal.SIGTERM and not orphaned:
            os.kill(worker, signal.SIGTERM)
            deadline = min(deadline, time.monotonic() + limit)


def _end_as(code: int) -> NoReturn:
    """End this process as another has, by a signal too, without a second core file."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
