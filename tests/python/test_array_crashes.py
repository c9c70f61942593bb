"""Blocks when processes die at any moment, and after many thousands of them."""

from __future__ import annotations

import random

import arrays_endings
import pytest
from arrays_support import PREFIX, blocks
from pool_support import ended, run, start

ROUNDS = 200
AT_ONCE = 2
LONG = 600.0  # seconds: some ten, on a machine that has time

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LONG)]


@pytest.mark.parametrize("kind", arrays_endings.KINDS)
def test_after_a_sweep_nothing_is_left_but_what_lives(kind: str) -> None:
    code = "import sys, arrays_endings; arrays_endings.main(*sys.argv[1:])"
    seeds = [random.randrange(1 << 32) for _ in range(AT_ONCE)]
    print(f"seeds {seeds}")
    processes = [
        start(code, kind, f"{PREFIX}r{i}", str(ROUNDS // AT_ONCE), str(seed))
        for i, seed in enumerate(seeds)
    ]
    for status, out, err in [ended(process, LONG) for process in processes]:
        assert status == 0 and f"{ROUNDS // AT_ONCE} rounds" in out, err
        print(out)
    assert [name for i in range(AT_ONCE) for name in blocks(f"{PREFIX}r{i}")] == []


FACTS = """
    import ctypes, os, sys
    import numpy as np
    import sharedvector
    from arrays_support import total
    from core_support import descriptors
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: resident is what was touched
    def facts():
        maps = sum("sv-" in line for line in open("/proc/self/maps"))
        resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return descriptors(), maps, resident
    def compare(before, after):
        assert before[:2] == after[:2], (before, after)
        assert after[2] - before[2] < 2 << 20, (before, after)
"""
MAKER = """
    def cycle(n):
        for i in range(n):
            with sharedvector.share(data, prefix=sys.argv[1]) as shared:
                part = shared[1:]
                assert part.array[0] == 1
    data = np.arange(300.0)
    cycle(500)
    before = facts()
    cycle(10_000)
    compare(before, facts())
"""
WORKER = """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    def cycle(n):
        for i in range(n):
            with sharedvector.share(np.full(100, i), prefix=sys.argv[1]) as shared:
                assert executor.submit(total, shared[:10]).result(60) == 10 * i
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
        cycle(200)
        before = executor.submit(facts).result(60)
        cycle(2000)
        compare(before, executor.submit(facts).result(60))
"""


@pytest.mark.parametrize("body", [MAKER, WORKER], ids=["maker", "worker"])
def test_thousands_of_blocks_leave_nothing(body: str) -> None:
    status, _, err = run(FACTS + body, PREFIX, seconds=LONG)
    assert status == 0, err
    assert blocks() == []
