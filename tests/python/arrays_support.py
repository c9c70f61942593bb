"""What the tests of SharedArray share: names that the guard knows, and what workers run."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sharedvector
from sharedvector import SharedArray

# Carries the process id: the guard of every test finds what it left.
PREFIX = f"test{os.getpid()}"
share = functools.partial(sharedvector.share, prefix=PREFIX)
empty = functools.partial(SharedArray.empty, prefix=PREFIX)
METHODS = ("fork", "spawn", "forkserver")
LIMIT = 60.0  # seconds for anything that should happen soon


def blocks(prefix: str = PREFIX) -> list[str]:
    """Names of the blocks with this prefix that are there."""
    head = f"sv-{os.getuid()}-{prefix}-"
    return sorted(path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(head))


def again(value: Any) -> Any:
    """Pickled and loaded."""
    return pickle.loads(pickle.dumps(value))


def maps_of(name: str) -> int:
    """Mappings of a block in this process."""
    return Path("/proc/self/maps").read_text().count(name)


@contextlib.contextmanager
def memory_of(shared: SharedArray) -> Iterator[Callable[[], int]]:
    """Tells how many bytes of memory a block takes, also when it has no name any more."""
    descriptor = os.open(f"/dev/shm/{shared.name}", os.O_RDONLY)
    try:
        yield lambda: os.fstat(descriptor).st_blocks * 512
    finally:
        os.close(descriptor)


def total(part: SharedArray) -> float:
    return float(part.array.sum())


def total_after(part: SharedArray, seconds: float) -> float:
    time.sleep(seconds)
    return total(part)


def fill(part: SharedArray) -> None:
    part[...] = 5


def try_to_write(part: SharedArray) -> str:
    """What keeps this process from writing."""
    try:
        part[...] = 99
    except ValueError as error:
        return str(error)
    return "nothing"


def write_privately(part: SharedArray) -> tuple[float, float]:
    """The sum of a tensor after a write, and what the block still holds."""
    import torch

    tensor = torch.from_dlpack(part)
    tensor[...] = 7
    return float(tensor.sum()), total(part)


def look(part: SharedArray) -> tuple[int, int, float]:
    """Process, mappings of the block, sum."""
    value = total(part)
    return os.getpid(), maps_of(part.name), value


def tensor_total(part: SharedArray) -> float:
    import torch

    return float(torch.from_dlpack(part).sum())


def raise_midway(part: SharedArray) -> None:
    array = part.array
    raise RuntimeError(f"worker found {array[0]}")


def die(part: SharedArray) -> None:
    array = part.array
    os.kill(os.getpid(), signal.SIGKILL)
    del array


def make_and_keep(prefix: str) -> str:
    """Make a block that lives as long as this worker."""
    kept = sharedvector.share(np.arange(4.0), prefix=prefix)
    globals().setdefault("_kept", []).append(kept)
    return kept.name


def make_and_return(prefix: str) -> str:
    """Make a block that is dropped at once."""
    return sharedvector.share(np.arange(4.0), prefix=prefix).name
