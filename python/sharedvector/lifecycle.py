"""Ties between the life of a process and what it must take down: clean-up at exit, parent's death.

Nothing here installs a signal handler: those belong to the user. A death that runs no exit
handlers is noticed from outside, by a child that watches its parent.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
from collections.abc import Callable

__all__ = ["LifecycleGuard", "ParentWatchdog", "install_parent_death_signal"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class LifecycleGuard:
    """Runs a clean-up once: when triggered, or at interpreter exit while armed.

    The guard belongs to the process that made it, or to the one that armed it last. A forked
    child inherits the object but not the duty: there it reads as not armed, and neither the
    child's exit nor its ``trigger()`` runs the parent's clean-up. A child that calls ``arm()``
    takes its own copy over.

    Args:
        cleanup: called without arguments, in the thread that triggers. What it raises goes to
            the caller of ``trigger()``. It is not called again after an error; it is after an
            interrupt (``KeyboardInterrupt`` and whatever else is no ``Exception``), by the next
            ``trigger()`` or at exit.
    """

    def __init__(self, cleanup: Callable[[], None]) -> None:
        self._cleanup = cleanup
        # list.pop is the one atomic step that decides who cleans up: a mutex could be left
        # locked by a fork, and would deadlock a clean-up that triggers again.
        self._pending = [True]
        self._armed = False
        self._pid = os.getpid()

    @property
    def armed(self) -> bool:
        """Whether the exit of this process would run the clean-up (if it has not run yet)."""
        return self._armed and self._pid == os.getpid()

    @property
    def cleaned(self) -> bool:
        """Whether the clean-up has been started, and not interrupted."""
        return not self._pending

    def arm(self) -> None:
        """Run the clean-up when this process's interpreter exits. From any thread; repeatable."""
        if self.armed:
            return
        self._pid = os.getpid()
        self._armed = True
        atexit.unregister(self.trigger)  # an inherited registration must not stand twice
        atexit.register(self.trigger)

    def disarm(self) -> None:
        """Forget the exit clean-up. ``trigger()`` still works. Harmless when not armed."""
        if not self.armed:
            return
        self._armed = False
        atexit.unregister(self.trigger)

    def trigger(self) -> None:
        """Run the clean-up now, unless it ran before or belongs to another process.

        Afterwards the guard is disarmed, also when the clean-up raised an error. After an
        interrupt it is as before: armed or not, with the clean-up still to be done.
        """
        if self._pid != os.getpid():
            return
        try:
            self._pending.pop()
        except IndexError:
            return
        try:
            self._cleanup()
        except Exception:
            self.disarm()
            raise
        except BaseException:
            self._pending.append(True)
            raise
        self.disarm()


class ParentWatchdog(threading.Thread):
    """A daemon thread that calls ``on_orphan`` once when the parent process is gone.

    The parent is the one at construction: make it early, and compare ``os.getppid()`` with the
    pid the parent sent if the parent may die before that.

    Args:
        on_orphan: called without arguments in this thread; the thread ends after it.
        interval: seconds between two looks.

    Raises:
        ValueError: ``interval`` is not positive.
    """

    def __init__(self, on_orphan: Callable[[], None], interval: float = 0.5) -> None:
        if not interval > 0:
            raise ValueError(f"interval must be a positive number of seconds, got {interval!r}")
        super().__init__(name="sharedvector-parent-watch", daemon=True)
        self._on_orphan = on_orphan
        self._interval = interval
        self._parent = os.getppid()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look until the parent is gone or ``stop()`` was called."""
        while not self._stopped.wait(self._interval):
            # an orphan is given a new parent; the old pid cannot come back as ours
            if os.getppid() != self._parent:
                self._on_orphan()
                return

    def stop(self) -> None:
        """End the watch. Does not wait (``join()`` does). Harmless when never started."""
        self._stopped.set()


def install_parent_death_signal(sig: int = signal.SIGKILL) -> bool:
    """Ask the kernel to send ``sig`` to this process when the thread that made it ends.

    The kernel watches the *thread*, not the process: use it only where the main thread of the
    parent starts the child. A parent that is dead already sends nothing, so compare
    ``os.getppid()`` afterwards. Not inherited by forked children. ``sig=0`` takes it back.

    Returns:
        Whether the kernel accepted it (False for a bad signal number, or not on Linux).
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    prctl.restype = ctypes.c_int
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return int(prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)) == 0
