"""Removing what dead processes left in shared memory."""

from __future__ import annotations

from os import PathLike
from typing import Literal, NamedTuple

from sharedvector import _core


class Swept(NamedTuple):
    """What :func:`sweep` removed: the name, the bytes of memory it took, and its kind."""

    name: str
    bytes: int
    kind: Literal["block", "pool"]


def sweep(
    prefix: str | None = None,
    dry_run: bool = False,
    *,
    directory: str | PathLike[str] | None = None,
    lock_dir: str | PathLike[str] | None = None,
) -> list[Swept]:
    """Remove the blocks and pools of this user whose makers are dead, and say which they were.

    A block's or owner's life is a lock that the kernel keeps: nothing that lives is removed,
    in whatever pid namespace or container it runs. Plain SharedVectors record no owner and are left
    alone (``remove_shared_memory``), as is what other users made.

    Args:
        prefix: only blocks that were made with it, and pools whose names begin with it.
        dry_run: remove nothing, only tell.
        directory: of the segments; SHAREDVECTOR_SHM_DIR or /dev/shm.
        lock_dir: of the pools' lock files; SHAREDVECTOR_LOCK_DIR or /dev/shm.

    Raises:
        OSError: something could not be removed; the rest was.
    """
    found = _core.sweep(directory, lock_dir, prefix, dry_run)
    return [
        Swept(item["name"], item["bytes"], "block" if item["block"] else "pool") for item in found
    ]
