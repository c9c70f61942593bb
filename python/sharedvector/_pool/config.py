"""What a pool is made of, as its owner wants it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharedvector._common import duration, integer
from sharedvector._producer import optional
from sharedvector.loaders import resolve_numpy_dtype

if TYPE_CHECKING:
    from sharedvector.loaders import Loader

PRODUCER_KINDS = ("auto", "process", "thread")


def check_loader(loader: Any) -> None:
    """Raise TypeError for what cannot load."""
    if not callable(loader) and optional(loader, "load_into") is None:
        raise TypeError(
            "loader should be called with a source's number, as sharedvector.loaders.Loader "
            f"describes, got {loader!r}"
        )


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
    "join_timeout": lambda what, value: duration(f"producer_{what}", value),
    "producer_kind": _kind,
    "dtype": _dtype,
}


def settle(made: Any) -> None:
    """Check the fields of a dataclass that says how to feed a pool, and make its numbers plain.

    None stays where it is the default.

    Raises:
        ValueError: a value that no pool can have.
        TypeError: ``loader`` is none, a count is no integer, or a time no number.
    """
    check_loader(made.loader)
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if field.name in _RULES and not (value is None and field.default is None):
            object.__setattr__(made, field.name, _RULES[field.name](field.name, value))


@dataclass(frozen=True)
class Plan:
    """What a pool is made of and how it is fed.

    Raises:
        ValueError: a value that no pool can have, or a bad ``buffers_at_once`` of the loader.
        TypeError: ``loader`` is none, a count is no integer, or a time no number.
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
    processes: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        at_once = optional(self.loader, "buffers_at_once", 1)
        try:
            integer("buffers_at_once", at_once, 1)
        except (TypeError, ValueError):
            raise ValueError(
                f"the loader's buffers_at_once should be an integer from 1 on, got {at_once!r}"
            ) from None

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
