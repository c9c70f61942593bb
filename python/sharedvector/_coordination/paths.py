"""The files of a pool and where they are, and the errors about who owns it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sharedvector import _core

__all__ = [
    "DEFAULT_LOCK_DIR",
    "LOCK_DIR_ENV",
    "PoolBusyError",
    "PoolPaths",
    "PoolSpawnError",
    "validate_name",
]

DEFAULT_LOCK_DIR = Path("/dev/shm")
LOCK_DIR_ENV = "SHAREDVECTOR_LOCK_DIR"
_SHM_DIR_ENV = "SHAREDVECTOR_SHM_DIR"

PoolBusyError = _core.PoolBusyError


class PoolSpawnError(RuntimeError):
    """A pool could not be started; the message has the first cause (often a loader's error)."""


def validate_name(name: str) -> str:
    """Return ``name`` if a pool may have it.

    Raises:
        ValueError: empty, too long, with '/', NUL or a leading dot, or like a coordination file.
    """
    _core.check_name(name)
    return name


@dataclass(frozen=True)
class PoolPaths:
    """Where the files of one pool are.

    Args:
        name: the pool's name.
        lock_dir: directory of the lock and the ready marker. A relative one is taken from the
            working directory of this moment.

    Raises:
        ValueError: a bad name (see `validate_name`).
    """

    name: str
    lock_dir: Path

    def __post_init__(self) -> None:
        validate_name(self.name)
        object.__setattr__(self, "lock_dir", Path(self.lock_dir).absolute())

    @classmethod
    def for_name(cls, name: str, lock_dir: Path | str | None = None) -> PoolPaths:
        """Paths of the pool ``name``; None takes ``$SHAREDVECTOR_LOCK_DIR``, else /dev/shm.

        Raises:
            ValueError: a bad name, or ``$SHAREDVECTOR_LOCK_DIR`` is needed and relative: processes
                that start in different directories would each own the pool.
        """
        if lock_dir is None:
            lock_dir = Path(os.environ.get(LOCK_DIR_ENV) or DEFAULT_LOCK_DIR)
            if not lock_dir.is_absolute():
                raise ValueError(
                    f"{LOCK_DIR_ENV} is {str(lock_dir)!r}, another place for each working "
                    "directory; give an absolute path"
                )
        return cls(name, Path(lock_dir))

    @property
    def lock(self) -> Path:
        """The file that the owner holds locked."""
        return self.lock_dir / f"{self.name}.lock"

    @property
    def marker(self) -> Path:
        """The file that says the pool is filled, and by which generation."""
        return self.lock_dir / f"{self.name}.ready"

    @property
    def segment(self) -> Path:
        """The shared memory itself."""
        return Path(os.environ.get(_SHM_DIR_ENV) or "/dev/shm") / self.name
