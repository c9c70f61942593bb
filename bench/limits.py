"""The machine's limits, as a worker of the benchmark: limits.c through ctypes, on shared memory."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from harness import per_index

SOURCE = Path(__file__).resolve().with_name("limits.c")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


def build(folder: Path) -> Path:
    """Compile limits.c into a folder, unless that is done; RuntimeError with what cc said."""
    text = SOURCE.read_bytes()
    library = folder / f"limits-{hashlib.sha256(text).hexdigest()[:12]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread"]
        done = subprocess.run(
            [*command, *WARNINGS, "-o", str(made), str(SOURCE)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{SOURCE.name} cannot be compiled:\n{done.stderr}")
        made.replace(library)
    return library


class Limits:
    """The functions of limits.c over memory of its own.

    Args:
        library: from `build`.
        name: of a file in /dev/shm for the destination.
        size_bytes: of the destination.
        source_bytes: of what is copied there.
    """

    def __init__(self, library: str, name: str, size_bytes: int, source_bytes: int) -> None:
        self.code = ctypes.CDLL(library)
        pointer, number = ctypes.c_void_p, ctypes.c_size_t
        self.code.lim_gather.argtypes = (pointer, pointer, number, number, ctypes.c_uint)
        self.code.lim_scatter.argtypes = (pointer, pointer, number, number, pointer, number)
        self.code.lim_atomic.argtypes = (pointer, pointer, number, number)
        for function in ("lim_gather", "lim_scatter", "lim_atomic"):
            getattr(self.code, function).restype = ctypes.c_double
        with open(f"/dev/shm/{name}", "wb+") as stream:
            os.unlink(stream.name)
            os.posix_fallocate(stream.fileno(), 0, size_bytes)
            self.shared = mmap.mmap(stream.fileno(), size_bytes)
        self.shared.madvise(mmap.MADV_HUGEPAGE)
        self.array = np.frombuffer(self.shared, np.uint8)
        self.array[::4096] = 0
        self.source = np.random.default_rng(1).integers(0, 255, source_bytes, np.uint8)
        self.source_at = self.source.ctypes.data
        self.base = self.array.ctypes.data


def start(state: dict[str, Any], **arguments: Any) -> None:
    state["limits"] = Limits(**arguments)


def copy(state: dict[str, Any], size: int, calls: int, batch: int, streaming: bool) -> float:
    """Seconds per copy of `size` bytes, to random parts of the destination."""
    limits: Limits = state["limits"]
    function = limits.code.lim_stream if streaming else limits.code.lim_copy
    places = [ctypes.c_void_p(limits.base + at) for at in _parts(limits.array.size, size)]
    source, length = ctypes.c_void_p(limits.source_at), ctypes.c_size_t(size)
    where = indices(len(places), calls)
    taken = per_index(lambda index: function(places[index], source, length), where, batch)
    at = where[0] * size
    if not np.array_equal(limits.array[at : at + size], limits.source[:size]):
        raise RuntimeError("the copy differs from its source")
    return taken


def scatter(
    state: dict[str, Any], size: int, calls: int, places: int, hot: int | None = None
) -> float:
    """Seconds per copy of `size` bytes to random ones of `places` places; see `indices`."""
    limits: Limits = state["limits"]
    function = limits.code.lim_scatter
    base = limits.base
    times = [
        function(base, part.ctypes.data, len(part), size, limits.source_at, size)
        for part in _batches(indices(places, calls, hot))
    ]
    return statistics.median(times)


def atomic(state: dict[str, Any], calls: int, places: int, stride: int) -> float:
    """Seconds per atomic addition and subtraction on random ones of `places` words."""
    limits: Limits = state["limits"]
    function, base = limits.code.lim_atomic, limits.base
    times = [
        function(base, part.ctypes.data, len(part), stride)
        for part in _batches(indices(places, calls))
    ]
    return statistics.median(times)


def _batches(where: list[int], batch: int = 500) -> list[np.ndarray[Any, Any]]:
    return [np.array(where[at : at + batch], np.uint32) for at in range(0, len(where), batch)]


def gather(state: dict[str, Any], items: int, size: int, threads: int, count: int) -> float:
    """Seconds for a batch of `items` times `size` bytes out of the shared memory."""
    limits: Limits = state["limits"]
    if "batch" not in state:
        limits.array[: limits.source.size] = limits.source
        state["batch"] = np.zeros(items * size + 64, np.uint8)
        _check_gather(state, items, size, threads)
    return statistics.mean(_gather(state, items, size, threads)[0] for _ in range(count))


def _gather(
    state: dict[str, Any], items: int, size: int, threads: int
) -> tuple[float, np.ndarray[Any, Any], list[int]]:
    """Seconds, the batch, and where its items come from."""
    limits: Limits = state["limits"]
    batch: np.ndarray[Any, Any] = state["batch"]
    out = batch[-batch.ctypes.data % 64 :][: items * size]
    parts = random.sample(_parts(limits.array.size, size), items)
    pointers = (ctypes.c_void_p * items)(*(limits.base + at for at in parts))
    taken = limits.code.lim_gather(out.ctypes.data, pointers, items, size, threads)
    if taken < 0:
        raise RuntimeError("a thread could not be started")
    return float(taken), out, parts


def _check_gather(state: dict[str, Any], items: int, size: int, threads: int) -> None:
    """Only once: what is read lies in the caches, and streaming stores are slower there."""
    _, out, parts = _gather(state, items, size, threads)
    for item, at in enumerate(parts):
        if not np.array_equal(out[item * size :][:size], state["limits"].array[at : at + size]):
            raise RuntimeError(f"item {item} of the batch differs from its source")


def indices(places: int, count: int, hot: int | None = None) -> list[int]:
    """`count` random numbers below `places`, always the same ones.

    With `hot`, out of that many numbers only, spread evenly: as many different ones, however many
    places there are, so that caches hold what is touched in a small pool and in a large one.
    """
    draw = random.Random(1)
    if hot is None:
        return [draw.randrange(places) for _ in range(count)]
    chosen = [place * places // hot for place in range(hot)]
    return [draw.choice(chosen) for _ in range(count)]


def _parts(total: int, size: int) -> list[int]:
    return list(range(0, total - size + 1, size))
