"""The PyTorch dataset: items, dtypes, waiting, workers under every start method."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedvector import coordination
from sharedvector.loaders import resolve_numpy_dtype
from sharedvector.vector import PoolStalledError, SharedVector, remove_shared_memory

torch = pytest.importorskip("torch", reason="torch is not installed")

from sharedvector.dataset import SharedMemoryDataset  # noqa: E402

Fill = Callable[..., SharedVector]


@pytest.fixture
def name() -> Iterator[str]:
    made = f"svtest-dataset-{os.getpid()}"
    yield made
    remove_shared_memory(made)
    assert not [file for file in os.listdir("/dev/shm") if made in file]


@pytest.fixture
def fill(name: str) -> Iterator[Fill]:
    """fill(arrays, metas, dtype=...) makes the vector; strict=False datasets need no owner."""
    made: list[SharedVector] = []

    def make(
        arrays: list[np.ndarray[Any, Any]], metas: list[Any] | None = None, dtype: Any = "float32"
    ) -> SharedVector:
        vector = SharedVector(name, chunk_size=4096, max_memory_size=1 << 20, dtype=dtype)
        made.append(vector)
        for array, meta in zip(arrays, metas or [None] * len(arrays), strict=True):
            vector.append(array, meta)
        return vector

    yield make
    for vector in made:
        vector.close()


def dataset(name: str, slots: int, **kwargs: Any) -> SharedMemoryDataset:
    return SharedMemoryDataset(name, slots, **{"ready_timeout": 5.0, "strict": False, **kwargs})


def chunks(count: int = 4, dtype: str = "float32") -> list[np.ndarray[Any, Any]]:
    return [np.full((2, 3, 4), k, dtype) for k in range(count)]


def plus_one(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "data": item["data"] + 1}


def doubled(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "data": item["data"] * 2}


def test_items(name: str, fill: Fill) -> None:
    vector = fill(chunks(), [[1, 2, 3.5], None, (4,), None])
    data = dataset(name, 4)
    assert (len(data), data.name) == (4, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        item = data[0]
    assert list(item) == ["data", "spacing"]
    assert item["data"].shape == (1, 2, 3, 4) and item["data"].dtype == torch.float32
    assert item["data"].is_contiguous()
    assert item["spacing"].dtype == torch.float32 and item["spacing"].tolist() == [1, 2, 3.5]
    assert list(data[1]) == ["data"]
    assert data[np.int64(2)]["data"].unique().tolist() == [2.0]
    assert data[torch.tensor(3)]["data"].unique().tolist() == [3.0]
    assert vector.read_counts().tolist() == [1, 1, 1, 1]
    assert [vector.get_chunk_ref_count(k) for k in range(4)] == [0] * 4


def test_items_are_copies(name: str, fill: Fill) -> None:
    vector = fill(chunks(), [[1, 2, 3]] * 4)
    data = dataset(name, 4)
    item = data[2]
    item["data"].mul_(0)
    item["spacing"].mul_(0)
    assert (np.asarray(vector.get(2)) == 2).all()
    assert data[2]["spacing"].tolist() == [1, 2, 3]
    kept = data[1]["data"]
    vector.replace(1, np.full((2, 3, 4), 9, np.float32))
    assert (kept == 1).all()
    fresh = data[1]
    assert (fresh["data"] == 9).all() and "spacing" not in fresh


def test_indices(name: str, fill: Fill) -> None:
    fill(chunks())
    data = dataset(name, 3)
    assert (data[-1]["data"] == 2).all() and (data[-3]["data"] == 0).all()
    for index in (4, 1000, -4):
        with pytest.raises(IndexError):
            data[index]
    for index in ("a", 1.0, slice(0, 2), None):
        with pytest.raises(TypeError):
            data[index]  # type: ignore[index]


def test_transforms_in_order(name: str, fill: Fill) -> None:
    fill(chunks(), [[5]] * 4)
    data = dataset(name, 4, transforms=[plus_one, doubled], meta_key="position")
    item = pickle.loads(pickle.dumps(data))[3]
    assert list(item) == ["data", "position"]
    assert item["data"].unique().tolist() == [8.0]


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (dtype, dtype.lstrip("<>"))
        for dtype in "bool int8 uint8 int16 int32 int64 uint16 uint32 uint64 float16 float32 "
        "float64 complex64 complex128".split()
    ]
    + [(">i2", "int16"), (">f4", "float32"), (">u4", "uint32"), (">c8", "complex64")],
)
def test_numpy_dtypes(name: str, fill: Fill, dtype: str, wanted: str) -> None:
    values = np.array([[0, 1], [100, 77]]).astype(dtype)
    fill([values], dtype=dtype)
    tensor = dataset(name, 1)[0]["data"]
    assert tensor.dtype == getattr(torch, wanted)
    assert np.array_equal(tensor.numpy(), values[None])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_extension_dtypes(name: str, fill: Fill, dtype: str) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    values = np.array([[0, 1.5], [-2, 28]]).astype(resolve_numpy_dtype(dtype))
    fill([values], dtype=dtype)
    tensor = dataset(name, 1)[0]["data"]
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.float().tolist() == [[[0, 1.5], [-2, 28]]]


@pytest.mark.parametrize("dtype", ["datetime64[s]", "S4", "longdouble", "clongdouble", "i4,f4"])
def test_dtypes_that_torch_lacks(name: str, fill: Fill, dtype: str) -> None:
    fill([np.zeros(3, dtype)], dtype=dtype)
    with pytest.raises(ValueError, match=rf"{name}.*torch.*does not have"):
        dataset(name, 1)


def test_odd_shapes(name: str, fill: Fill) -> None:
    shapes: list[tuple[int, ...]] = [(), (0, 3), (5,), (1, 2, 1, 2, 1, 2)]
    fill([np.ones(shape, np.float32) for shape in shapes])
    data = dataset(name, len(shapes))
    assert [tuple(data[k]["data"].shape) for k in range(len(shapes))] == [(1, *s) for s in shapes]


def test_not_ready_in_time(name: str, fill: Fill) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=name):
        dataset(name, 1, ready_timeout=0.3)
    assert 0.2 < time.monotonic() - started < 5
    fill(chunks(2))
    assert len(dataset(name, 0)) == 0
    with pytest.raises(TimeoutError):  # nobody has said that it is ready
        dataset(name, 2, ready_timeout=0.3, strict=True)


def test_bad_arguments(name: str, fill: Fill) -> None:
    fill(chunks(1))
    with pytest.raises(TypeError, match=r"transforms\[1\] .*Ellipsis"):
        dataset(name, 1, transforms=[dict, ...])
    with pytest.raises(ValueError, match="slot_count"):
        dataset(name, -1)
    with pytest.raises(ValueError):
        dataset("a/b", 1)


def test_removed_between_look_and_attach(
    name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(chunks(1))
    attach = coordination.attach
    calls: list[object] = []

    def gone_first(paths: coordination.PoolPaths) -> SharedVector:
        calls.append(paths)
        if len(calls) == 1:
            raise FileNotFoundError(paths.name)
        return attach(paths)

    monkeypatch.setattr(coordination, "wait_until_ready", lambda *args: None)
    monkeypatch.setattr(coordination, "attach", gone_first)
    assert (dataset(name, 1, poll_interval=0.01)[0]["data"] == 0).all()
    assert len(calls) == 2


class Retired:
    """A vector whose pool lost its owner."""

    numpy_dtype = np.dtype("float32")
    retired = True
    retired_reason = "its owner ended"


def test_retired_pool_stops_the_items(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "wait_until_ready", lambda *args: None)
    monkeypatch.setattr(coordination, "attach", lambda paths: Retired())
    data = dataset(name, 1)
    with pytest.raises(PoolStalledError, match=rf"{name}.*its owner ended"):
        data[0]


def test_stats(name: str, fill: Fill) -> None:
    fill(chunks())
    data = dataset(name, 4)
    data[0]
    stats = data.stats()
    assert (stats.slots, stats.slot_pending_reads_mean) == (4, 0.25)
    assert pickle.loads(pickle.dumps(data)).stats() == stats


def test_pickle_attaches_on_first_use(name: str, fill: Fill) -> None:
    fill(chunks())
    copy = pickle.loads(pickle.dumps(dataset(name, 4, ready_timeout=0.2)))
    assert (len(copy), copy.name) == (4, name)
    assert (copy[3]["data"] == 3).all()
    late = pickle.loads(pickle.dumps(copy))
    remove_shared_memory(name)
    assert (copy[3]["data"] == 3).all()  # those attached keep their data
    with pytest.raises(TimeoutError):
        late[0]


def test_from_pool(name: str, fill: Fill, tmp_path: Path) -> None:
    class Handle:
        slot_count = 2
        lock_dir = tmp_path

    Handle.name = name  # type: ignore[attr-defined]
    fill(chunks())
    data = SharedMemoryDataset.from_pool(Handle(), strict=False)  # type: ignore[arg-type]
    assert (len(data), data.name) == (2, name)
    with pytest.raises(TypeError, match="slot_count"):
        SharedMemoryDataset.from_pool(Handle(), slot_count=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loader_workers(name: str, fill: Fill, tmp_path: Path, method: str) -> None:
    vector = fill(
        [np.full((2, 3), k, np.int16) for k in range(8)], [[k] for k in range(8)], "int16"
    )
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        from torch.utils.data import DataLoader
        from sharedvector.dataset import SharedMemoryDataset

        if __name__ == "__main__":
            torch.set_num_threads(1)
            data = SharedMemoryDataset({name!r}, 8, ready_timeout=20, strict=False)
            loader = DataLoader(
                data, batch_size=2, num_workers=2, persistent_workers=True, timeout=60,
                multiprocessing_context={method!r}, shuffle=True,
            )
            for epoch in range(2):
                seen = []
                for batch in loader:
                    assert batch["data"].shape == (2, 1, 2, 3), batch["data"].shape
                    assert (batch["data"] == batch["spacing"].view(2, 1, 1, 1)).all()
                    seen += batch["spacing"].flatten().tolist()
                assert sorted(seen) == list(range(8)), seen
            for batch in loader:
                break
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [vector.get_chunk_ref_count(k) for k in range(8)] == [0] * 8


def test_missing_torch_is_said() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "try: import sharedvector.dataset\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert "sharedvector[torch]" in done.stdout, done.stderr
