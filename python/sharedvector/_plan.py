"""What a pool is made of, as its owner wants it, and what other pools have left behind."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharedvector import _core
from sharedvector._arguments import integer, seconds
from sharedvector.loaders import resolve_numpy_dtype
from sharedvector.producer import optional

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

PRODUCER_KINDS = ("auto", "process", "thread")

logger = logging.getLogger("sharedvector")


def check_loader(loader: Any) -> None:
    """Raise TypeError for what cannot load."""
    if not callable(loader) and optional(loader, "load_into") is None:
        raise TypeError(
            "loader should be called with a source's number, as sharedvector.loaders.Loader "
            f"describes, got {loader!r}"
        )


@dataclass(frozen=True)
class Plan:
    """What a pool is made of and how it is fed.

    Raises:
        ValueError: a value that no pool can have, or a bad ``buffers_at_once`` of the loader.
        TypeError: ``loader`` is none, or a count is no integer.
    """

    loader: Loader
    source_size: int
    slot_count: int
    chunk_size: int
    dtype: str = "float32"
    num_producers: int = 4
    sleep_seconds: float = 0.01
    join_timeout: float = 5.0
    spare_buffers: int | None = None
    log_level: int = logging.INFO
    producer_kind: str = "auto"

    def __post_init__(self) -> None:
        check_loader(self.loader)
        for field in ("num_producers", "source_size", "slot_count", "chunk_size"):
            if integer(field, getattr(self, field)) < 1:
                raise ValueError(f"{field} should be at least 1, got {getattr(self, field)}")
        for field in ("sleep_seconds", "join_timeout"):
            value = seconds(field, getattr(self, field))
            if value == float("inf"):
                raise ValueError(f"{field} should be a finite number of seconds, got {value}")
        if self.spare_buffers is not None and integer("spare_buffers", self.spare_buffers) < 1:
            raise ValueError(f"spare_buffers should be at least 1, got {self.spare_buffers}")
        if self.producer_kind not in PRODUCER_KINDS:
            raise ValueError(
                f"producer_kind should be one of {PRODUCER_KINDS}, got {self.producer_kind!r}"
            )
        at_once = self.buffers_at_once
        if not isinstance(at_once, int) or at_once < 1:
            raise ValueError(
                f"the loader's buffers_at_once should be an integer from 1 on, got {at_once!r}"
            )
        resolve_numpy_dtype(self.dtype)

    @property
    def workers(self) -> int:
        """How many workers run: not more than there are slots."""
        return min(self.num_producers, self.slot_count)

    @property
    def threads(self) -> int:
        """How many of the workers share a process: all, or each has its own."""
        kind = self.producer_kind
        if kind == "auto":
            kind = "thread" if optional(self.loader, "releases_gil", False) else "process"
        return self.workers if kind == "thread" else 1

    @property
    def buffers_at_once(self) -> int:
        """How many buffers a worker fills at the same time, as the loader says."""
        at_once: int = optional(self.loader, "buffers_at_once", 1)
        return at_once

    @property
    def spares(self) -> int:
        """Buffers beyond the slots."""
        if self.spare_buffers is not None:
            return self.spare_buffers
        wanted = self.num_producers * self.buffers_at_once
        return min(wanted, max(1, self.slot_count // 8))


def log_leftovers(name: str) -> None:
    """Say what the owner of ``name`` finds in shared memory before it makes its pool.

    That is a vector of that name which is in use, and the pools of this user, under other names,
    whose owner is dead, with their sizes.
    """
    try:
        found = _core.list_segments()
    except OSError as error:
        logger.debug("shared memory cannot be listed: %s", error)
        return
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
