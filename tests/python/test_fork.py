"""Views, handles and gathers across fork()."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, filled, fresh_name, held_child, in_child, kill, wait_child

import sharedvector
from sharedvector import SharedVector


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


def replaceable(vector: SharedVector, slot: int) -> bool:
    try:
        vector.replace(slot, FLOATS + 50, timeout=0)
    except sharedvector.InUseError:
        return False
    return True


def test_a_child_goes_on_with_the_handle(name: str) -> None:
    with filled(name) as vector:

        def child() -> None:
            assert (vector.get(1) == FLOATS + 1).all()
            vector.append(FLOATS + 3)
            vector.replace(0, FLOATS + 9)
            assert vector.ref_count == 2
            assert {row["pid"] for row in vector.rows()} == {os.getppid(), os.getpid()}

        assert in_child(child) == 0
        assert len(vector) == 4
        assert (vector.get(0) == FLOATS + 9).all()
        assert vector.ref_count == 1


def test_grandchildren_do_too(name: str) -> None:
    with filled(name) as vector:
        view = vector.get(0)

        def grandchild() -> None:
            assert (view == FLOATS).all()
            vector.get(1)

        def child() -> None:
            vector.get(1)
            assert in_child(grandchild) == 0
            vector.get(1)

        assert in_child(child) == 0
        assert vector.get_chunk_read_count(1) == 3
        assert vector.get_chunk_ref_count(0) == 1


def drop(vector: SharedVector, box: list[Any]) -> None:
    box.clear()
    gc.collect()


def read(vector: SharedVector, box: list[Any]) -> None:
    box.clear()
    vector.get(0)


def close(vector: SharedVector, box: list[Any]) -> None:
    vector.close()


def nothing(vector: SharedVector, box: list[Any]) -> None:
    pass


@pytest.mark.parametrize("body", [drop, read, close, nothing])
def test_what_a_child_does_unpins_nothing_of_the_parent(
    name: str, body: Callable[[SharedVector, list[Any]], None]
) -> None:
    with filled(name) as vector:
        box = [vector.get(0)]
        assert in_child(lambda: body(vector, box)) == 0
        assert vector.get_chunk_ref_count(0) == 1
        assert not replaceable(vector, 0)
        assert (box[0] == FLOATS).all()
        box.clear()
        assert vector.get_chunk_ref_count(0) == 0
        assert replaceable(vector, 0)


def test_a_childs_copy_of_a_view_is_its_own(name: str) -> None:
    with filled(name) as vector:
        box = [vector.get(0)]
        with held_child(lambda: box[0]) as pid:
            assert vector.get_chunk_ref_count(0) == 2
            box.clear()
            assert vector.get_chunk_ref_count(0) == 1
            assert not replaceable(vector, 0)
            vector.replace(0, FLOATS + 1, refuse=False)
            kill(pid)
            assert vector.recover() == 1
            assert vector.rows()[0]["pins"] == 0
        assert vector.ref_count == 1


def test_inherited_views_keep_their_chunk_while_slots_move_on(name: str) -> None:
    with SharedVector(name, slot_count=1, chunk_size=64, spare_buffers=2) as vector:
        vector.append(np.zeros(4, np.float32))
        view = vector.get(0)
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.read(ready, 1)
                assert view.tolist() == [0] * 4
                assert vector.get(0).tolist() == [20] * 4
                status = 0
            finally:
                os._exit(status)
        del view
        for number in range(1, 21):
            vector.replace(0, np.full(4, number, np.float32), refuse=False)
        os.write(told, b"x")
        assert wait_child(pid) == 0
        os.close(ready)
        os.close(told)


def test_forks_in_the_middle_of_gathers_leave_no_pins(name: str) -> None:
    with SharedVector(name, chunk_size=1 << 20, slot_count=2, spare_buffers=1) as vector:
        for i in range(2):
            vector.append(np.full(1 << 18, i, np.float32))
        stop = threading.Event()

        def gather() -> None:
            out = np.zeros((4, 1 << 18), np.float32)
            while not stop.is_set():
                vector.gather([0, 1, 0, 1], out=out)

        thread = threading.Thread(target=gather)
        thread.start()
        try:
            for _ in range(20):
                with held_child(lambda: None):
                    children = [row for row in vector.rows() if row["pid"] != os.getpid()]
                    assert all(row["pins"] == 0 for row in children)
        finally:
            stop.set()
            thread.join(60)
        assert not thread.is_alive()
        assert vector.get_chunk_ref_count(0) == 0


def test_killed_children_do_not_use_up_rows(name: str) -> None:
    with filled(name, max_rows=8) as vector:
        view = vector.get(0)
        for _ in range(30):
            with held_child(lambda: (SharedVector(name).get(1), vector.get(2))) as pid:
                kill(pid)
        assert (view == FLOATS).all()
        assert replaceable(vector, 1)
        assert replaceable(vector, 2)
        assert vector.ref_count == 1
        vector.check()


def test_a_child_without_a_row_reads_what_it_inherited(name: str) -> None:
    """Never a signal: the data while it looks, and an error in words for anything new."""
    with filled(name, max_rows=1) as vector:
        views = [vector.get(0)]

        def look() -> None:
            assert (views[0] == FLOATS).all()
            with pytest.raises(sharedvector.InUseError, match="max_rows"):
                vector.get(1)
            assert (views[0] == FLOATS).all()

        assert in_child(look) == 0
        with held_child(lambda: None) as pid:
            views.clear()
            assert vector.get_chunk_ref_count(0) == 1  # the child still shows it
            assert not replaceable(vector, 0)
            kill(pid)
        assert replaceable(vector, 0)
        assert vector.ref_count == 1
        vector.check()
