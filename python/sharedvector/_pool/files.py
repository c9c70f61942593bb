"""The owner sees to it that the name of its pool leads to its pool.

Others remove files that are in use: a clean-up at logout, the epilogue of a job, ``rm``. What can
be made again is: the ready marker and the lock. A segment without a name cannot be given one.
"""

from __future__ import annotations

import contextlib
import logging

from sharedvector._coordination import (
    OwnerLock,
    PoolBusyError,
    PoolPaths,
    probe_owner,
    read_marker,
)
from sharedvector.stats import leads_to
from sharedvector.vector import SharedVector

logger = logging.getLogger("sharedvector")


class PoolFiles:
    """The files of a pool, in the hands of its owner.

    Args:
        paths: of the pool.
        lock: held.

    Attributes:
        lock: the one that is held now.
        lost: why the name does not lead to the pool any more; None while it does.
    """

    def __init__(self, paths: PoolPaths, lock: OwnerLock) -> None:
        self.lock = lock
        self.lost: str | None = None
        self._paths = paths

    def look(self, vector: SharedVector) -> None:
        """Look once, make what is missing again, and say so.

        When the name is lost, it is given free: another process, or a further `ensure_pool` of this
        one, can make the pool anew.
        """
        name = self._paths.name
        if not leads_to(vector):
            self.lost = f"its file {self._paths.segment} was removed by another program"
            logger.error(
                "the name of pool %r is lost: %s; those attached to it go on, and nobody else can "
                "attach: call ensure_pool again to make a new pool",
                name,
                self.lost,
            )
            self.take_marker_back()
            self.lock.release()
            return
        if probe_owner(self._paths)[:2] != (True, self.lock.generation):
            again = OwnerLock.try_acquire(self._paths, 0, generation=self.lock.generation)
            if again is None:
                return  # somebody tries to make the pool, sees that it lives, and gives up
            self.lock, old = again, self.lock
            old.release()  # which removes a file of its own only
            logger.warning("%s was removed by another program; made again", self._paths.lock)
        if not self._is_marked():
            self.lock.write_ready()
            logger.warning("%s was removed by another program; made again", self._paths.marker)

    def take_marker_back(self) -> None:
        """Remove the marker of this pool; whatever another owner wrote stays."""
        with contextlib.suppress(PoolBusyError):
            if not self._is_marked():
                return
            if self.lock.held:
                self.lock.clear_ready()
                return
            lock = OwnerLock.try_acquire(self._paths, 0, generation=self.lock.generation)
            if lock is not None:  # the first one was lost
                if self._is_marked():
                    lock.clear_ready()
                lock.release()

    def _is_marked(self) -> bool:
        return read_marker(self._paths) == self.lock.generation
