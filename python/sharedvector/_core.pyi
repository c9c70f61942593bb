"""C nouns and verbs of sharedvector; no policy. The same verbs are described in ``sharedvector.h``.

Every call on a closed handle raises ``ValueError``. Slot indices may be negative and may be any
object with ``__index__``; others raise ``TypeError``, and numbers out of range ``IndexError``.
"""

import builtins
import sys
from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import disjoint_base

__version__: str
FORMAT_VERSION: tuple[int, int]
MAX_NDIM: int
MAX_META: int
MAX_NAME_BYTES: int
DTYPE_BYTES: int
RETIRED_NO: int
RETIRED_CLOSED: int
RETIRED_OWNER_DIED: int
RETIRED_PRODUCER: int
COUNTER_SOURCE: int
COUNTER_LOADS: int
COUNTER_ERRORS: int
COUNTER_CURSOR: int
COUNTER_EMPTY: int
COUNTER_RESTARTS: int
COUNTER_IDLE: int
COUNTER_DIRECT: int
COUNTER_ZARR: int
COUNTER_TENSORSTORE: int
COUNTER_MISSING: int
COUNTER_HELD_MS: int

class MemoryError(builtins.MemoryError): ...
class OutOfMemoryError(builtins.MemoryError): ...
class ArraySizeError(ValueError, RuntimeError): ...
class InUseError(RuntimeError): ...
class DataModifiedError(RuntimeError): ...
class FormatError(RuntimeError): ...
class PoolStalledError(RuntimeError): ...
class PoolBusyError(RuntimeError): ...

@final
class Reservation:
    """A free buffer that is being filled; leaving the ``with`` block without publish cancels.

    ``publish`` and ``cancel`` make ``array`` read-only. Views that were taken from it before
    (slices, reshaped arrays, memoryviews) stay writable: do not write through them any more, as
    the buffer may hold another chunk by then.
    """

    @property
    def array(self) -> NDArray[Any]:
        """Writable array over the buffer; ValueError once it is published or cancelled."""

    @property
    def closed(self) -> bool: ...
    def publish(
        self,
        slot: int | None = None,
        meta: ArrayLike | None = None,
        *,
        source_index: int = 0,
        source_epoch: int = 0,
    ) -> int: ...
    def publish_turn(
        self,
        slots: tuple[int, int, int] | None = None,
        meta: ArrayLike | None = None,
        *,
        source_index: int = 0,
        source_epoch: int = 0,
        unread: bool = False,
        timeout: float = 0.0,
    ) -> int | None: ...
    def cancel(self) -> None:
        """Give the buffer back unused; harmless when repeated.

        ``array`` becomes read-only; views taken from it stay writable and must not be used.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None: ...

@final
class View:
    """A pinned chunk: base of the arrays that ``get`` returns."""

    @property
    def slot(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def source_index(self) -> int: ...
    @property
    def source_epoch(self) -> int: ...
    @property
    def published_ns(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@disjoint_base
class Segment:
    """A handle on an attached segment."""

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        exclusive: bool = False,
        replace: bool = False,
        dtype: str | None = None,
        itemsize: int = 0,
        chunk_size: int = ...,
        max_memory_size: int = ...,
        slot_count: int | None = None,
        spare_buffers: int = 2,
        max_rows: int = 1024,
        stats_capacity: int = 0,
        mode: int = 0o600,
        directory: str | PathLike[str] | None = None,
        generation: str | None = None,
        expect_inode: int = 0,
        owned: bool = False,
        timeout: float = 5.0,
        block: bool = False,
        processes: int = 0,
    ) -> None: ...
    def bind_dtype(self, dtype: np.dtype[Any], /) -> None: ...
    # reading
    def get(self, index: int) -> NDArray[Any]: ...
    def __getitem__(self, index: int, /) -> NDArray[Any]: ...
    def get_meta(self, index: int) -> NDArray[np.float64]: ...
    def get_with_meta(self, index: int) -> tuple[NDArray[Any], NDArray[np.float64]]: ...
    def gather(
        self,
        indices: ArrayLike,
        out: NDArray[Any] | None = None,
        crop: tuple[ArrayLike, Sequence[int]] | None = None,
        dtype: DTypeLike | None = None,
        scale: float | None = None,
        offset: float | None = None,
        flip: ArrayLike | None = None,
    ) -> NDArray[Any]: ...
    def gather_with_meta(
        self,
        indices: ArrayLike,
        out: NDArray[Any] | None = None,
        crop: tuple[ArrayLike, Sequence[int]] | None = None,
        dtype: DTypeLike | None = None,
        scale: float | None = None,
        offset: float | None = None,
        flip: ArrayLike | None = None,
    ) -> tuple[NDArray[Any], list[NDArray[np.float64]]]: ...
    # writing
    def append(
        self,
        array: NDArray[Any],
        meta: ArrayLike | None = None,
        *,
        timeout: float = 1.0,
        source_index: int = 0,
        source_epoch: int = 0,
    ) -> None: ...
    def append_slot(
        self,
        array: NDArray[Any],
        meta: ArrayLike | None = None,
        *,
        timeout: float = 1.0,
        source_index: int = 0,
        source_epoch: int = 0,
    ) -> int:
        """As ``append``, and return the number of the slot that was filled."""

    def replace(
        self,
        index: int,
        array: NDArray[Any],
        meta: ArrayLike | None = None,
        *,
        refuse: bool = True,
        timeout: float = 1.0,
        source_index: int = 0,
        source_epoch: int = 0,
    ) -> None: ...
    def reserve(
        self,
        shape: int | Sequence[int],
        dtype: np.dtype[Any] | str | None = None,
        *,
        timeout: float = 1.0,
    ) -> Reservation: ...
    def count_blocked(self, count: int = 1) -> None: ...
    # statistics
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def get_chunk_pointer(self, index: int) -> int: ...
    def get_chunk_ref_count(self, index: int) -> int: ...
    def get_chunk_shape(self, index: int, /) -> tuple[int, ...]: ...
    def get_chunk_read_count(self, index: int) -> int: ...
    def get_chunk_write_count(self, index: int) -> int: ...
    def get_chunk_last_reads(self, index: int) -> int: ...
    def read_counts(self) -> NDArray[np.uint64]: ...
    def write_counts(self) -> NDArray[np.uint64]: ...
    def last_reads(self) -> NDArray[np.uint64]: ...
    def read_samples(self) -> NDArray[np.uint32]: ...
    def reset_stats(self) -> None: ...
    @property
    def stats(self) -> dict[str, int]: ...
    def counter_add(self, counter: int, amount: int = 1) -> int: ...
    def wait_filled(self, count: int, timeout: float | None = None) -> None: ...
    def wait_changed(self, slot: int, version: int, timeout: float | None = None) -> int: ...
    def refresh_next(self) -> tuple[int, bool]: ...
    # processes
    def rows(self) -> list[dict[str, Any]]: ...
    def recover(self) -> int: ...
    def owner_live(self) -> bool: ...
    def retired_get(self) -> int: ...
    def retire(self, reason: int, /) -> None: ...
    @property
    def ref_count(self) -> int: ...
    # facts; valid after close() too, except free_memory and ref_count
    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> str: ...
    @property
    def generation(self) -> str: ...
    @property
    def inode(self) -> int: ...
    @property
    def dtype_text(self) -> str: ...
    @property
    def numpy_dtype(self) -> np.dtype[Any]: ...
    @property
    def mode(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def spare_buffers(self) -> int: ...
    @property
    def stats_capacity(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def free_memory(self) -> int: ...
    @property
    def owned(self) -> bool: ...
    @property
    def block(self) -> bool: ...
    # blocks
    def block_array(
        self, writable: bool = False, start: int = 0, stop: int = 0
    ) -> NDArray[np.uint8]: ...
    def block_private(self) -> NDArray[np.uint8]: ...
    def block_remove(self) -> None: ...
    def own_pins(self) -> int: ...
    # life
    def check(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None: ...

@final
class Owner:
    """The lock that makes this process the owner of a pool."""

    def __init__(
        self,
        name: str,
        lock_dir: str | PathLike[str] | None = None,
        generation: str | None = None,
        *,
        fd: int | None = None,
    ) -> None: ...
    @property
    def held(self) -> bool: ...
    @property
    def generation(self) -> str: ...
    def write_ready(self) -> None: ...
    def clear_ready(self) -> None: ...
    def release(self) -> None: ...

@final
class FileMap:
    """Part of a file, as memory: read-only, through the buffer protocol."""

    @property
    def whole(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def check_name(name: str, /) -> None: ...
def remove(name: str, directory: str | PathLike[str] | None = None) -> None: ...
def remove_exact(
    name: str, inode: int, generation: str, directory: str | PathLike[str] | None = None
) -> None: ...
def probe_owner(
    name: str, lock_dir: str | PathLike[str] | None = None
) -> tuple[bool, str, int]: ...
def read_ready(name: str, lock_dir: str | PathLike[str] | None = None) -> str: ...
def list_segments(directory: str | PathLike[str] | None = None) -> list[dict[str, Any]]: ...
def block_name(prefix: str, /) -> str: ...
def sweep(
    directory: str | PathLike[str] | None = None,
    lock_dir: str | PathLike[str] | None = None,
    prefix: str | None = None,
    dry_run: bool = False,
) -> list[dict[str, Any]]: ...
def memory_free() -> tuple[int | None, str, int | None]: ...
def guard_signals() -> None: ...
def guard_file_maps() -> None: ...
def map_file(fd: int, offset: int, size: int, /) -> FileMap | None: ...
def copy(destination: NDArray[Any], source: NDArray[Any], threads: int = 0) -> None: ...
def move(destination: NDArray[Any], source: NDArray[Any], threads: int = 1) -> None: ...
