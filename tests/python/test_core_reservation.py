"""Reservation: filling a buffer in its final place."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, filled, fresh_name, held_child, in_child, kill

import sharedvector
from sharedvector import SharedVector


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def claims(vector: SharedVector) -> int:
    return sum(row["claims"] for row in vector.rows())


def test_publish_into_a_filled_slot(name: str) -> None:
    with filled(name) as vector:
        old = vector.get(1)
        with vector.reserve((2, 2)) as reservation:
            array = reservation.array
            assert (array.shape, array.dtype) == ((2, 2), np.float32)
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0
            array[...] = 5
            assert claims(vector) == 1
            assert reservation.publish(1, meta=[3], source_index=9) == 1
            assert reservation.closed
        assert claims(vector) == 0
        assert (vector.get(1) == np.full((2, 2), 5)).all()
        assert vector.get_meta(1).tolist() == [3]
        view: Any = vector.get(1).base
        assert view.source_index == 9
        assert (old == FLOATS + 1).all()


def test_publish_appends_without_a_slot(name: str) -> None:
    with filled(name) as vector:
        reservation = vector.reserve(3, dtype="float32")
        reservation.array[...] = [1, 2, 3]
        assert reservation.publish() == 3
        assert vector.get(-1).tolist() == [1, 2, 3]


def test_negative_slots_and_scalars(name: str) -> None:
    with filled(name) as vector, vector.reserve(()) as reservation:
        reservation.array[...] = 8
        assert reservation.publish(-1) == 2
        assert vector.get(2) == 8


def test_leaving_the_block_cancels(name: str) -> None:
    with filled(name) as vector:
        with vector.reserve(4) as reservation:
            assert claims(vector) == 1
        assert reservation.closed
        with pytest.raises(ZeroDivisionError), vector.reserve(4):
            raise ZeroDivisionError
        assert claims(vector) == 0
        reservation.cancel()
        vector.check()


def test_a_reservation_that_is_over_refuses(name: str) -> None:
    with filled(name) as vector:
        reservation = vector.reserve(4)
        array = reservation.array
        reservation.publish(0)
        for call in (
            reservation.publish,
            lambda: reservation.array,
            reservation.__enter__,
        ):
            with pytest.raises(ValueError, match="over"):
                call()
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_a_forgotten_reservation_is_cancelled_with_its_last_array(name: str) -> None:
    with filled(name) as vector:
        vector.reserve(4)
        gc.collect()
        assert claims(vector) == 0
        part = vector.reserve(4).array[1:]
        gc.collect()
        part[...] = 1
        assert claims(vector) == 1
        del part
        gc.collect()
        assert claims(vector) == 0


def test_a_failed_publish_leaves_the_reservation_open(name: str) -> None:
    with filled(name) as vector:
        reservation = vector.reserve(4)
        with pytest.raises(IndexError):
            reservation.publish(3)
        with pytest.raises(ValueError):
            reservation.publish(0, meta=[1] * 9)
        with pytest.raises(TypeError):
            reservation.publish("0")  # type: ignore[arg-type]
        assert not reservation.closed
        reservation.array[...] = 2
        assert reservation.publish(0) == 0
        assert vector.get(0).tolist() == [2] * 4


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_publish_stores_the_shape_that_the_array_has_now(name: str) -> None:
    with filled(name) as vector:
        reservation = vector.reserve(12)
        reservation.array[...] = FLOATS.ravel()
        reservation.array.shape = (3, 4)
        reservation.publish(2)
        assert (vector.get(2) == FLOATS).all()


def test_a_full_vector_leaves_the_reservation_open(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64) as vector:
        vector.append(np.zeros(4, np.float32))
        with vector.reserve(4) as reservation:
            reservation.array[...] = 3
            with pytest.raises(sharedvector.OutOfMemoryError, match="all 1 slots"):
                reservation.publish()
            assert claims(vector) == 1
            assert reservation.publish(0) == 0
        assert vector.get(0).tolist() == [3] * 4
        assert claims(vector) == 0


@pytest.mark.parametrize(
    ("shape", "options", "error"),
    [
        ((1025,), {}, sharedvector.MemoryError),
        ((1 << 62, 1 << 62), {}, sharedvector.MemoryError),
        ((1 << 64,), {}, sharedvector.MemoryError),
        ((-1,), {}, ValueError),
        ((1,) * 17, {}, ValueError),
        ((1.5,), {}, TypeError),
        ("ab", {}, TypeError),
        (None, {}, TypeError),
        (4, {"dtype": "float64"}, ValueError),
        (4, {"dtype": ">f4"}, ValueError),
        (4, {"timeout": -1}, ValueError),
        (4, {"timeout": "1"}, TypeError),
    ],
)
def test_reserve_refuses(name: str, shape: Any, options: Any, error: type[Exception]) -> None:
    with filled(name) as vector:
        with pytest.raises(error):
            vector.reserve(shape, **options)
        assert claims(vector) == 0


def test_waiting_ends_at_the_limit_and_names_the_segment(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64, spare_buffers=1) as vector:
        vector.append(np.zeros(4, np.float32))
        first = vector.reserve(4)
        started = time.monotonic()
        with pytest.raises(sharedvector.InUseError, match=name):
            vector.reserve(4, timeout=1.5)  # more than without timeout=
        assert 1.5 <= time.monotonic() - started < 60
        with pytest.raises(sharedvector.InUseError, match=r"in all 0\.00 s"):
            vector.replace(0, np.ones(4, np.float32), refuse=False, timeout=0)
        first.cancel()
        vector.reserve(4, timeout=0).cancel()


def test_waiting_leaves_other_threads_running(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64, spare_buffers=1) as vector:
        vector.append(np.zeros(4, np.float32))
        first = vector.reserve(4)
        timer = threading.Timer(0.2, first.cancel)
        timer.start()
        started = time.monotonic()
        with vector.reserve(4, timeout=120):
            assert time.monotonic() - started < 60
        timer.join()


class InterruptedByTestError(Exception):
    pass


def raise_interrupted(number: int, frame: object) -> None:
    raise InterruptedByTestError


def test_append_waits_as_long_as_it_is_told(name: str) -> None:
    with SharedVector(name, slot_count=2, chunk_size=64, spare_buffers=1) as vector:
        held = [vector.reserve(4) for _ in range(3)]
        with pytest.raises(sharedvector.InUseError, match=rf"{name}.*in all 0\.00 s"):
            vector.append(np.zeros(4, np.float32), timeout=0)
        started = time.monotonic()
        with pytest.raises(sharedvector.InUseError, match=name):
            vector.append(np.zeros(4, np.float32), timeout=1.5)  # more than without timeout=
        assert 1.5 <= time.monotonic() - started < 60
        with pytest.raises(ValueError, match="timeout"):
            vector.append(np.zeros(4, np.float32), timeout=-1)
        held.pop().cancel()
        assert vector.append_slot(np.zeros(4, np.float32), timeout=0) == 0
        for reservation in held:
            reservation.cancel()


def test_waiting_can_be_interrupted(name: str) -> None:
    before = signal.signal(signal.SIGALRM, raise_interrupted)
    try:
        with SharedVector(name, slot_count=1, chunk_size=64, spare_buffers=1) as vector:
            vector.append(np.zeros(4, np.float32))
            with vector.reserve(4):
                started = time.monotonic()
                with pytest.raises(InterruptedByTestError):
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                    vector.reserve(4, timeout=120)
                assert time.monotonic() - started < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_close_refuses_while_a_reservation_is_open(name: str) -> None:
    vector = filled(name)
    reservation = vector.reserve(4)
    with pytest.raises(sharedvector.InUseError, match="reservation"):
        vector.close()
    assert not vector.closed
    reservation.publish(0)
    vector.close()


def test_arrays_of_a_reservation_outlive_the_handle(name: str) -> None:
    vector = filled(name)
    reservation = vector.reserve(4)
    part = reservation.array[1:]
    reservation.array[...] = 6
    reservation.publish(0)
    vector.close()
    assert vector.closed
    with pytest.raises(ValueError, match="closed"):
        vector.get(0)
    sharedvector.remove_shared_memory(name)
    del vector, reservation
    gc.collect()
    assert part.tolist() == [6, 6, 6]


def test_a_forked_child_has_no_part_in_a_reservation(name: str) -> None:
    with filled(name) as vector:
        reservation = vector.reserve(4)
        reservation.array[...] = 4

        def child() -> None:
            for call in (reservation.publish, reservation.cancel):
                with pytest.raises(RuntimeError, match="fork"):
                    call()
            with vector.reserve(2) as own:
                own.array[...] = 1
                own.publish(1)
            vector.close()
            assert vector.closed

        assert in_child(child) == 0
        assert claims(vector) == 1
        assert reservation.publish(0) == 0
        assert vector.get(0).tolist() == [4] * 4
        assert vector.get(1).tolist() == [1] * 2


def test_a_child_that_drops_a_reservation_gives_nothing_back(name: str) -> None:
    with filled(name) as vector:
        box = [vector.reserve(4)]

        def child() -> None:
            with box[0]:
                pass
            box.clear()
            gc.collect()

        assert in_child(child) == 0
        assert claims(vector) == 1
        box[0].publish(0)


def test_a_killed_writer_leaves_no_claim(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64, spare_buffers=1) as vector:
        vector.append(np.zeros(4, np.float32))
        with held_child(lambda: SharedVector(name).reserve(4)) as pid:
            with pytest.raises(sharedvector.InUseError):
                vector.reserve(4, timeout=0)
            kill(pid)
            vector.reserve(4, timeout=0).publish(0)
        vector.check()


@pytest.mark.parametrize("ending", ["cancel", "publish"])
def test_a_slot_whose_index_ends_the_reservation_is_refused(ending: str) -> None:
    with fresh_name() as name, filled(name) as vector:
        reservation = vector.reserve((3, 4))
        reservation.array[...] = 1

        class Slot:
            def __index__(self) -> int:
                reservation.cancel() if ending == "cancel" else reservation.publish(0)
                return 0

        with pytest.raises(ValueError, match="over"):
            reservation.publish(Slot())  # type: ignore[arg-type]
        vector.check()
