"""Whether a pool is ready: the ready marker, and what segment and lock say beside it.

A pool is ready when its marker, its segment and its lock are of one living generation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import NamedTuple

from sharedvector import _core
from sharedvector._coordination.paths import PoolPaths, PoolSpawnError
from sharedvector.monitoring import Waiting
from sharedvector.vector import FormatError, InUseError, PoolStalledError, SharedVector

__all__ = [
    "ReadyState",
    "attach",
    "clear_marker",
    "owner_alive",
    "probe_ready",
    "read_generation",
    "read_marker",
    "wait_until_ready",
    "write_marker",
]


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
