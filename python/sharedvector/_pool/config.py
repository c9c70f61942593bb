"""The configuration of a pool: what it is made of and how it is fed; all is checked here."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from sharedvector._common import duration, integer
from sharedvector._producer import optional
from sharedvector.loaders import resolve_numpy_dtype

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

__all__ = ["PRODUCER_KINDS", "PoolConfig", "ProducerKind", "ProducerSpec"]

ProducerKind = Literal["auto", "process", "thread"]
PRODUCER_KINDS = get_args(ProducerKind)
DEFAULT_DTYPE = "float32"  # of a pool whose loader does not tell its dtype


def _count(what: str, value: Any) -> int:
    return integer(what, value, 1)


def _kind(what: str, value: Any) -> str:
    if value not in PRODUCER_KINDS:
        raise ValueError(f"{what} should be one of {PRODUCER_KINDS}, got {value!r}")
    return str(value)


def _dtype(what: str, value: Any) -> Any:
    resolve_numpy_dtype(value)
    return value


_RULES: dict[str, Callable[[str, Any], Any]] = {
    "source_size": _count,
    "slot_count": _count,
    "chunk_size": _count,
    "num_producers": _count,
    "spare_buffers": _count,
    "processes": _count,
    "sleep_seconds": duration,
    "producer_join_timeout": duration,
    "producer_kind": _kind,
    "dtype": _dtype,
}


def check_loader(loader: Any) -> None:
    """Raise TypeError for what cannot load."""
    if not callable(loader) and optional(loader, "load_into") is None:
        raise TypeError(
            "loader should be called with a source's number, as sharedvector.loaders.Loader "
            f"describes, got {loader!r}"
        )


@dataclass(frozen=True)
class ProducerSpec:
    """How to feed a pool, for the process that becomes its owner.

    Attributes:
        loader: gives the chunks of a source. It is sent to the producers by pickle; what belongs
            to the main program goes by cloudpickle.
        chunk_size: largest chunk, in bytes; None: what the loader's ``chunk_size`` says.
        source_size: how many sources there are; None: ``len(loader)``.
        dtype: of the chunks; None: what the loader's ``chunk_dtype`` says, else float32.
        num_producers: workers; not more than there are slots.
        sleep_seconds: pause after a source that gave nothing; while nobody reads, one chunk is
            replaced every ten pauses.
        producer_join_timeout: seconds that workers may take to end before they are killed.
        spare_buffers: buffers beyond the slots; None: one per worker (as many as the loader's
            ``buffers_at_once``, if it has that), at most an eighth of the slots.
        producer_kind: "process": each worker is a process; "thread": all are threads of one, each
            with a loader of its own; "auto": threads if the loader says so by a true
            ``releases_gil``, else processes.
        processes: attached processes (training processes and their workers) whose memory is
            reserved with the pool, so that a full file system keeps none of them away; None: about
            60, fewer for many tiny chunks.

    ``chunk_size`` and ``dtype`` are never None once it is made.

    Raises:
        ValueError: a value that no pool can have.
        TypeError: ``loader`` is none, a count is no integer, a time no number, or neither
            ``chunk_size`` nor the loader says how large chunks are.
    """

    loader: Loader
    chunk_size: int | None = None
    source_size: int | None = None
    dtype: str | None = None
    num_producers: int = 4
    sleep_seconds: float = 0.01
    producer_join_timeout: float = 5.0
    spare_buffers: int | None = None
    producer_kind: ProducerKind = "auto"
    processes: int | None = None

    def __post_init__(self) -> None:
        """Check every field, make its numbers plain, and ask the loader for what was not given."""
        check_loader(self.loader)
        if self.dtype is None:
            told = optional(self.loader, "chunk_dtype")
            object.__setattr__(self, "dtype", DEFAULT_DTYPE if told is None else told)
        if self.chunk_size is None:
            object.__setattr__(self, "chunk_size", _chunk_size_of(self.loader))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _RULES and not (value is None and field.default is None):
                object.__setattr__(self, field.name, _RULES[field.name](field.name, value))

    def resolve_source_size(self) -> int:
        """Return ``source_size``, or the loader's length. TypeError when it has none."""
        if self.source_size is not None:
            return self.source_size
        if not hasattr(type(self.loader), "__len__"):
            raise TypeError(
                f"loader should have a length, the number of its sources, got {self.loader!r}; "
                "give it __len__, or pass source_size="
            )
        return len(self.loader)


def _chunk_size_of(loader: Any) -> int:
    size = getattr(loader, "chunk_size", None)
    if size is None:
        raise TypeError(
            "chunk_size is missing, the bytes of the largest chunk, and the loader "
            f"{type(loader).__name__} does not tell: pass chunk_size=, or give the loader an "
            "attribute chunk_size"
        )
    return integer(f"chunk_size of the loader {type(loader).__name__}", size, 1)


@dataclass(frozen=True)
class PoolConfig(ProducerSpec):
    """What a pool is made of and how it is fed: a `ProducerSpec` and what its owner adds.

    Attributes:
        slot_count: chunks to keep in shared memory.
        log_level: of the workers' log.

    Raises:
        ValueError: as `ProducerSpec`, or a bad ``buffers_at_once`` of the loader.
        TypeError: as `ProducerSpec`, or the loader has no length and ``source_size`` is None.
    """

    _: dataclasses.KW_ONLY
    chunk_size: int = None  # type: ignore[assignment]  # an int once it is made
    source_size: int = None  # type: ignore[assignment]
    dtype: str = None  # type: ignore[assignment]
    slot_count: int
    log_level: int = logging.INFO

    def __post_init__(self) -> None:
        """Check every field, and the loader's ``buffers_at_once``."""
        super().__post_init__()
        object.__setattr__(self, "source_size", self.resolve_source_size())
        at_once = optional(self.loader, "buffers_at_once", 1)
        try:
            integer("buffers_at_once", at_once, 1)
        except (TypeError, ValueError):
            raise ValueError(
                f"the loader's buffers_at_once should be an integer from 1 on, got {at_once!r}"
            ) from None

    @classmethod
    def of(cls, spec: ProducerSpec, slot_count: int, log_level: int) -> PoolConfig:
        """The configuration of a pool that is fed as a `ProducerSpec` says."""
        settings = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        return cls(**settings, slot_count=slot_count, log_level=log_level)

    @property
    def workers(self) -> int:
        """How many workers run: not more than there are slots."""
        return min(self.num_producers, self.slot_count)

    @property
    def threads(self) -> int:
        """How many of the workers share a process: all, or each has its own."""
        kind: str = self.producer_kind
        if kind == "auto":
            kind = "thread" if optional(self.loader, "releases_gil", False) else "process"
        return self.workers if kind == "thread" else 1

    @property
    def attached(self) -> int | None:
        """Processes beside the owner whose memory is reserved: supervisor and workers, too."""
        return None if self.processes is None else self.processes + 1 + self.workers

    @property
    def buffers_at_once(self) -> int:
        """How many buffers a worker fills at the same time, as the loader says."""
        return integer("buffers_at_once", optional(self.loader, "buffers_at_once", 1))

    @property
    def spares(self) -> int:
        """Buffers beyond the slots."""
        if self.spare_buffers is not None:
            return self.spare_buffers
        wanted = self.num_producers * self.buffers_at_once
        return min(wanted, max(1, self.slot_count // 8))

    def for_workers(self) -> dict[str, Any]:
        """What of it the supervisor and its workers get to know, as plain values."""
        return {
            "slot_count": self.slot_count,
            "source_size": self.source_size,
            "num_producers": self.workers,
            "threads": self.threads,
            "sleep_seconds": self.sleep_seconds,
            "join_timeout": self.producer_join_timeout,
            "log_level": self.log_level,
        }
