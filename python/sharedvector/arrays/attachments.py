"""Blocks in this process: those that it made, and a bounded cache of those it has attached to.

A block is attached to once per process, however many handles on it arrive. Only the process that
made a block removes it: when its handle is closed or dropped, at exit, at a signal that ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import weakref
from collections import OrderedDict
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharedvector import _core
from sharedvector.arrays.layout import bytes_of
from sharedvector.dtypes import encode_dtype
from sharedvector.monitoring import WARN_ABOVE_ENV, directory_of, made_one, tell_holdings

CACHED_BLOCKS = 64
DEFAULT_MODE = 0o600

_LARGEST = 1 << 44  # bytes that the core takes for a block

# Bytes of a part that gets its page faults in one call: for less the call costs more, and of more
# a task may need only some.
_SMALL_PART = 1 << 17
_LARGE_PART = 1 << 26
_PARTS_REMEMBERED = 256

# Of multiprocessing's exit functions: those below 0 run when it has joined its children, and it
# empties its queues at -5.
_AFTER_CHILDREN = -10

_lock = threading.RLock()
_known: weakref.WeakValueDictionary[tuple[str, str], Block] = weakref.WeakValueDictionary()
_recent: OrderedDict[tuple[str, str], Block] = OrderedDict()  # attached to, oldest use first
_finalizing_pid = 0


class Block:
    """One block, as this process has it mapped."""

    __slots__ = ("__weakref__", "_segment", "_touched", "bytes", "key", "made_here")

    def __init__(self, segment: _core.Segment, made_here: bool) -> None:
        self._segment = segment
        self.key = (segment.directory, segment.name)
        self.bytes = int(segment.segment_bytes)
        self._touched: set[tuple[bool, int, int]] = set()
        self.made_here = made_here  # and not in a process that this one was forked from

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def closed(self) -> bool:
        return self._segment.closed

    @property
    def gone(self) -> bool:
        """Has its maker removed it, or died?"""
        return self.closed or self._segment.retired_get() != _core.RETIRED_NO

    def flat(self, writable: bool, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of the block, of which [start, stop) will be used.

        The memory lives as long as this array.
        """
        part = (writable, start, stop)
        if _SMALL_PART <= stop - start <= _LARGE_PART and part not in self._touched:
            if len(self._touched) >= _PARTS_REMEMBERED:
                self._touched.clear()
            self._touched.add(part)
            return self._segment.block_array(writable, start, stop)
        return self._segment.block_array(writable)

    def inherit(self) -> None:
        """In a forked child: the parent made it, and the parent's page faults were not ours."""
        self.made_here = False
        self._touched.clear()

    def private(self) -> NDArray[np.uint8]:
        """The bytes of the block, writable, with changes that nobody else sees."""
        return self._segment.block_private()

    def require_unused(self) -> None:
        """BufferError when arrays over the block are alive in this process."""
        with _lock:  # another thread may close it
            alive = 0 if self.closed else self._segment.own_pins()
        if alive:
            raise BufferError(
                f"block {self.name!r} has {alive} live array(s) in this process; drop them "
                "first, or close without strict=True and they stay valid"
            )

    def close(self, strict: bool = False) -> None:
        """Give the block back, and remove it if it was made here; dropping it does the same.

        OSError when the file cannot be removed, and with `strict` BufferError when arrays over the
        block are alive in this process: nothing was done.
        """
        with _lock:  # another thread may close it too
            if not self.closed:
                if strict:
                    self.require_unused()
                if self.made_here:
                    self._segment.block_remove()
                self._segment.close()
            _recent.pop(self.key, None)
            _known.pop(self.key, None)


def make(
    prefix: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    source: NDArray[Any] | None,
    mode: int,
    directory: str | os.PathLike[str] | None,
) -> Block:
    """Make a block with a copy of `source` (None: zeros). ValueError, OSError, MemoryError."""
    text = encode_dtype(dtype)
    size = bytes_of(shape, dtype)
    if size > _LARGEST:
        raise _too_large(shape, dtype, size, directory)
    _core.guard_signals()
    _finalize_with_multiprocessing()
    segment = _core.Segment(
        _core.block_name(prefix),
        exclusive=True,
        owned=True,
        block=True,
        dtype=text,
        itemsize=dtype.itemsize,
        chunk_size=max(size, 1),
        stats_capacity=1,
        mode=mode,
        directory=directory,
    )
    block = Block(segment, True)
    try:
        segment.bind_dtype(dtype)
        _fill(segment, shape, source)
    except BaseException:
        with contextlib.suppress(Exception):  # and dropped, it tries once more
            block.close()
        raise
    with _lock:
        _known[block.key] = block
    made_one()
    return block


def _too_large(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    size: int,
    directory: str | os.PathLike[str] | None,
) -> OSError:
    where = directory_of(directory)
    disk = os.statvfs(where)
    return OSError(
        errno.EFBIG,
        f"an array of shape {shape} and dtype {dtype} needs {size} bytes; a block has at most "
        f"{_LARGEST}, and {disk.f_bavail * disk.f_frsize} are free in {where}: ask for less, or "
        "share it part by part",
    )


def _fill(segment: _core.Segment, shape: tuple[int, ...], source: NDArray[Any] | None) -> None:
    if source is not None and source.flags.c_contiguous:
        segment.append(source)
        return
    with segment.reserve(shape) as reservation:
        if source is not None:
            _core.move(reservation.array, source, threads=0)
        reservation.publish()


def attach(name: str, directory: str, mode: int) -> Block:
    """The block of this name, attached to if this process has not done so before.

    FileNotFoundError when it is gone, FormatError and the like as for any segment, ValueError when
    it is no block.
    """
    key = (directory, name)
    with _lock:
        block = _known.get(key)
        if block is None or block.gone:
            _forget_gone()
            block = Block(_open(name, directory, mode), False)
            _known[key] = block
        if not block.made_here:
            _recent[key] = block
            _recent.move_to_end(key)
            while len(_recent) > CACHED_BLOCKS:
                _recent.popitem(last=False)
        return block


class Deferred:
    """In place of a block that could not be attached to when a handle on it arrived.

    Each use tries again, and says why when it fails.
    """

    __slots__ = ("key", "mode")

    made_here = False
    closed = False

    def __init__(self, key: tuple[str, str], mode: int) -> None:
        self.key = key
        self.mode = mode

    @property
    def name(self) -> str:
        return self.key[1]

    def _block(self) -> Block:
        directory, name = self.key
        return attach(name, directory, self.mode)

    def flat(self, writable: bool, start: int, stop: int) -> NDArray[np.uint8]:
        return self._block().flat(writable, start, stop)

    def private(self) -> NDArray[np.uint8]:
        return self._block().private()

    def require_unused(self) -> None:
        """As `Block.require_unused`, for arrays made by way of a later attachment."""
        block = _known.get(self.key)
        if block is not None:
            block.require_unused()

    def close(self, strict: bool = False) -> None:
        """Nothing is held."""


def attach_or_defer(name: str, directory: str, mode: int) -> Block | Deferred:
    """attach(), or what raises its errors at each use."""
    try:
        return attach(name, directory, mode)
    except (OSError, MemoryError, RuntimeError, ValueError):
        return Deferred((directory, name), mode)


def _open(name: str, directory: str, mode: int) -> _core.Segment:
    try:
        segment = _core.Segment(name, create=False, directory=directory, mode=mode)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno,
            f"block {name!r} is gone: the process that made it has closed it or ended; it must "
            "keep its handle until those who receive it are done",
        ) from None
    if not segment.block:
        segment.close()
        raise ValueError(f"segment {name!r} is no block; attach to it with SharedVector")
    return segment


def _forget_gone() -> None:
    """Drop what others have removed; its memory goes with the last array over it."""
    for key, block in list(_known.items()):
        if not block.made_here and block.gone:
            _recent.pop(key, None)
            _known.pop(key, None)


def made() -> list[tuple[str, int]]:
    """Name and bytes of the blocks that this process made and has not removed."""
    with _lock:
        return [(b.name, b.bytes) for b in _known.values() if b.made_here and not b.closed]


def attached() -> list[tuple[str, int]]:
    """Name and bytes of other processes' blocks that this process has mapped."""
    with _lock:
        return [(b.name, b.bytes) for b in _known.values() if not b.made_here and not b.closed]


def _remove_made() -> None:
    for block in list(_known.values()):
        if block.made_here:
            try:
                block.close()
            except Exception as error:  # after a change of the user id, say; the others go
                logger = import_module("logging").getLogger("sharedvector")
                logger.warning("block %r could not be removed at exit: %s", block.name, error)


def _at_exit() -> None:
    """Waits until multiprocessing has joined the children, who may be about to use the blocks."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or util.is_exiting():
        _remove_made()
    else:
        util.Finalize(None, _remove_made, exitpriority=_AFTER_CHILDREN)


def _finalize_with_multiprocessing() -> None:
    """A child of multiprocessing ends without running atexit; it has exit functions of its own."""
    global _finalizing_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _finalizing_pid == os.getpid():
        return
    from multiprocessing.util import Finalize

    Finalize(None, _remove_made, exitpriority=_AFTER_CHILDREN)
    _finalizing_pid = os.getpid()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it
    for block in list(_known.values()):
        block.inherit()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)

tell_holdings(made, attached)

if os.environ.get(WARN_ABOVE_ENV):
    from sharedvector.monitoring import warn_above  # noqa: F401 - which reads it when imported
