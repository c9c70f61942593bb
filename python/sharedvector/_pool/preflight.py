"""What an owner looks at before it makes its pool."""

from __future__ import annotations

import logging
import shlex

from sharedvector import _core
from sharedvector._coordination import DEFAULT_LOCK_DIR, PoolPaths
from sharedvector.monitoring import sweep

logger = logging.getLogger("sharedvector")

_MOST_NAMES = 5


def log_leftovers(paths: PoolPaths) -> None:
    """Say what the owner of a pool finds in shared memory before it makes it.

    That is a vector of that name which is in use, a file of that name which is none, and what dead
    processes of this user left, as far as this one could remove it.
    """
    try:
        found = _core.list_segments()
        orphans = sweep(dry_run=True, lock_dir=paths.lock_dir)
    except OSError as error:
        logger.debug("shared memory cannot be listed: %s", error)
        return
    mine = [item for item in found if item["name"] == paths.name]
    if paths.segment.exists() and not mine:
        logger.warning(
            "%s, which is no segment of this version, is replaced by a pool", paths.segment
        )
    if any(item["attached"] and not item["owned"] for item in mine):
        logger.warning(
            "segment %r, made by hand and in use, is replaced by the pool of that name; the "
            "processes attached to it keep its memory and see nothing of the pool",
            paths.name,
        )
    orphans = [item for item in orphans if item.name != paths.name]
    if orphans:
        names = [item.name for item in orphans[:_MOST_NAMES]]
        if len(orphans) > _MOST_NAMES:
            names.append(f"and {len(orphans) - _MOST_NAMES} more")
        where = ""
        if paths.lock_dir != DEFAULT_LOCK_DIR:
            where = f" --lock-dir {shlex.quote(str(paths.lock_dir))}"
        logger.warning(
            "orphans of dead processes take %.1f MiB of shared memory (%s); remove them with: "
            "python -m sharedvector sweep%s",
            sum(item.bytes for item in orphans) / 2**20,
            ", ".join(names),
            where,
        )
