"""Who owns a pool and whether it is ready: names, the owner lock, the ready marker.

A pool ``run42`` has three files: the segment ``/dev/shm/run42``, ``run42.lock``, which the owner
holds locked for its whole life, and ``run42.ready``, which the owner writes once the pool is
filled. The last two lie in ``lock_dir``, which must be local to the node. Only the holder of the
lock makes or removes the other two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sharedvector import _core
from sharedvector._owner_lock import OwnerLock
from sharedvector._progress import Waiting
from sharedvector.vector import FormatError, InUseError, PoolStalledError, SharedVector

__all__ = [
    "DEFAULT_LOCK_DIR",
    "LOCK_DIR_ENV",
    "OwnerLock",
    "PoolBusyError",
    "PoolPaths",
    "PoolSpawnError",
    "ReadyState",
    "attach",
    "clear_marker",
    "owner_alive",
    "probe_ready",
    "read_generation",
    "read_marker",
    "validate_name",
    "wait_until_ready",
    "write_marker",
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


class ReadyState(NamedTuple):
    """What a look at a pool has shown.

    Attributes:
        ready: whether it can be used.
        reason: "ready", or what is missing.
        generation: what the ready marker says; None without one.
    """

    ready: bool
    reason: str
    generation: str | None


class Look(NamedTuple):
    """A `ReadyState` with what was found on the way.

    Attributes:
        state: the answer.
        vector: the attached segment when ready.
        refusal: the error to raise now, because waiting cannot help.
    """

    state: ReadyState
    vector: SharedVector | None = None
    refusal: Exception | None = None


def attach(paths: PoolPaths) -> SharedVector:
    """Attach to the segment of a pool, ready or not.

    Raises:
        FileNotFoundError: there is none.
        FormatError, OSError: the file of that name is not a usable segment.
    """
    return SharedVector(paths.name, create=False)


def write_marker(paths: PoolPaths, generation: str) -> None:
    """Write a ready marker by hand, by rename. Owners use `OwnerLock.write_ready`."""
    draft = paths.lock_dir / f".{paths.name}.ready.{os.getpid()}"
    try:
        draft.write_text(json.dumps({"generation": generation, "pid": os.getpid()}) + "\n")
        draft.rename(paths.marker)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def clear_marker(paths: PoolPaths) -> None:
    """Remove the ready marker; a missing one is no error."""
    paths.marker.unlink(missing_ok=True)


def read_marker(paths: PoolPaths) -> str | None:
    """Return the generation in the ready marker; None when there is none that can be read."""
    try:
        return _core.read_ready(paths.name, str(paths.lock_dir))
    except (FileNotFoundError, NotADirectoryError, FormatError):
        return None


def owner_alive(paths: PoolPaths) -> bool:
    """Return whether a living process is the owner."""
    return probe_owner(paths)[0]


def read_generation(paths: PoolPaths) -> str | None:
    """Return the generation in the lock file; None when there is none that can be read."""
    return probe_owner(paths)[1] or None


def probe_owner(paths: PoolPaths) -> tuple[bool, str, int]:
    """Return whether an owner lives, and what the lock file says: generation ("") and pid (0)."""
    try:
        return _core.probe_owner(paths.name, str(paths.lock_dir))
    except (FileNotFoundError, NotADirectoryError):
        return False, "", 0


def probe_ready(paths: PoolPaths, slot_count: int, strict: bool = True) -> ReadyState:
    """Look once whether a pool can be used.

    Args:
        paths: of the pool.
        slot_count: how many filled slots are needed.
        strict: ask for the ready marker of the living owner too. A segment that was made without
            an owner needs only the marker.
    """
    return look(paths, slot_count, strict).state


def look(paths: PoolPaths, slot_count: int, strict: bool = True) -> Look:
    """As `probe_ready`, keeping what it found."""
    marker = read_marker(paths)
    if strict and marker is None:
        return _not_yet(f"no ready marker ({_owner_words(paths)})", None)
    try:
        vector = attach(paths)
    except FileNotFoundError:
        return _not_yet("no segment of that name", marker)
    except (FormatError, InUseError, OSError) as error:
        return _not_yet(f"the segment cannot be used: {error}", marker)
    problem = _reign_problem(paths, vector, marker) if strict else None
    if problem is not None:
        return _not_yet(problem, marker)
    filled = len(vector)
    if filled >= slot_count:
        refusal = _given_up(vector) if strict else None
        return Look(ReadyState(True, "ready", marker), vector, refusal)
    reason = f"{filled}/{slot_count} slots filled"
    if strict and slot_count > vector.capacity:
        text = (
            f"pool {paths.name!r} is ready with {vector.capacity} slots, {slot_count} were asked "
            "for; ask for at most as many, or use another name for a larger pool"
        )
        return Look(ReadyState(False, reason, marker), None, ValueError(text))
    return _not_yet(reason, marker)


def wait_until_ready(
    paths: PoolPaths,
    slot_count: int,
    deadline: float,
    poll_interval: float = 0.1,
    strict: bool = True,
    abort: Callable[[], str | None] | None = None,
) -> ReadyState:
    """Wait until a pool can be used.

    Args:
        paths: of the pool.
        slot_count: how many filled slots are needed.
        deadline: latest time to return, on ``time.monotonic()``'s clock. One look is always taken.
        poll_interval: seconds between two looks.
        strict: as in `probe_ready`.
        abort: called after each look in vain; the text that it returns, if any, ends the wait.

    Raises:
        TimeoutError: not ready by the deadline; the message has the last reason.
        PoolSpawnError: ``abort`` returned a text.
        ValueError: the pool is ready and has fewer slots.
        PoolStalledError: the pool is filled, but its owner has given the producer up.
    """
    return wait_and_look(paths, slot_count, deadline, poll_interval, strict, abort).state


def wait_and_look(
    paths: PoolPaths,
    slot_count: int,
    deadline: float,
    poll_interval: float,
    strict: bool = True,
    abort: Callable[[], str | None] | None = None,
) -> Look:
    """As `wait_until_ready`, keeping the attached segment."""
    waiting = Waiting(paths.name, deadline, poll_interval, lambda: owner_alive(paths))
    while True:
        found = look(paths, slot_count, strict)
        if found.refusal is not None:
            raise found.refusal
        if found.state.ready:
            return found
        reason = abort() if abort is not None else None
        if reason is not None:
            raise PoolSpawnError(
                f"pool {paths.name!r} will not become ready: {reason} (last seen: "
                f"{found.state.reason})"
            )
        waiting.sleep(found.state.reason)


def _not_yet(reason: str, generation: str | None) -> Look:
    return Look(ReadyState(False, reason, generation))


def _owner_words(paths: PoolPaths) -> str:
    alive, _, pid = probe_owner(paths)
    return f"its owner, process {pid}, is filling it" if alive else "nobody owns the pool"


def _reign_problem(paths: PoolPaths, vector: SharedVector, marker: str | None) -> str | None:
    """Why marker, segment and lock are not of one living reign; None when they are."""
    alive, generation, _ = probe_owner(paths)
    if alive and generation and generation != marker:
        return "the ready marker is of an earlier owner"
    if not vector.owned:
        return None  # made by hand: there is no owner to ask for
    if vector.generation != marker:
        return "the segment is of another generation than the ready marker"
    # A supervisor that cleans up after its owner holds the lock too, but not the segment's.
    if not alive or not vector.owner_live():
        return "its owner is dead"
    if vector.retired_get() == _core.RETIRED_CLOSED:
        return "its owner is closing it"
    return None


def _given_up(vector: SharedVector) -> Exception | None:
    if vector.retired_get() != _core.RETIRED_PRODUCER:
        return None
    return PoolStalledError(
        f"pool {vector.name!r} is not refreshed any more: {vector.retired_reason}; "
        "close it in its owner, then start it again"
    )
