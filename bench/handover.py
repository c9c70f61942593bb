"""Worker functions that hand an array over: one is copied in, made available, viewed, dropped.

Both ends are in one process, so that no scheduler and no wake-up is part of the figure. Each
function returns a call of one hand-over; `time_handover` times it and checks what arrived.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from functools import partial
from multiprocessing import shared_memory
from typing import Any

import numpy as np
from harness import per_index

Handover = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def start(state: dict[str, Any], way: str, name: str, size: int, folder: str) -> None:
    """Make what the way needs for chunks of `size` bytes."""
    makers = {
        "shared vector": partial(_shared_vector, name, size),
        "in place": partial(_in_place, name, size),
        "stdlib": partial(_stdlib, name, size),
        "iceoryx2": partial(_iceoryx2, name, folder, size, copying=True),
        "iceoryx2 in place": partial(_iceoryx2, name, folder, size, copying=False),
        "spdl": partial(_spdl, size),
    }
    state["handover"] = makers[way]()
    state["data"] = np.random.default_rng(1).random(size // 4, np.float32)
    state["in place"] = "in place" in way


def time_handover(state: dict[str, Any], calls: int, batch: int) -> float:
    """Seconds per hand-over."""
    handover: Handover = state["handover"]
    data = state["data"]
    arrived = handover(data)
    # Handed over in place, only the last number is written.
    same = arrived[-1:] == data[-1:] if state["in place"] else arrived == data
    if arrived.shape != data.shape or not same.all():
        raise RuntimeError("what arrived is not what was handed over")
    del arrived
    return per_index(lambda _: handover(data), [0] * calls, batch)


def _shared_vector(name: str, size: int) -> Handover:
    import sharedvector as sv

    vector = sv.SharedVector(name, chunk_size=size, max_memory_size=6 * size + (1 << 20))
    vector.append(np.zeros(size // 4, np.float32))

    def handover(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        vector.replace(0, data)
        return vector.get(0)

    return handover


def _in_place(name: str, size: int) -> Handover:
    import sharedvector as sv

    vector = sv.SharedVector(name, chunk_size=size, slot_count=1)
    vector.append(np.zeros(size // 4, np.float32))
    shape = (size // 4,)

    def handover(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        reservation = vector.reserve(shape)
        reservation.array[-1] = data[-1]
        reservation.publish(0)
        return vector.get(0)

    return handover


def _stdlib(name: str, size: int) -> Handover:
    block = shared_memory.SharedMemory(name, create=True, size=size)
    atexit.register(block.unlink)
    inside = np.frombuffer(block.buf, np.float32, size // 4)

    def handover(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        inside[:] = data
        return np.frombuffer(block.buf, np.float32, size // 4)

    return handover


def _iceoryx2(name: str, folder: str, size: int, *, copying: bool) -> Handover:
    import iceoryx2 as iox

    iox.set_log_level(iox.LogLevel.Error)
    config = iox.config.default()
    config.global_cfg.prefix = iox.FileName.new(f"{name}-")
    config.global_cfg.root_path = iox.Path.new(folder)
    node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
    service = (
        node.service_builder(iox.ServiceName.new(name))
        .publish_subscribe(iox.Slice[ctypes.c_uint8])
        .max_publishers(1)
        .max_subscribers(1)
        .subscriber_max_buffer_size(2)
        .create()
    )
    publisher = service.publisher_builder().initial_max_slice_len(size).create()
    subscriber = service.subscriber_builder().create()
    array_type = ctypes.c_float * (size // 4)

    def handover(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        loan = publisher.loan_slice_uninit(size)
        if copying:
            ctypes.memmove(loan.payload_ptr, data.ctypes.data, size)
        else:
            last = ctypes.c_float.from_address(loan.payload_ptr + size - 4)
            last.value = data[-1]
        loan.assume_init().send()
        sample = subscriber.receive()
        memory = array_type.from_address(sample.payload_ptr)
        memory.keeps = node, sample  # the sample is given back with the array
        return np.frombuffer(memory, np.float32)

    return handover


def _spdl(size: int) -> Handover:
    from spdl.pipeline import SharedMemorySegmentPool

    pool = SharedMemorySegmentPool(size, 3)
    # Its own unlink() takes each name from the resource tracker twice, which complains.
    atexit.register(_unlink, pool.__getstate__())
    writer, reader = pool.open_writer(), pool.open_reader()

    def handover(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        writer.begin_unit()
        offset, length = writer.write_binary(data)
        span = writer.commit_unit()
        array = np.frombuffer(reader.read_binary(offset, length), np.float32)
        reader.end_unit(span, [array])
        return array

    return handover


def _unlink(segments: dict[str, Any]) -> None:
    for name in (segments["ctrl_name"], *segments["seg_names"]):
        shared_memory.SharedMemory(name).unlink()


# --- the standard library by itself --------------------------------------------------------------


def create_stdlib(state: dict[str, Any], name: str, size: int) -> None:
    """A block of the standard library, filled with ones."""
    block = shared_memory.SharedMemory(name, create=True, size=size)
    atexit.register(block.unlink)
    np.frombuffer(block.buf, np.float32)[:] = 1
    state["block"] = block


def get_stdlib(state: dict[str, Any], calls: int) -> float:
    """Seconds per array over the block's buffer, and its release."""
    buffer = state["block"].buf
    count = len(buffer) // 4
    if np.frombuffer(buffer, np.float32, count)[-1] != 1:
        raise RuntimeError("the block does not hold what was written")
    return per_index(partial(np.frombuffer, buffer, np.float32), [count] * calls)
