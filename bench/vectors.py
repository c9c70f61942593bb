"""Worker functions on a SharedVector; they run with this package and with 0.1.0."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from typing import Any

import numpy as np
from harness import per_index
from limits import indices

import sharedvector as sv


def create(
    state: dict[str, Any],
    name: str,
    slots: int,
    chunk: int,
    max_rows: int | None = None,
    spare_buffers: int | None = None,
) -> int:
    """A segment of `slots` slots, each filled with a chunk of float32 that carries its number."""
    data = np.zeros(chunk // 4, np.float32)
    if hasattr(sv.SharedVector, "reserve"):
        settings = {"max_rows": max_rows, "spare_buffers": spare_buffers}
        given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
        vector = sv.SharedVector(name, chunk_size=chunk, slot_count=slots, **given)
    else:
        # It takes some hundred bytes a slot for itself out of the same memory.
        memory = slots * (chunk + 768) + (1 << 20)
        vector = sv.SharedVector(name, chunk_size=chunk, max_memory_size=memory)
    with contextlib.suppress(sv.OutOfMemoryError):
        for slot in range(slots):
            data[0] = slot
            vector.append(data)
    if len(vector) != slots:
        raise RuntimeError(f"the segment holds {len(vector)} slots, wanted {slots}")
    state["vector"], state["name"] = vector, name
    return len(vector)


def open_(state: dict[str, Any], name: str) -> None:
    state["vector"], state["name"] = sv.SharedVector(name, create=False), name


def remove(state: dict[str, Any]) -> None:
    state.pop("vector")
    sv.remove_shared_memory(state.pop("name"))


def get(state: dict[str, Any], calls: int, hot: int | None = None) -> float:
    """Seconds per get() with release of the view, on random slots; see `limits.indices`."""
    vector = state["vector"]
    where = indices(len(vector), calls, hot)
    if hot is not None:
        # Equal numbers as one object: else the list costs more memory than the slots.
        known = {slot: slot for slot in where}
        where = [known[slot] for slot in where]
    taken = per_index(vector.get, where)
    for slot in where[:3]:
        if vector.get(slot)[0] != slot:
            raise RuntimeError(f"slot {slot} holds what was written to {vector.get(slot)[0]}")
    return taken


def get_one(state: dict[str, Any], calls: int, seconds: float = 0.0) -> float:
    """Seconds per get() with release, always of slot 0; repeats for `seconds`."""
    vector, end = state["vector"], time.monotonic() + seconds
    while True:
        taken = per_index(vector.get, [0] * calls)
        if time.monotonic() >= end:
            return taken


def get_cpu(state: dict[str, Any], calls: int) -> float:
    """Processor seconds per get() and release, on random slots; others may take turns."""
    vector = state["vector"]
    where = indices(len(vector), calls)
    start = time.thread_time_ns()
    for slot in where:
        vector.get(slot)
    return 1e-9 * (time.thread_time_ns() - start) / calls


def replace(
    state: dict[str, Any], size: int, calls: int, batch: int, hot: int | None = None
) -> float:
    """Seconds per replace() of `size` bytes, on random slots; see `limits.indices`."""
    vector = state["vector"]
    where = indices(len(vector), calls, hot)
    data = np.arange(1, size // 4 + 1, dtype=np.float32)
    taken = per_index(lambda slot: vector.replace(slot, data), where, batch)
    for slot in where[:3]:
        if not np.array_equal(vector.get(slot), data):
            raise RuntimeError(f"slot {slot} differs from what was written")
    return taken


def publish(state: dict[str, Any], size: int, calls: int) -> float:
    """Seconds per publish() of a reserved buffer of `size` bytes; the median of the calls."""
    vector, times = state["vector"], []
    for call in range(calls):
        reservation = vector.reserve((size // 4,))
        reservation.array[-1] = call
        start = time.perf_counter_ns()
        reservation.publish(0)
        times.append(time.perf_counter_ns() - start)
        if vector.get(0)[-1] != call:
            raise RuntimeError("the published chunk is not the one that was filled")
    return 1e-9 * statistics.median(times)


def attach(state: dict[str, Any], name: str, calls: int, held: bool) -> float:
    """Seconds per attach, first get() and detach; with `held` beside another handle."""
    other = sv.SharedVector(name, create=False) if held else None
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        vector = sv.SharedVector(name, create=False)
        vector.get(1)
        del vector
        times.append(time.perf_counter_ns() - start)
    del other
    return 1e-9 * statistics.median(times)


def crowd(state: dict[str, Any], name: str, count: int) -> int:
    """Fork until `count` processes are attached, this one included; they end with this one."""
    vector = state["vector"]
    if "children" not in state:
        state["children"] = []
    while len(state["children"]) + 1 < count:
        told, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            _attached_child(name, tells)
        os.close(tells)
        if os.read(told, 1) != b"1":
            raise RuntimeError("a child could not attach")
        os.close(told)
        state["children"].append(pid)
    rows = len(vector.rows())
    if rows != count:
        raise RuntimeError(f"{rows} processes are attached, wanted {count}")
    return rows


def _attached_child(name: str, tells: int) -> None:
    """Attach, say so, and live as long as the parent."""
    import ctypes
    import signal

    try:
        # PR_SET_PDEATHSIG: no child outlives a worker that is killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        vector = sv.SharedVector(name, create=False)
        vector.get(0)
        os.write(tells, b"1")
        while True:
            signal.pause()
    finally:
        os._exit(1)


def disperse(state: dict[str, Any]) -> None:
    """End the children of `crowd`."""
    import signal

    for pid in state.pop("children", []):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
