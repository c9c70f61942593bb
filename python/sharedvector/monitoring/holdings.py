"""What shared memory this process holds, as told by those who hold it.

Diagnostics look here, and so need not import what makes and attaches blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

Blocks: TypeAlias = list[tuple[str, int]]  # names and bytes

DEFAULT_DIRECTORY = "/dev/shm"
WARN_ABOVE_ENV = "SHAREDVECTOR_WARN_ABOVE"

# Called without arguments after a block was made.
after_make: list[Callable[[], object]] = []

_made: list[Callable[[], Blocks]] = []
_attached: list[Callable[[], Blocks]] = []


def tell_holdings(made: Callable[[], Blocks], attached: Callable[[], Blocks]) -> None:
    """Have two functions asked: for the blocks that this process made and has not removed, and for
    those of others that it has mapped.
    """
    _made.append(made)
    _attached.append(attached)


def held() -> tuple[Blocks, Blocks]:
    """Return what this process has made, and what it has attached to."""
    return (
        [block for ask in _made for block in ask()],
        [block for ask in _attached for block in ask()],
    )


def made_one() -> None:
    """Say that a block was made."""
    for call in after_make:
        call()


def directory_of(directory: str | bytes | os.PathLike[Any] | None) -> str:
    """Where segments are, as the core finds it, when an argument `directory` has this value."""
    return os.fsdecode(directory or os.environ.get("SHAREDVECTOR_SHM_DIR") or DEFAULT_DIRECTORY)
