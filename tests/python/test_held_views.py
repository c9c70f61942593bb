"""Views that are held for long freeze their own slots, and who freezes a whole pool is named."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pool_support import LIMIT, Constant, run, running, spec, unique

from sharedvector import PoolHandle, SharedVector, ensure_pool

SLOTS = 16
HELD = 12
FREE = range(HELD, SLOTS)
COUNT = 200  # refreshes of the slots that nobody holds

HOLD = """
import sys, time
from sharedvector import SharedVector
vector = SharedVector(sys.argv[1], create=False)
views = [vector.get(slot) for slot in range(int(sys.argv[2]))]
print("held", flush=True)
time.sleep(600)
"""

# Holds whatever comes into its own pool, until the log says so.
HOLD_EVERYTHING = """
import os, sys, time
from pathlib import Path
from pool_support import Constant, spec
from sharedvector import ensure_pool
name, log = sys.argv[1:]
os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
if __name__ == "__main__":
    producer = spec(Constant(delay=0.002), num_producers=2)
    with ensure_pool(name, 16, producer=producer) as handle, handle.attach() as vector:
        views = {}
        deadline = time.monotonic() + 50
        while "is not refreshed" not in Path(log).read_text() and time.monotonic() < deadline:
            for slot in range(len(vector)):
                view = vector.get(slot)
                views.setdefault(view.ctypes.data, view)
                del view
            time.sleep(0.05)
        before = vector.write_counts().tolist()
        stats = handle.stats()
        print(os.getpid(), len(views), stats.waiting_for_views, stats.blocked_replaces)
        print(*stats.held_by)
        assert before == vector.write_counts().tolist()
        views.clear()  # and it goes on
        while vector.write_counts().tolist() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        print(vector.write_counts().tolist() != before)
"""


@pytest.fixture
def handle() -> Iterator[PoolHandle]:
    with ensure_pool(
        unique("held"), SLOTS, producer=spec(Constant(delay=0.002), num_producers=2)
    ) as made:
        yield made


def refreshed(vector: SharedVector, count: int = COUNT) -> float:
    """Read the slots that nobody holds until they were replaced ``count`` times; in seconds."""
    began = time.monotonic()
    before = int(vector.write_counts()[HELD:].sum())
    while int(vector.write_counts()[HELD:].sum()) < before + count:
        assert time.monotonic() < began + LIMIT, "the other slots are not refreshed"
        for slot in FREE:
            vector.get(slot)
    return time.monotonic() - began


def test_the_other_slots_are_refreshed_at_full_rate(handle: PoolHandle) -> None:
    with handle.attach() as vector:
        alone = min(refreshed(vector) for _ in range(2))
        with running(HOLD, handle.name, str(HELD)):
            refreshed(vector, 10)  # a chunk of a held slot may be on its way
            before = vector.write_counts()[:HELD].tolist()
            beside = min(refreshed(vector) for _ in range(3))
            assert vector.write_counts()[:HELD].tolist() == before
        # Nothing is waited for; the rest is for a machine that does other things as well.
        assert beside < 2 * alone + 1
        assert handle.stats().waiting_for_views == 0


def test_who_freezes_a_pool_is_named_and_it_goes_on_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, out, _ = run(HOLD_EVERYTHING, unique("everything"), str(log))
    assert code == 0, out + log.read_text()
    facts, line, goes_on = out.splitlines()
    pid, views, waited, blocked = facts.split()
    assert int(views) in (17, 18) and float(waited) > 5 and int(blocked) >= 5
    assert re.fullmatch(
        rf"pid {pid} \(.*-c.*\): {views} views, the oldest of a chunk from \d+ s ago; "
        r"attached for \d+ s",
        line,
    )
    assert f"held by pid {pid} (" in log.read_text()
    assert goes_on == "True"


def test_the_output_cells_of_a_notebook_freeze_their_own_slots(handle: PoolHandle) -> None:
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_code_cell(
            "from sharedvector import SharedVector\n"
            f"vector = SharedVector({handle.name!r}, create=False)"
        ),
        *(nbformat.v4.new_code_cell(f"vector.get({slot})") for slot in range(HELD)),
    ]
    client = NotebookClient(made, timeout=LIMIT)
    with client.setup_kernel(), handle.attach() as vector:
        for place, cell in enumerate(made.cells):
            client.execute_cell(cell, place)
        assert sum(row["pins"] for row in vector.rows()) >= HELD
        refreshed(vector, 10)  # a chunk of a held slot may be on its way
        before = vector.write_counts()[:HELD].tolist()
        refreshed(vector)
        assert vector.write_counts()[:HELD].tolist() == before
