"""What is checked of SharedArray with every kind of workers, each in a process of its own.

python -c "import arrays_jobs; arrays_jobs.main(kind, prefix)"
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays_support import (
    blocks,
    fill,
    look,
    make_and_keep,
    make_and_return,
    raise_midway,
    tensor_total,
    total,
    try_to_write,
    write_privately,
)
from slices_support import EXECUTORS

import sharedvector
from sharedvector import SharedArray, share, sweep


class Late:
    """A handle that was pickled before its block was removed."""

    def __init__(self, sent: bytes) -> None:
        self.sent = sent

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.sent,)


def results(executor: Any, fn: Callable[..., Any], arguments: list[Any]) -> list[Any]:
    return list(executor.map(fn, arguments))


def parts_are_read_and_mapped_once(executor: Any, kind: str, prefix: str) -> None:
    data = np.arange(4000.0).reshape(40, 100)
    with share(data, prefix=prefix) as shared:
        found = results(executor, look, [shared[i] for i in range(40)])
        assert [value for _, _, value in found] == data.sum(axis=1).tolist()
        maps: dict[int, set[int]] = {}
        for pid, count, _ in found:
            maps.setdefault(pid, set()).add(count)
        assert all(len(counts) == 1 for counts in maps.values()), maps
        assert (os.getpid() in maps) == kind.startswith("thread")
    assert blocks(prefix) == []


def only_what_is_writable_is_written(executor: Any, kind: str, prefix: str) -> None:
    zeros = share(np.zeros(8), prefix=prefix)
    out = SharedArray.empty(8, prefix=prefix, writable=True)
    with zeros, out:
        if not kind.startswith("thread"):
            assert "read-only" in results(executor, try_to_write, [zeros])[0]
        results(executor, fill, [out[2 * i : 2 * i + 2] for i in range(4)])
        assert (out.array == 5).all() and not zeros.array.any()


def an_error_leaves_the_workers_alive(executor: Any, kind: str, prefix: str) -> None:
    with share(np.arange(3.0), prefix=prefix) as shared:
        with pytest.raises(RuntimeError, match="worker found 0"):
            results(executor, raise_midway, [shared])
        late = Late(pickle.dumps(shared))
    if not kind.startswith("thread"):
        with pytest.raises(FileNotFoundError, match="is gone"):
            results(executor, total, [late])
    with share(np.ones(3), prefix=prefix) as shared:
        assert results(executor, total, [shared]) == [3]


def tensors_of_read_only_blocks_are_private(executor: Any, kind: str, prefix: str) -> None:
    if kind == "torch-pool":
        with share(np.ones(5), prefix=prefix) as shared:
            assert results(executor, write_privately, [shared]) == [(35.0, 5.0)]
            assert results(executor, tensor_total, [shared[1:]]) == [4]


JOBS = (
    parts_are_read_and_mapped_once,
    only_what_is_writable_is_written,
    an_error_leaves_the_workers_alive,
    tensors_of_read_only_blocks_are_private,
)


def main(kind: str, prefix: str) -> None:
    with EXECUTORS[kind]() as executor:
        for job in JOBS:
            job(executor, kind, prefix)
        if not kind.startswith("thread"):
            results(executor, make_and_return, [prefix])
            assert blocks(prefix) == []
            kept = results(executor, make_and_keep, [prefix])
            assert blocks(prefix) == kept
            assert sharedvector.sweep(prefix) == []
    if kind.startswith("pool"):  # its workers are killed
        assert [swept.name for swept in sweep(prefix)] == kept
    assert blocks(prefix) == []
    print("done")
