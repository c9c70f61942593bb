"""The lock that makes a process the owner of a pool."""

from __future__ import annotations

import stat
import time
from pathlib import Path

from sharedvector import _core
from sharedvector._common import seconds
from sharedvector._coordination.paths import PoolPaths

_SHORTEST_POLL = 0.001  # seconds


class OwnerLock:
    """The lock that makes this process the owner of a pool, until `release` or its death.

    It belongs to the process that took it: a forked child holds nothing and releases nothing.

    Args:
        paths: of the pool.
        fd: a descriptor on ``paths.lock`` that is flock-ed already; it is closed.
        generation: token of this reign.

    Raises:
        OSError, ValueError: the descriptor is not such a lock.
    """

    def __init__(self, paths: PoolPaths, fd: int, generation: str) -> None:
        self._adopt(paths, _core.Owner(paths.name, str(paths.lock_dir), generation, fd=fd))

    def _adopt(self, paths: PoolPaths, owner: _core.Owner) -> None:
        self._paths = paths
        self._owner = owner
        self._generation = owner.generation

    @classmethod
    def try_acquire(
        cls,
        paths: PoolPaths,
        grace: float = 1.0,
        poll: float = 0.05,
        generation: str | None = None,
    ) -> OwnerLock | None:
        """Become the owner, or return None when another process still is after ``grace`` seconds.

        Args:
            paths: of the pool; ``lock_dir`` is made when it is missing.
            grace: seconds to go on trying; 0 or less tries once.
            poll: seconds between two tries.
            generation: token of the reign; None draws a new one.

        Raises:
            OSError: the lock file cannot be made.
            ValueError, TypeError: a time is NaN or no number.
        """
        deadline = time.monotonic() + seconds("grace", grace)
        poll = max(seconds("poll", poll), _SHORTEST_POLL)
        _make_directory(paths.lock_dir)
        while True:
            try:
                owner = _core.Owner(paths.name, str(paths.lock_dir), generation)
            except _core.PoolBusyError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(poll, left))
                continue
            lock = cls.__new__(cls)
            lock._adopt(paths, owner)
            return lock

    @property
    def held(self) -> bool:
        """Whether this process is the owner through this object."""
        return self._owner.held

    @property
    def generation(self) -> str:
        """Token of this reign."""
        return self._generation

    def write_ready(self) -> None:
        """Say that the pool is filled. OSError when the marker cannot be written."""
        self._owner.write_ready()

    def clear_ready(self) -> None:
        """Take the marker back, whichever reign it is from; a missing one is no error."""
        self._owner.clear_ready()

    def release(self) -> None:
        """Remove the lock file and stop being the owner. Harmless when not held."""
        self._owner.release()


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, such that its owner can use them whatever the umask."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return  # another process was faster
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
