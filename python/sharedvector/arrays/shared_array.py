"""Plain arrays in shared memory, for the workers of a process pool.

One process makes a block with :func:`share` or :meth:`SharedArray.empty` and sends the handle, or
slices of it, to others: they are pickled as a name and bounds, and read without a copy. Only the
process that made a block removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sharedvector.arrays import attachments, layout
from sharedvector.dtypes import DTypeLike, as_dtype, encode_dtype
from sharedvector.monitoring import DEFAULT_DIRECTORY

__all__ = ["SharedArray", "share"]


class SharedArray(layout.Layout):
    """A handle on an array in shared memory, or on a part of one.

    Handles are made by :func:`share`, :meth:`empty` and :meth:`zeros`; basic indexing gives handles
    on parts. A handle is pickled in about 100 bytes, and whoever loads it sees the same memory;
    each process maps a block once, and keeps the 64 blocks that it used last. When the block is
    gone or cannot be opened, loading a handle works, and using it is a FileNotFoundError or other
    OSError.

    The process that made the block may write to it. Those who receive the handle get read-only
    arrays, unless it was made with ``writable=True`` or by :func:`split`. Nothing orders what
    several processes write to one place at once. A handle is no array: it has no arithmetic, and
    two are equal only when they are one object; ``handle.array`` is the array. ``len()``,
    ``bool()`` and iteration are as NumPy's. ``copy.copy`` and ``copy.deepcopy`` give a further
    handle on the same memory, whose ``close()`` removes nothing; :func:`share` copies the data.

    The block is removed when the handle that made it is closed, leaves its ``with`` statement, or
    is dropped together with all its parts; also when the interpreter exits, and when SIGTERM or
    SIGHUP end the process and nobody handles them. After ``kill -9``, :func:`sweep` does it. Arrays
    that are alive stay valid, here and in other processes.
    """

    __slots__ = ("__weakref__", "_block", "_closed", "_mode", "_root", "_writable")
    _block: attachments.Block | attachments.Deferred
    _closed: bool
    _mode: int
    _root: bool  # closing it removes the block
    _writable: bool  # by those who receive the handle

    def __init__(self) -> None:
        raise TypeError("make a SharedArray with share(array), SharedArray.empty() or .zeros()")

    @classmethod
    def _make(
        cls,
        block: attachments.Block | attachments.Deferred,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        offset: int,
        writable: bool,
        mode: int,
        root: bool = False,
    ) -> Self:
        self = object.__new__(cls)
        self._block = block
        self._dtype = dtype
        self._shape = shape
        self._strides = strides
        self._offset = offset
        self._writable = writable
        self._mode = mode
        self._root = root
        self._closed = False
        return self

    @classmethod
    def empty(
        cls,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: DTypeLike = float,
        *,
        prefix: str = "block",
        writable: bool = False,
        mode: int = 0o600,
        directory: str | PathLike[str] | None = None,
    ) -> Self:
        """Make an array in shared memory, to be filled in place; it holds zeros.

        Args:
            shape: an int or a tuple of int, at most 16 of them.
            dtype: any dtype of a fixed size without Python objects.
            prefix: part of the block's name, ``sv-<uid>-<prefix>-<random>``; letters, digits, "_",
                "-" and ".", at most 64.
            writable: whether those who receive the handle may write.
            mode: permission bits of the file.
            directory: a tmpfs to use instead of SHAREDVECTOR_SHM_DIR or /dev/shm.

        Raises:
            ValueError: shape, dtype, prefix or mode cannot be used.
            OSError: the memory cannot be reserved (errno ENOSPC), a block cannot be that large
                (EFBIG), or the system refuses.
        """
        found = as_dtype(dtype)
        lengths = layout.shape_of(shape)
        block = attachments.make(prefix, lengths, found, None, mode, directory)
        return cls._make(block, found, lengths, None, 0, bool(writable), mode, root=True)

    @classmethod
    def zeros(
        cls,
        shape: SupportsIndex | Iterable[SupportsIndex],
        dtype: DTypeLike = float,
        *,
        prefix: str = "block",
        writable: bool = False,
        mode: int = 0o600,
        directory: str | PathLike[str] | None = None,
    ) -> Self:
        """Make an array of zeros; the same as :meth:`empty`, as fresh shared memory holds zeros."""
        return cls.empty(
            shape, dtype, prefix=prefix, writable=writable, mode=mode, directory=directory
        )

    # ---- facts -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the block, a file in /dev/shm."""
        return self._block.name

    @property
    def writable(self) -> bool:
        """Whether ``array`` can be written in this process."""
        return self._writable or self._block.made_here

    @property
    def closed(self) -> bool:
        """Whether this handle, or its block, was closed in this process."""
        return self._closed or self._block.closed

    def __bool__(self) -> bool:
        return bool(self.array)

    def __contains__(self, value: Any) -> bool:
        return value in self.array

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over an array without axes; its one element is handle[()]")
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "writable" if self.writable else "read-only"
        return f"<SharedArray {self.name!r} {self._dtype} {self._shape} {state}>"

    # ---- data ------------------------------------------------------------------------------

    @property
    def array(self) -> NDArray[Any]:
        """The data as a NumPy array, without a copy: a new object over the same memory each time.

        It stays valid for as long as it lives, whatever becomes of handle, block and maker.

        Raises:
            ValueError: the handle is closed.
            FileNotFoundError: the process that made the block has removed it.
            OSError: a received handle's block cannot be opened or mapped.
        """
        self._require_open()
        stop = self._offset + self.nbytes if self._strides is None else self._offset
        return self._over(self._block.flat(self.writable, self._offset, stop))

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError(f"the handle on block {self.name!r} is closed; its data are not shown")

    def _over(self, flat: NDArray[np.uint8]) -> NDArray[Any]:
        # NumPy refuses shape, offset and strides that leave the bytes of the block.
        return np.ndarray(self._shape, self._dtype, flat, self._offset, self._strides)

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.array
        if dtype is not None and np.dtype(dtype) != self._dtype:
            if copy is False:
                raise ValueError(f"a change from {self._dtype} to {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **request: Any) -> Any:
        """Share the data by DLPack, without a copy.

        What is written to a handle that is not writable stays private to that one tensor: many
        consumers cannot mark memory as read-only.
        """
        if self.writable:
            return self.array.__dlpack__(**request)
        self._require_open()
        return self._over(self._block.private()).__dlpack__(**request)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    if not TYPE_CHECKING:  # it would hide misspelled names from type checkers

        def __getattr__(self, name: str) -> Any:
            hint = f"; its array has: use .array.{name}" if hasattr(np.ndarray, name) else ""
            raise AttributeError(
                f"a SharedArray has no attribute {name!r}{hint}", name=name, obj=self
            )

    def __getitem__(self, key: Any) -> Any:
        """A handle on a part; the value of one element; for arrays of indices a copy, as in NumPy.

        Integers, slices, ``...``, ``None`` and names of fields give handles, unless nothing but one
        element is left. Errors as in NumPy, and those of ``array``.
        """
        array = self.array
        part = array[key]
        if not isinstance(part, np.ndarray):
            return part
        start = self._offset
        if part.size:
            if not np.may_share_memory(part, array):
                return part
            start += layout.address(part) - layout.address(array)
        elif not layout.is_basic(key):
            return part
        strides = None if part.flags.c_contiguous else part.strides
        return self._make(
            self._block, part.dtype, part.shape, strides, start, self._writable, self._mode
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[key] = value

    def _part(self, low: int, high: int, writable: bool) -> Self:
        """The part ``[low:high]`` of axis 0, with what those may do who receive it."""
        part = self[low:high]
        part._writable = writable
        return part  # type: ignore[no-any-return]

    # ---- life ------------------------------------------------------------------------------

    def close(self, strict: bool = False) -> None:
        """Close the handle; for the one that made the block, remove the block. Repeatable.

        Threads may call it at once: it returns when the block is removed, whoever removes it.

        Arrays that are alive stay valid; ``array`` of this handle, and of its parts once the block
        is removed, is a ValueError from then on.

        Args:
            strict: refuse while arrays over the block, of whatever handle, are alive in this
                process.

        Raises:
            BufferError: ``strict``, and there are some. Nothing was done.
            OSError: the file cannot be removed.
        """
        if self._root and self._block.made_here:
            self._block.close(strict)
        elif strict and not self.closed:
            self._block.require_unused()
        self._closed = True

    def __enter__(self) -> Self:
        if self.closed:
            raise ValueError(f"the handle on block {self.name!r} is closed")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __copy__(self) -> Self:
        """A further handle on the same memory. ValueError when this one is closed."""
        self._require_open()
        facts = (self._dtype, self._shape, self._strides, self._offset, self._writable, self._mode)
        return self._make(self._block, *facts)

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as name and bounds. ValueError when the handle is closed."""
        if self.closed:
            raise ValueError(
                f"the handle on block {self.name!r} is closed; nothing to pickle. Keep it open (or "
                "its with statement) until the tasks that take it are done"
            )
        directory, name = self._block.key
        rest: tuple[Any, ...] = (self._writable, self._offset, self._strides, directory, self._mode)
        defaults = (False, 0, None, DEFAULT_DIRECTORY, attachments.DEFAULT_MODE)
        while rest and rest[-1] == defaults[len(rest) - 1]:
            rest = rest[:-1]
        return (_attach, (name, encode_dtype(self._dtype), self._shape, *rest))


def _attach(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    writable: bool = False,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    directory: str = DEFAULT_DIRECTORY,
    mode: int = attachments.DEFAULT_MODE,
) -> SharedArray:
    """What a pickled handle is loaded with.

    A block that cannot be attached to is an error where the handle is used: raised here, it would
    end workers that are about to read their next task.
    """
    found = as_dtype(dtype)
    layout.check_part(shape, found.itemsize, offset, strides)
    block = attachments.attach_or_defer(name, directory, mode)
    return SharedArray._make(block, found, shape, strides, offset, bool(writable), mode)


def share(
    array: ArrayLike,
    *,
    prefix: str = "block",
    writable: bool = False,
    mode: int = 0o600,
    directory: str | PathLike[str] | None = None,
) -> SharedArray:
    """Copy an array into shared memory and return the handle; use it in a ``with`` statement.

    One copy, by several threads for large arrays. Arrays in C or Fortran order keep their order,
    others get C order. Arguments and errors as for :meth:`SharedArray.empty`.

    Args:
        array: a NumPy array, or anything that ``numpy.asarray`` takes.

    Raises:
        TypeError: a masked array, whose mask would be lost: share ``.filled(value)``.
    """
    source = layout.plain_array(array)
    turned = source.flags.f_contiguous and not source.flags.c_contiguous
    stored = source.T if turned else source
    lengths = layout.shape_of(stored.shape)
    block = attachments.make(prefix, lengths, stored.dtype, stored, mode, directory)
    strides = source.strides if turned else None
    return SharedArray._make(
        block, source.dtype, source.shape, strides, 0, bool(writable), mode, root=True
    )
