"""SharedVector: a handle on a segment, its slots filled and read as NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from os import PathLike
from typing import Any, Self

from numpy.typing import NDArray

from sharedvector import _core
from sharedvector._core import (
    ArraySizeError,
    DataModifiedError,
    FormatError,
    InUseError,
    MemoryError,
    OutOfMemoryError,
    PoolStalledError,
    Reservation,
)
from sharedvector.dtypes import DTypeLike, as_dtype, decode_dtype, encode_dtype

__all__ = [
    "ArraySizeError",
    "DataModifiedError",
    "FormatError",
    "InUseError",
    "MemoryError",
    "OutOfMemoryError",
    "PoolStalledError",
    "Reservation",
    "SharedVector",
    "decode_dtype",
    "encode_dtype",
    "remove_shared_memory",
]

_RETIRED_REASONS = {
    _core.RETIRED_NO: "",
    _core.RETIRED_CLOSED: "its owner closed it",
    _core.RETIRED_OWNER_DIED: "its owner died",
    _core.RETIRED_PRODUCER: "its producer failed and was given up",
}


class SharedVector(_core.Segment):
    """A vector of array chunks in shared memory, shared by name with other processes.

    Args:
        name: the segment's name; a file of this name appears in /dev/shm.
        chunk_size: bytes that one slot holds.
        max_memory_size: bytes that the slots may take in all; gives their number.
        dtype: dtype of every array; None means float32 for a new segment, and whatever an existing
            one has.
        create: make the segment when it does not exist; otherwise FileNotFoundError.
        stats_capacity: reads-at-replacement samples to keep; 0 means two refresh cycles.
        slot_count: number of slots, instead of max_memory_size.
        spare_buffers: buffers beyond the slots, so that writers need not wait for readers.
        mode: permission bits of the file.
        directory: a tmpfs to use instead of SHAREDVECTOR_SHM_DIR or /dev/shm.
        generation: token of a new segment; on attach any other one is refused.
        exclusive: make it, or FileExistsError.
        replace: make it; a segment or broken file of that name is unlinked first.
        owned: make it a pool, whose life is tied to this process.
        expect_inode: on attach, refuse any other file.
        max_rows: processes that may be attached at once.
        processes: processes, beside this one, that can attach even when the file system is full:
            their memory is reserved with the segment. None: 63, fewer for many tiny chunks.
        timeout: seconds to wait for another process that is making or clearing the segment.

    On attach the sizes, mode of creation, max_rows and spare_buffers are those of the segment.

    Raises:
        ValueError: a bad name, a size of 0 or beyond the limit, no slot fits, or the segment that
            exists has another dtype, slot_count, generation or inode than asked for (both are
            named).
        TypeError: a size or count that is no integer from 0 to 2**64 - 1: -1, too.
        FileNotFoundError: there is none, and create is False.
        FormatError: the file of that name is no usable segment.
        OSError: the memory cannot be reserved (errno ENOSPC), or the system refuses.
        InUseError: max_rows processes are attached.
        PoolBusyError: `replace`, and the segment is a pool whose owner lives.
        TimeoutError: another process held the name for longer than `timeout`.
    """

    def __init__(
        self,
        name: str,
        chunk_size: int = 1 << 20,
        max_memory_size: int = 10 << 20,
        dtype: DTypeLike = None,
        create: bool = True,
        stats_capacity: int = 0,
        slot_count: int | None = None,
        spare_buffers: int = 2,
        mode: int = 0o600,
        *,
        directory: str | PathLike[str] | None = None,
        generation: str | None = None,
        exclusive: bool = False,
        replace: bool = False,
        owned: bool = False,
        expect_inode: int = 0,
        max_rows: int = 1024,
        timeout: float = 5.0,
        processes: int | None = None,
    ) -> None:
        if not create and (exclusive or replace):
            raise ValueError(
                f"{'exclusive' if exclusive else 'replace'}=True makes a segment and create=False "
                f"only attaches to {name!r}: leave one of them out"
            )
        wanted = None if dtype is None else as_dtype(dtype)
        try:
            super().__init__(
                name,
                create=create,
                exclusive=exclusive,
                replace=replace,
                dtype=None if wanted is None else encode_dtype(wanted),
                itemsize=0 if wanted is None else wanted.itemsize,
                chunk_size=chunk_size,
                max_memory_size=max_memory_size,
                slot_count=slot_count,
                spare_buffers=spare_buffers,
                max_rows=max_rows,
                stats_capacity=stats_capacity,
                mode=mode,
                directory=directory,
                generation=generation,
                expect_inode=expect_inode,
                owned=owned,
                timeout=timeout,
                processes=0 if processes is None else processes,
            )
        except TypeError:
            _check_numbers(
                chunk_size=chunk_size,
                max_memory_size=max_memory_size,
                slot_count=slot_count,
                spare_buffers=spare_buffers,
                max_rows=max_rows,
                stats_capacity=stats_capacity,
                mode=mode,
                processes=processes,
            )
            raise
        try:
            self.bind_dtype(decode_dtype(self.dtype_text) if wanted is None else wanted)
        except BaseException:
            self.close()
            raise

    @property
    def dtype(self) -> str:
        """The dtype as text: "float32", ">i2", "bfloat16", or a literal for structured ones."""
        return self.dtype_text

    @property
    def has_stats(self) -> bool:
        """Does the segment keep statistics? Always True."""
        return True

    @property
    def retired(self) -> bool:
        """Is this a pool that nobody refreshes any more? Its chunks stay readable."""
        return self.retired_get() != _core.RETIRED_NO

    @property
    def retired_reason(self) -> str:
        """Why the pool is no longer refreshed; empty while it is, and for plain vectors."""
        reason = self.retired_get()
        return _RETIRED_REASONS.get(reason, f"reason {reason} of a newer version")

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Yield get(0), get(1), ... up to the size at that moment."""
        index = 0
        while index < len(self):
            yield self.get(index)
            index += 1

    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__} {self.name!r} closed>"
        return (
            f"<{type(self).__name__} {self.name!r} {self.dtype} "
            f"{len(self)}/{self.capacity} slots of {self.chunk_size} bytes>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: whoever loads it attaches to this very segment, or fails.

        FileNotFoundError when it is gone, ValueError when another one has its name.
        """
        if self.closed:
            raise ValueError(f"the handle on segment {self.name!r} is closed; nothing to pickle")
        return (
            _attach,
            (type(self), self.name, self.directory, self.inode, self.generation, self.mode),
            self.__dict__ or None,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        return self


def _check_numbers(**numbers: object) -> None:
    """Raise TypeError for the first that a segment cannot have; None is left to its default."""
    for what, value in numbers.items():
        try:
            if value is None or 0 <= operator.index(value) < 1 << 64:  # type: ignore[arg-type]
                continue
        except TypeError:
            pass
        raise TypeError(f"{what} should be an integer from 0 to 2**64 - 1, got {value!r}")


def _attach(
    cls: type[SharedVector], name: str, directory: str, inode: int, generation: str, mode: int
) -> SharedVector:
    """Make a handle of class `cls` on exactly this segment, without running cls.__init__."""
    vector = cls.__new__(cls)
    SharedVector.__init__(
        vector,
        name,
        create=False,
        directory=directory,
        expect_inode=inode,
        generation=generation,
        mode=mode,
    )
    return vector


def remove_shared_memory(name: str, directory: str | PathLike[str] | None = None) -> None:
    """Remove the name of a segment, and its memory as soon as nobody is attached any more.

    Those attached keep their data. A missing name is no error.

    Args:
        name: of the segment.
        directory: where it is; None takes ``$SHAREDVECTOR_SHM_DIR``, else /dev/shm.

    Raises:
        ValueError: a segment cannot have this name.
        OSError: the system refuses.
    """
    _core.remove(name, directory)
