"""What an owner looks at before it makes its pool."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sharedvector import _core

logger = logging.getLogger("sharedvector")


def log_leftovers(name: str, segment: Path) -> None:
    """Say what the owner of ``name`` finds in shared memory before it makes its pool.

    That is a vector of that name which is in use, a file of that name which is none, and the pools
    of this user, under other names, whose owner is dead, with their sizes.
    """
    try:
        found = _core.list_segments()
    except OSError as error:
        logger.debug("shared memory cannot be listed: %s", error)
        return
    if segment.exists() and all(item["name"] != name for item in found):
        logger.warning("%s, which is no segment of this version, is replaced by a pool", segment)
    for item in found:
        if item["name"] == name:
            if item["attached"] and not item["owned"]:
                logger.warning(
                    "segment %r, made by hand and in use, is replaced by the pool of that name; "
                    "the processes attached to it keep its memory and see nothing of the pool",
                    name,
                )
            continue
        if item["uid"] != os.getuid():
            continue
        if item["owned"] and not item["owner_live"]:
            users = ", processes are still attached" if item["attached"] else ""
            logger.warning(
                "orphaned %s %r takes %.1f MiB of shared memory%s; remove what dead processes left "
                "with sharedvector.sweep()",
                "block" if item["block"] else "pool",
                item["name"],
                item["bytes"] / 2**20,
                users,
            )
