"""The ends of the ranges: a chunk beyond 32 bits, and a pool of 100,000 slots."""

from __future__ import annotations

import os

import numpy as np
import pytest
from core_support import fresh_name, in_child

from sharedvector import SharedVector, _core

GIB = 1 << 30
CHUNK_BYTES = 43 * GIB // 10 // 4096 * 4096


def room_for(needed: int) -> str:
    """Why this machine cannot hold `needed` bytes of shared memory, or nothing."""
    file_system = os.statvfs(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm"))
    free = file_system.f_bavail * file_system.f_frsize
    memory, *_ = _core.memory_free()  # of the machine and of the control groups
    room = min(free, (memory or 0) - 2 * GIB)
    if room < needed:
        return f"needs {needed / GIB:.1f} GiB of shared memory, there are {room / GIB:.1f} GiB"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(900)  # 8.6 GiB of pages, also on a machine that is slow and does other work
def test_a_chunk_of_more_than_four_gibibytes() -> None:
    why = room_for(2 * CHUNK_BYTES + (64 << 20))
    if why:
        pytest.skip(why)
    marks = [0, 1, (1 << 32) - 1, 1 << 32, CHUNK_BYTES - 1]
    with fresh_name() as name:
        vector = SharedVector(
            name, chunk_size=CHUNK_BYTES, slot_count=1, spare_buffers=1, dtype="uint8"
        )
        with vector.reserve(CHUNK_BYTES) as reservation:
            reservation.array[marks] = [11, 12, 13, 14, 15]
            reservation.publish(meta=[4.3])
        with vector.reserve(CHUNK_BYTES) as reservation:
            reservation.array[marks] = [21, 22, 23, 24, 25]

            def look_at_the_first() -> None:
                view = SharedVector(name, create=False).get(0)
                assert view.shape == (CHUNK_BYTES,)
                assert view[marks].tolist() == [11, 12, 13, 14, 15]

            assert in_child(look_at_the_first) == 0
            reservation.publish(0)
        assert vector.get(0)[marks].tolist() == [21, 22, 23, 24, 25]
        assert vector.get_chunk_shape(0) == (CHUNK_BYTES,)
        assert vector.get_chunk_write_count(0) == 2
        vector.close()


def test_a_pool_of_a_hundred_thousand_slots() -> None:
    slots = 100_000
    with fresh_name() as name:
        vector = SharedVector(name, chunk_size=64, slot_count=slots, dtype="int32")
        row = np.zeros(16, np.int32)
        for i in range(slots):
            row[:] = i
            vector.append(row)
        assert len(vector) == vector.capacity == slots
        rng = np.random.default_rng(1)
        picked = rng.choice(slots, 2000, replace=False)

        def read_and_replace() -> None:
            other = SharedVector(name, create=False)
            for i in picked:
                assert (other.get(i) == i).all()
                other.replace(i, np.full(16, -i, np.int32))

        assert in_child(read_and_replace) == 0
        for i in picked:
            assert (vector.get(i) == -i).all()
        assert vector.stats["replace_events"] == len(picked)
        assert vector.write_counts().sum() == slots + len(picked)
        assert vector.read_counts().sum() == len(picked)
        assert (vector.last_reads()[picked] == 1).all()
        vector.check()
        vector.close()
