"""What this process and this user hold in shared memory, and what is left of it."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from os import PathLike
from typing import SupportsIndex

from sharedvector import _core
from sharedvector._common import integer
from sharedvector.monitoring import holdings
from sharedvector.monitoring.leftovers import Swept, sweep

__all__ = ["Diagnostics", "diagnostics", "warn_above"]

_MIB = 2**20
_NAMED = 5  # blocks that a message names
_Row = tuple[str, int | None, str]  # label, bytes, words
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class Diagnostics:
    """What :func:`diagnostics` found at one moment. Bytes count all memory taken, tables included.

    ``str()`` is a table in MiB whose first line says whether something was left behind.

    Attributes:
        pid: of this process.
        blocks_made: blocks that this process made and has not removed.
        blocks_made_bytes: their memory.
        blocks_attached: blocks of other processes that this process has mapped.
        blocks_attached_bytes: their memory.
        blocks_all: blocks of this user in ``directory``, whoever made them.
        blocks_all_bytes: their memory.
        orphans: blocks and pools of this user in ``directory`` whose makers are dead.
        orphans_bytes: their memory; ``sweep()`` gives it back.
        shm_bytes: size of the file system of ``directory``.
        shm_free_bytes: what is free of it.
        memory_free_bytes: memory that can still be had, None when unknown. Shared memory is memory:
            beyond this the kernel kills, however much of the file system is free.
        container_limit_bytes: limit of this process's control groups, None when there is none.
        warn_above_bytes: what :func:`warn_above` was told, None when it is off.
        directory: where blocks and pools were looked for.
        memory_limit: what ``memory_free_bytes`` is the rest of, in words.
        made: name and bytes of each block in ``blocks_made``.
        orphaned: name, bytes and kind of each of ``orphans``.
    """

    pid: int
    blocks_made: int
    blocks_made_bytes: int
    blocks_attached: int
    blocks_attached_bytes: int
    blocks_all: int
    blocks_all_bytes: int
    orphans: int
    orphans_bytes: int
    shm_bytes: int
    shm_free_bytes: int
    memory_free_bytes: int | None
    container_limit_bytes: int | None
    warn_above_bytes: int | None
    directory: str
    memory_limit: str
    made: tuple[tuple[str, int], ...]
    orphaned: tuple[Swept, ...]

    def as_dict(self, prefix: str = "sharedvector/") -> dict[str, int | float]:
        """Return every number under ``prefix + name``; what is None is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f"{prefix}{name}": value for name, value in values.items() if type(value) is int}

    def prometheus(self) -> str:
        """Return the numbers in Prometheus' text format.

        Raises:
            ImportError: prometheus_client is missing.
        """
        from sharedvector.monitoring.families import text_of

        return text_of(self)

    def __str__(self) -> str:
        if self.orphans:
            verdict = (
                f"LEFT BEHIND: {_count(self.orphans, 'segment')} of dead processes, "
                f"{_mib(self.orphans_bytes)}; remove with: python -m sharedvector sweep"
            )
        else:
            verdict = "nothing was left behind by dead processes"
        mine = _count(self.blocks_made, "block")
        if self.warn_above_bytes is not None and self.blocks_made_bytes > self.warn_above_bytes:
            mine += f", ABOVE the limit of {_mib(self.warn_above_bytes)}"
        rows: list[_Row] = [
            (f"made by process {self.pid}", self.blocks_made_bytes, mine),
            *_largest(self.made),
            ("attached by it", self.blocks_attached_bytes, _count(self.blocks_attached, "block")),
            ("blocks of this user", self.blocks_all_bytes, _count(self.blocks_all, "block")),
            ("left by the dead", self.orphans_bytes, _count(self.orphans, "segment")),
            *_largest([(item.name, item.bytes) for item in self.orphaned]),
            (f"free in {self.directory}", self.shm_free_bytes, f"of {_mib(self.shm_bytes)}"),
            ("free memory", self.memory_free_bytes, f"of {self.memory_limit}"),
            ("container's limit", self.container_limit_bytes, ""),
        ]
        width = max(len(label) for label, _, _ in rows)
        lines = [
            f"{label:{width}}  {'none' if size is None else _mib(size):>14}  {words}".rstrip()
            for label, size, words in rows
        ]
        return "\n".join([f"sharedvector: {verdict}", *lines])


def diagnostics(
    *, directory: str | PathLike[str] | None = None, lock_dir: str | PathLike[str] | None = None
) -> Diagnostics:
    """Look at what this process and this user hold in shared memory. Nothing is changed.

    The figures are read one after the other while others go on. A forked child starts with no
    blocks of its own.

    Args:
        directory: of the segments; SHAREDVECTOR_SHM_DIR or /dev/shm. Blocks that this process made
            or attached count wherever they are.
        lock_dir: of the pools' lock files; SHAREDVECTOR_LOCK_DIR or /dev/shm.

    Raises:
        OSError: the directory cannot be read.
    """
    where = holdings.directory_of(directory)
    made, attached = holdings.held()
    everything = [
        int(item["bytes"])
        for item in _core.list_segments(where)
        if item["block"] and item["uid"] == os.geteuid()
    ]
    orphaned = sweep(dry_run=True, directory=where, lock_dir=lock_dir)
    disk = os.statvfs(where)
    memory_free, limit_words, container_limit = _core.memory_free()
    return Diagnostics(
        pid=os.getpid(),
        blocks_made=len(made),
        blocks_made_bytes=_sum(made),
        blocks_attached=len(attached),
        blocks_attached_bytes=_sum(attached),
        blocks_all=len(everything),
        blocks_all_bytes=sum(everything),
        orphans=len(orphaned),
        orphans_bytes=sum(item.bytes for item in orphaned),
        shm_bytes=disk.f_blocks * disk.f_frsize,
        shm_free_bytes=disk.f_bavail * disk.f_frsize,
        memory_free_bytes=memory_free,
        container_limit_bytes=container_limit,
        warn_above_bytes=_watch.limit,
        directory=where,
        memory_limit=limit_words,
        made=tuple(made),
        orphaned=tuple(orphaned),
    )


# ---- a limit -----------------------------------------------------------------------------------

Hook = Callable[[Diagnostics], object]


class _Watch:
    """The limit of this process, and the blocks that it was last told about."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self.hook: Hook = _warn
        self.lock = threading.RLock()
        self.told: frozenset[str] = frozenset()  # empty below the limit

    def check(self) -> None:
        """Called after a block was made: tell the hook if that was a crossing.

        It was one if what is left of the blocks that it was told about would fit under the limit.
        """
        with self.lock:
            if self.limit is None:
                return
            made, _ = holdings.held()
            if _sum(made) <= self.limit:
                self.told = frozenset()
                return
            crossed = sum(size for name, size in made if name in self.told) <= self.limit
            self.told = frozenset(name for name, _ in made)
            hook = self.hook
        if crossed:
            try:
                hook(diagnostics())
            except Exception:
                import logging  # not for every process that only attaches

                logging.getLogger("sharedvector").exception(
                    "the hook of warn_above() failed; the block was made all the same"
                )


def warn_above(limit_bytes: SupportsIndex | None, hook: Hook | None = None) -> None:
    """Call a hook when the blocks that this process made and has not removed grow past a limit.

    The limit is looked at when a block is made. The hook is called once for each crossing: again
    after the blocks have fallen to the limit or below it and grown past it anew. It runs in the
    thread that made the block, after that. An exception that it raises is logged (logger
    "sharedvector") and goes no further, as the block would be lost with it; KeyboardInterrupt and
    SystemExit do end the call. Each process has a limit of its own, a forked child that of its
    parent, and no blocks yet. SHAREDVECTOR_WARN_ABOVE (bytes, or a number with K, M, G or T behind
    it: ``2G``) sets a limit from the start.

    Args:
        limit_bytes: what the blocks may take together; None switches the hook off.
        hook: called with a :class:`Diagnostics`. By default a RuntimeWarning names the largest
            blocks, at the line that made the last one.

    Raises:
        TypeError: limit_bytes is no integer, or hook cannot be called. Nothing was changed.
        ValueError: limit_bytes is negative. Nothing was changed.
    """
    limit = None if limit_bytes is None else integer("limit_bytes", limit_bytes, 0)
    if hook is not None and not callable(hook):
        raise TypeError(f"hook must be callable with a Diagnostics; found {hook!r}")
    with _watch.lock:
        _watch.limit, _watch.hook, _watch.told = limit, hook or _warn, frozenset()
        if limit is not None and _watch.check not in holdings.after_make:
            holdings.after_make.append(_watch.check)


def _warn(found: Diagnostics) -> None:
    """The default hook. RuntimeWarning, since a ResourceWarning would be hidden by default."""
    by_size = sorted(found.made, key=lambda block: -block[1])
    names = ", ".join(f"{name} ({_mib(size)})" for name, size in by_size[:_NAMED])
    more = f" and {len(by_size) - _NAMED} more" if len(by_size) > _NAMED else ""
    limit = _mib(found.warn_above_bytes or 0)
    warnings.warn(
        f"process {found.pid} has {_count(found.blocks_made, 'block')} of "
        f"{_mib(found.blocks_made_bytes)} in shared memory that it made and has not removed, more "
        f"than {limit}: {names}{more}; close() the handles or use them in a with statement "
        "(prefix= tells in the names who made them)",
        RuntimeWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """How far up from the function that calls this the first frame outside of this package is."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _in_package(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
        level += 1
    return level


def _in_package(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _from_environment() -> None:
    text = os.environ.get(holdings.WARN_ABOVE_ENV, "").strip()
    if text:
        match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
        if match is None:
            raise ValueError(
                f"{holdings.WARN_ABOVE_ENV}={text!r} must be bytes, or a number with K, M, G or T "
                "behind it for KiB to TiB, such as 2G"
            )
        warn_above(int(match[1]) << _UNITS[match[2]])


def _sum(blocks: list[tuple[str, int]]) -> int:
    return sum(size for _, size in blocks)


def _largest(blocks: list[tuple[str, int]] | tuple[tuple[str, int], ...]) -> list[_Row]:
    """Rows for the largest blocks."""
    by_size = sorted(blocks, key=lambda block: -block[1])
    rows: list[_Row] = [(f"  {name}", size, "") for name, size in by_size[:_NAMED]]
    if len(by_size) > _NAMED:
        rest = by_size[_NAMED:]
        rows.append((f"  and {len(rest)} more", _sum(rest), ""))
    return rows


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB" if size == 0 or size >= _MIB / 20 else "< 0.1 MiB"


def _after_fork_in_child() -> None:
    _watch.lock = threading.RLock()  # another thread may have held it


_watch = _Watch()
os.register_at_fork(after_in_child=_after_fork_in_child)
_from_environment()
