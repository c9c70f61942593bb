"""The PyTorch dataset: items, dtypes, waiting, workers under every start method."""

from __future__ import annotations

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
from core_support import in_child
from pool_support import run, unique

from sharedvector import PoolGoneError, PoolHandle, PoolPaths
from sharedvector._coordination import readiness
from sharedvector.loaders import resolve_numpy_dtype
from sharedvector.vector import PoolStalledError, SharedVector, remove_shared_memory

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from sharedvector.dataset import SharedMemoryDataset  # noqa: E402
from sharedvector.training import batch_memory, collate  # noqa: E402

Fill = Callable[..., SharedVector]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", 1)


@pytest.fixture
def name() -> Iterator[str]:
    made = unique("dataset")
    yield made
    remove_shared_memory(made)


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


@pytest.mark.parametrize("small_bytes", [1, 1 << 20])
def test_items(name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
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
    assert len(list(data)) == len(data) == 3  # of a pool with four slots
    for index in (3, 4, 1000, -4):
        with pytest.raises(IndexError, match="out of range for 3 slots"):
            data[index]
    for index in ("a", 1.0, slice(0, 2), None):
        with pytest.raises(TypeError):
            data[index]  # type: ignore[index]


@pytest.mark.parametrize("field", ["ready_timeout", "poll_interval"])
def test_times_that_never_come(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} should be a number of seconds, got nan"):
        dataset(name, 1, **{field: float("nan")})


def test_a_time_that_is_over_is_one_look(name: str, fill: Fill) -> None:
    with pytest.raises(TimeoutError, match=name):
        dataset(name, 1, ready_timeout=-1)
    fill(chunks())
    assert len(dataset(name, 4, ready_timeout=-1, poll_interval=-1)) == 4


def test_the_pool_that_was_ready_is_the_one(
    name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fill(chunks())
    look = readiness.wait_and_look

    def replaced(*arguments: Any) -> readiness.Look:
        found = look(*arguments)
        remove_shared_memory(name)
        SharedVector(name, slot_count=4, chunk_size=4096).close()  # the next reign, not filled
        return found

    monkeypatch.setattr("sharedvector.training.dataset.wait_and_look", replaced)
    data = dataset(name, 4)
    assert (data[3]["data"] == 3).all()
    assert first.inode == data._usable().vector.inode


def test_transforms_in_order(name: str, fill: Fill) -> None:
    fill(chunks(), [[5]] * 4)
    data = dataset(name, 4, transforms=[plus_one, doubled], meta_key="position")
    item = pickle.loads(pickle.dumps(data))[3]
    assert list(item) == ["data", "position"]
    assert item["data"].unique().tolist() == [8.0]


def test_no_transforms(name: str, fill: Fill) -> None:
    fill(chunks())
    for none in (None, (), []):
        assert dataset(name, 4, transforms=none)[3]["data"].unique().tolist() == [3.0]


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (dtype, dtype.lstrip("<>"))
        for dtype in "bool int8 uint8 int16 int32 int64 uint16 uint32 uint64 float16 float32 "
        "float64 complex64 complex128".split()
    ]
    + [(">i2", "int16"), (">f4", "float32"), (">u4", "uint32"), (">c8", "complex64")],
)
@pytest.mark.parametrize("small_bytes", [1, 1 << 20])
def test_numpy_dtypes(
    name: str,
    fill: Fill,
    dtype: str,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
    values = np.array([[0, 1], [100, 77]]).astype(dtype)
    fill([values], dtype=dtype)
    tensor = dataset(name, 1)[0]["data"]
    assert tensor.dtype == getattr(torch, wanted)
    assert np.array_equal(tensor.numpy(), values[None])


@pytest.mark.parametrize("small_bytes", [1, 1 << 20])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_extension_dtypes(
    name: str, fill: Fill, dtype: str, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
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
    assert 0.2 < time.monotonic() - started < 30  # not the 60 s that are the default
    fill(chunks(2))
    assert len(dataset(name, 0)) == 0
    with pytest.raises(TimeoutError):  # nobody has said that it is ready
        dataset(name, 2, ready_timeout=0.3, strict=True)


def test_bad_arguments(name: str, fill: Fill) -> None:
    fill(chunks(1))
    with pytest.raises(TypeError, match=r"transforms\[1\] .*Ellipsis"):
        dataset(name, 1, transforms=[dict, ...])
    for wrong in (3, plus_one):
        with pytest.raises(TypeError, match=f"transforms should be a sequence.*got {wrong!r}"):
            dataset(name, 1, transforms=wrong)
    with pytest.raises(ValueError, match="slot_count"):
        dataset(name, -1)
    with pytest.raises(TypeError, match="integer"):
        dataset(name, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="meta_key"):
        dataset(name, 1, meta_key="data")
    with pytest.raises(ValueError):
        dataset("a/b", 1)


def test_removed_between_look_and_attach(
    name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(chunks(1))
    attach = readiness.attach
    calls: list[object] = []

    def gone_first(paths: PoolPaths) -> SharedVector:
        calls.append(paths)
        if len(calls) == 1:
            raise FileNotFoundError(paths.name)
        return attach(paths)

    monkeypatch.setattr(readiness, "wait_until_ready", lambda *args: None)
    monkeypatch.setattr(readiness, "attach", gone_first)
    assert (dataset(name, 1, poll_interval=0.01)[0]["data"] == 0).all()
    assert len(calls) == 2


class Retired:
    """A vector whose pool lost its owner."""

    numpy_dtype = np.dtype("float32")
    retired = True
    retired_reason = "its owner ended"


def test_retired_pool_stops_the_items(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = readiness.ReadyState(True, "ready", None)
    found = readiness.Look(state, Retired())  # type: ignore[arg-type]
    monkeypatch.setattr("sharedvector.training.dataset.wait_and_look", lambda *args: found)
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


def test_stats_of_a_copy_do_not_wait(name: str, fill: Fill) -> None:
    fill(chunks())
    data = pickle.dumps(dataset(name, 4, ready_timeout=600))
    remove_shared_memory(name)
    copy = pickle.loads(data)
    with pytest.raises(TimeoutError, match=f"{name}.*no segment of that name"):
        copy.stats()
    fill(chunks(1))
    with pytest.raises(TimeoutError, match=f"{name}.*1/4 slots filled"):
        copy.stats()
    remove_shared_memory(name)
    fill(chunks())
    assert copy.stats().slots == 4  # later, when it is ready
    assert copy[3]["data"].unique().tolist() == [3.0]


def test_a_pool_that_is_gone_is_not_waited_for(name: str) -> None:
    handle = PoolHandle(PoolPaths.for_name(name), 4, "g1")
    with pytest.raises(PoolGoneError, match=f"pool '{name}' is gone"):
        SharedMemoryDataset.from_pool(handle, ready_timeout=600)


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
    fill(chunks())
    handle = PoolHandle(PoolPaths.for_name(name, tmp_path), 2, None)
    data = SharedMemoryDataset.from_pool(handle, strict=False)
    assert (len(data), data.name) == (2, name)
    with pytest.raises(TypeError, match="slot_count"):
        SharedMemoryDataset.from_pool(handle, slot_count=3)


@pytest.mark.timeout(600)  # nine interpreters that import torch
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loader_workers(name: str, fill: Fill, tmp_path: Path, method: str) -> None:
    vector = fill(
        [np.full((2, 3), k, np.int16) for k in range(8)], [[k] for k in range(8)], "int16"
    )
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import warnings
        import torch
        from torch.utils.data import DataLoader
        from sharedvector.dataset import SharedMemoryDataset

        # What torch says where two workers are more than there are cores.
        warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")
        if __name__ == "__main__":
            torch.set_num_threads(1)
            data = SharedMemoryDataset({name!r}, 8, ready_timeout=20, strict=False)
            loader = DataLoader(
                data, batch_size=2, num_workers=2, persistent_workers=True, timeout=300,
                multiprocessing_context={method!r}, shuffle=True,
            )
            for epoch in range(2):
                seen = []
                for batch in loader:
                    assert batch["data"].shape == (2, 1, 2, 3), batch["data"].shape
                    assert batch["data"].is_shared()
                    assert (batch["data"] == batch["spacing"].view(2, 1, 1, 1)).all()
                    seen += batch["spacing"].flatten().tolist()
                assert sorted(seen) == list(range(8)), seen
            for batch in loader:
                break
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [vector.get_chunk_ref_count(k) for k in range(8)] == [0] * 8


# ---- batches ---------------------------------------------------------------------------------


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the lists of tensors that torch had to stack: none when items became the batch."""
    sizes: list[int] = []
    stack = collate._stack

    def counting(batch: Any, **kwargs: Any) -> Any:
        sizes.append(len(batch))
        return stack(batch, **kwargs)

    monkeypatch.setattr(collate, "_stack", counting)
    return sizes


def batches(data: Any, size: int = 4, **kwargs: Any) -> list[dict[str, Any]]:
    return list(DataLoader(data, batch_size=size, **kwargs))


def values(batch: dict[str, Any]) -> list[float]:
    """The value of each item, which must be the same all over it."""
    data = batch["data"].reshape(len(batch["data"]), -1)
    assert bool((data == data[:, :1]).all())
    return data[:, 0].tolist()  # type: ignore[no-any-return]


def test_getitems_are_items(name: str, fill: Fill) -> None:
    vector = fill(chunks(), [[1, 2, 3.5], None, (4,), None])
    data = dataset(name, 4, transforms=[plus_one])
    items = data.__getitems__([2, 0, np.int64(3), 0, -1])
    assert [item["data"].unique().tolist() for item in items] == [[3], [1], [4], [1], [4]]
    assert [set(item) for item in items] == [set(data[k]) for k in (2, 0, 3, 0, 3)]
    assert items[1]["spacing"].tolist() == [1, 2, 3.5]
    for item in dataset(name, 4).__getitems__([0, 1]):
        assert item["data"].shape == (1, 2, 3, 4) and item["data"].is_contiguous()
        assert item["data"].untyped_storage().nbytes() == item["data"].nbytes
    assert vector.read_counts().tolist() == [2 + 2 + 1, 1, 1 + 1, 2 + 2]
    assert data.__getitems__([]) == []


def test_getitems_bad_indices(name: str, fill: Fill) -> None:
    vector = fill(chunks())
    data = dataset(name, 4)
    for index in (4, -5):
        with pytest.raises(IndexError):
            data.__getitems__([0, index])
    with pytest.raises(TypeError):
        data.__getitems__([0, "a"])  # type: ignore[list-item]
    assert vector.read_counts().tolist() == [0] * 4


def test_unchanged_items_are_the_batch(name: str, fill: Fill, stacked: list[int]) -> None:
    vector = fill(chunks(8), [[k] for k in range(8)])
    got = batches(dataset(name, 8))
    assert [values(batch) for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [batch["spacing"].flatten().tolist() for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert stacked == [4, 4]  # the metadata
    assert got[0]["data"].shape == (4, 1, 2, 3, 4) and type(got[0]["data"]) is torch.Tensor
    assert got[0]["data"].untyped_storage().nbytes() == got[0]["data"].nbytes
    got[0]["data"].zero_()
    assert [values(batch) for batch in batches(dataset(name, 8))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert vector.read_counts().tolist() == [2] * 8


def test_batches_that_are_kept_stay(name: str, fill: Fill, stacked: list[int]) -> None:
    vector = fill(chunks(8))
    data = dataset(name, 8)
    kept = [batch for _ in range(5) for batch in batches(data)]
    assert [values(batch) for batch in kept] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 5
    assert len({batch["data"].data_ptr() for batch in kept}) == 10
    vector.close()
    del data
    remove_shared_memory(name)

    def child() -> None:
        assert values(kept[3]) == [4, 5, 6, 7]
        kept[3]["data"].zero_()

    assert in_child(child) == 0
    assert values(kept[3]) == [4, 5, 6, 7]
    assert stacked == []


def test_memory_of_dropped_batches_is_used_again(name: str, fill: Fill) -> None:
    fill(chunks(8))
    loader = DataLoader(dataset(name, 8), batch_size=4)
    addresses = {batch["data"].data_ptr() for _ in range(6) for batch in loader}
    assert len(addresses) == 2  # the one in use and the next


def test_subset_and_small_last_batch(name: str, fill: Fill, stacked: list[int]) -> None:
    fill(chunks(8))
    data = torch.utils.data.Subset(dataset(name, 8), [7, 1, 6, 2, 2])
    assert [values(batch) for batch in batches(data, 3)] == [[7, 1, 6], [2, 2]]
    assert stacked == []


def test_change_in_place_stays_in_its_item(name: str, fill: Fill, stacked: list[int]) -> None:
    vector = fill(chunks())

    def negate_odd(item: dict[str, Any]) -> dict[str, Any]:
        if item["data"][0, 0, 0, 0] % 2:
            item["data"].neg_()
        return item

    data = dataset(name, 4, transforms=[negate_odd])
    (batch,) = batches(data)
    assert values(batch) == [0, -1, 2, -3]
    assert stacked == []
    items = data.__getitems__([1, 1, 2])
    assert [item["data"].unique().tolist() for item in items] == [[-1], [-1], [2]]
    assert [np.unique(vector.get(k)).tolist() for k in range(4)] == [[0], [1], [2], [3]]


def cast(item: dict[str, Any]) -> dict[str, Any]:
    return {"data": item["data"].double()}


def crop(item: dict[str, Any]) -> dict[str, Any]:
    return {"data": item["data"][:, :, 1:3, :2]}


def swap(item: dict[str, Any]) -> dict[str, Any]:
    return {"data": item["data"].transpose(1, 2)}


def rewrap(item: dict[str, Any]) -> dict[str, Any]:
    return {"data": item["data"].as_subclass(torch.nn.Parameter), "copy": item["data"]}


def learn(item: dict[str, Any]) -> dict[str, Any]:
    return {"data": item["data"].requires_grad_()}


def to_tuple(item: dict[str, Any]) -> Any:
    return item["data"], 1


@pytest.mark.parametrize("transform", [plus_one, doubled, cast, crop, swap, rewrap, learn])
def test_other_transforms_are_stacked(
    name: str, fill: Fill, stacked: list[int], transform: Any
) -> None:
    fill([np.arange(24, dtype=np.float32).reshape(2, 3, 4) + k for k in range(4)])
    data = dataset(name, 4, transforms=[transform])
    (batch,) = batches(data)
    wanted = [data[k]["data"] for k in range(4)]
    assert batch["data"].dtype == wanted[0].dtype
    assert torch.equal(batch["data"], torch.stack(wanted))
    assert stacked


def test_tuples(name: str, fill: Fill) -> None:
    fill(chunks())
    (batch,) = batches(dataset(name, 4, transforms=[to_tuple]))
    assert values({"data": batch[0]}) == [0, 1, 2, 3] and batch[1].tolist() == [1] * 4


@pytest.mark.parametrize(
    "look",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[0, :1],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.numpy(),
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: [[tensor]],
    ],
)
def test_who_remembers_an_item_keeps_it(
    name: str, fill: Fill, stacked: list[int], look: Any
) -> None:
    fill(chunks())
    kept: list[Any] = []

    def remember(item: dict[str, Any]) -> dict[str, Any]:
        if item["data"][0, 0, 0, 0] == 2:
            kept.append(look(item["data"]))
        return item

    (batch,) = batches(dataset(name, 4, transforms=[remember]))
    assert values(batch) == [0, 1, 2, 3]
    assert stacked == [4]
    batch["data"].zero_()
    (thing,) = kept
    while isinstance(thing, list):
        (thing,) = thing
    if "capsule" in repr(type(thing)).lower():
        thing = torch.utils.dlpack.from_dlpack(thing)
    if isinstance(thing, torch.UntypedStorage):
        thing = torch.empty(0).set_(thing)  # type: ignore[call-overload]
    assert np.unique(np.asarray(thing)).tolist() == [2]


def remember_item(item: dict[str, Any], kept: list[Any]) -> Any:
    kept.append(item)
    return item


def remember_inner(item: dict[str, Any], kept: list[Any]) -> Any:
    kept.append(item)
    return {"inner": item}


def remember_and_wrap(item: dict[str, Any], kept: list[Any]) -> Any:
    kept.append({"data": item["data"]})
    return {"data": torch.from_numpy(item["data"].numpy())}


def remember_and_pass_on(item: dict[str, Any], kept: list[Any]) -> Any:
    kept.append({"data": item["data"]})
    return {"data": torch.from_dlpack(item["data"])}


@pytest.mark.parametrize(
    "remember", [remember_item, remember_inner, remember_and_wrap, remember_and_pass_on]
)
def test_who_remembers_more_than_the_tensor_keeps_it(name: str, fill: Fill, remember: Any) -> None:
    fill(chunks())
    kept: list[Any] = []
    (batch,) = batches(dataset(name, 4, transforms=[lambda item: remember(item, kept)]))
    batch = batch.get("inner", batch)
    assert values(batch) == [0, 1, 2, 3]
    batch["data"].fill_(-1)
    assert [item["data"].unique().tolist() for item in kept] == [[0], [1], [2], [3]]


class Cached(torch.utils.data.Dataset[Any]):
    """Remembers the items of each batch, and gives them again."""

    def __init__(self, data: SharedMemoryDataset, keep: Callable[[Any], Any]) -> None:
        self.data, self.keep = data, keep
        self.cache: dict[tuple[int, ...], Any] = {}

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        key = tuple(indices)
        if key not in self.cache:
            self.cache[key] = self.keep(self.data.__getitems__(indices))
        return self.cache[key]  # type: ignore[no-any-return]


@pytest.mark.parametrize("keep", [lambda items: items, lambda items: tuple(items)])
def test_dataset_around_that_keeps_its_items(name: str, fill: Fill, keep: Any) -> None:
    fill(chunks())
    data = Cached(dataset(name, 4), keep)
    for _ in range(3):
        (batch,) = batches(data)
        assert values(batch) == [0, 1, 2, 3]
        batch["data"].fill_(-1)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_default_device(
    name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
    fill(chunks(), [[1]] * 4)
    data = dataset(name, 4)
    with torch.device("meta"):
        items = [data[1], *data.__getitems__([1, 1])]
    assert [item["data"].unique().tolist() for item in items] == [[1], [1], [1]]


def test_own_collate_function_has_its_items(name: str, fill: Fill) -> None:
    fill(chunks())

    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(torch.utils.data.default_collate(items))
        batch["data"].zero_()
        batch["again"] = torch.utils.data.default_collate(items)["data"]
        batch["items"] = [item["data"] for item in reversed(items)]
        return batch

    (batch,) = batches(dataset(name, 4), collate_fn=collate)
    assert values(batch) == [0, 0, 0, 0]
    assert values({"data": batch["again"]}) == [0, 1, 2, 3]
    assert [int(item.unique()) for item in batch["items"]] == [3, 2, 1, 0]


def test_other_orders_are_stacked(name: str, fill: Fill, stacked: list[int]) -> None:
    fill(chunks())

    class Reversed(torch.utils.data.Dataset[Any]):
        inner = dataset(name, 4)

        def __len__(self) -> int:
            return 4

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return self.inner.__getitems__(indices)[::-1]

    assert [values(batch) for batch in batches(Reversed())] == [[3, 2, 1, 0]]
    assert [values(batch) for batch in batches(Reversed(), 1)] == [[0], [1], [2], [3]]
    assert stacked == [4]


def test_subclass_with_items_of_its_own(name: str, fill: Fill) -> None:
    fill(chunks())

    class Labelled(SharedMemoryDataset):
        def __getitem__(self, index: Any) -> dict[str, Any]:
            return {**super().__getitem__(index), "label": int(index) * 10}

    (batch,) = batches(Labelled(name, 4, ready_timeout=5.0, strict=False))
    assert values(batch) == [0, 1, 2, 3] and batch["label"].tolist() == [0, 10, 20, 30]


def test_chunks_of_different_shapes(name: str, fill: Fill) -> None:
    fill([np.full((k + 1, 2), k, np.float32) for k in range(4)])
    (items,) = batches(dataset(name, 4), collate_fn=list)
    assert [tuple(item["data"].shape) for item in items] == [(1, k + 1, 2) for k in range(4)]
    assert [item["data"].unique().tolist() for item in items] == [[0], [1], [2], [3]]
    with pytest.raises(RuntimeError, match="equal size"):
        batches(dataset(name, 4))


def test_shape_that_changes_meanwhile(name: str, fill: Fill) -> None:
    vector = fill(chunks())
    data = dataset(name, 4)
    reader = data._attached
    assert reader is not None

    class Late:
        """Another shape arrives between the look at the shapes and the copy."""

        def __getattr__(self, attribute: str) -> Any:
            if attribute == "gather_with_meta":
                vector.replace(2, np.full((5,), 9, np.float32))
            return getattr(reached, attribute)

    reached, reader.vector = reader.vector, Late()  # type: ignore[assignment]
    items = data.__getitems__([0, 1, 2, 3])
    assert [tuple(item["data"].shape[1:]) for item in items] == [(2, 3, 4)] * 2 + [(5,), (2, 3, 4)]
    assert [item["data"].unique().tolist() for item in items] == [[0], [1], [9], [3]]


@pytest.mark.parametrize("dtype", [">i2", ">c8", "bool", "bfloat16", "float8_e5m2", "uint16"])
def test_batches_of_other_dtypes(name: str, fill: Fill, stacked: list[int], dtype: str) -> None:
    if dtype.startswith(("bf", "float8")):
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    made = resolve_numpy_dtype(dtype)
    fill([np.array([[0, 1], [k, 2]]).astype(made) for k in range(3)], dtype=made)
    data = dataset(name, 3)
    (batch,) = batches(data)
    items = [data[k]["data"] for k in range(3)]
    assert batch["data"].dtype == items[0].dtype
    got = [tensor.to(torch.complex64).tolist() for tensor in batch["data"]]
    assert got == [item.to(torch.complex64).tolist() for item in items]
    assert stacked == []


def test_odd_shapes_in_batches(name: str, fill: Fill) -> None:
    shapes: list[tuple[int, ...]] = [(), (0, 3), (5,), (1, 2, 1, 2, 1, 2)]
    fill([np.full(shape, k, np.float32) for k, shape in enumerate(shapes) for _ in range(2)])
    for batch, shape in zip(batches(dataset(name, 8), 2), shapes, strict=True):
        assert tuple(batch["data"].shape) == (2, 1, *shape)


def test_items_pin_nothing(name: str) -> None:
    """One spare buffer is enough for any batch: the writer never waits for items."""
    with SharedVector(name, chunk_size=4096, slot_count=4, spare_buffers=1) as vector:
        for chunk in chunks():
            vector.append(chunk)
        data = dataset(name, 4)
        kept = []
        for turn in range(20):
            kept += data.__getitems__([0, 1, 2, 3])
            for slot in range(4):
                vector.replace(slot, np.full((2, 3, 4), turn, np.float32), timeout=5.0)
        assert [vector.get_chunk_ref_count(slot) for slot in range(4)] == [0] * 4
        assert [int(item["data"].unique()) for item in kept[-4:]] == [18] * 4
        assert [int(item["data"].unique()) for item in kept[:4]] == [0, 1, 2, 3]


class ReplaceItsSlot:
    """A transform that replaces the chunk which its item was made of: that must not be pinned."""

    def __init__(self, vector: SharedVector) -> None:
        self.vector = vector
        self.slot = 0

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        self.vector.replace(self.slot, np.full((2, 3, 4), 9, np.float32))
        return item


@pytest.mark.parametrize("small_bytes", [1, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"crop": (1, 2, 3)}, {"dtype": "float64"}])
def test_nothing_is_pinned_while_transforms_run(
    name: str,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
    replace = ReplaceItsSlot(fill(chunks()))
    data = dataset(name, 4, transforms=[replace], **options)
    for replace.slot in range(4):
        assert data[replace.slot]["data"].unique().tolist() == [replace.slot]
        assert data.__getitems__([replace.slot])[0]["data"].unique().tolist() == [9]


# ---- crops and conversions ---------------------------------------------------------------------


def ramp(shape: tuple[int, ...], dtype: Any = np.int32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def place_of(item: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where a crop of `ramp` was cut out; it is compared with what it should be."""
    origin = np.unravel_index(int(item.flatten()[0]), shape)
    part = tuple(slice(o, o + n) for o, n in zip(origin, item.shape[1:], strict=True))
    assert np.array_equal(item[0].numpy(), ramp(shape)[part])
    return tuple(map(int, origin))


@pytest.mark.parametrize("small_bytes", [1, 1 << 20])
def test_crops(name: str, fill: Fill, monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", small_bytes)
    shapes = [(3, 4, 5), (2, 6, 4), (2, 3, 4)]
    vector = fill([ramp(shape) for shape in shapes], [[k] for k in range(3)], dtype="int32")
    data = dataset(name, 3, crop=(2, 3, 4))
    torch.manual_seed(0)
    for slot, shape in enumerate(shapes):
        items = [data[slot] for _ in range(50)] + data.__getitems__([slot] * 50)
        assert all(item["spacing"].tolist() == [slot] for item in items)
        assert all(item["data"].shape == (1, 2, 3, 4) for item in items)
        places = {place_of(item["data"], shape) for item in items}
        assert len(places) == (shape[0] - 1) * (shape[1] - 2) * (shape[2] - 3)  # each was hit
    assert vector.read_counts().tolist() == [100] * 3


def test_crops_of_a_batch_are_the_batch(name: str, fill: Fill, stacked: list[int]) -> None:
    shapes = [(4, 6, 8), (2, 6, 4), (5, 9, 7), (3, 4, 5)]
    fill([ramp(shape) for shape in shapes], dtype="int32")
    (batch,) = batches(dataset(name, 4, crop=(2, 3, 4)))
    assert batch["data"].shape == (4, 1, 2, 3, 4) and not stacked
    for item, shape in zip(batch["data"], shapes, strict=True):
        place_of(item, shape)


def test_crops_follow_torchs_seed(name: str, fill: Fill) -> None:
    fill([ramp((9, 10, 11))] * 4, dtype="int32")
    data = dataset(name, 4, crop=(1, 1, 1), flip=[0])

    def epochs(seed: int) -> list[list[float]]:
        torch.manual_seed(seed)
        return [values(batch) for _ in range(2) for batch in batches(data)]

    first = epochs(3)
    assert first[0] != first[1]
    assert epochs(3) == first and epochs(4) != first


def test_crops_differ_in_each_worker_and_epoch(name: str, fill: Fill) -> None:
    fill([ramp((9, 10, 11))] * 4, dtype="int32")
    data = dataset(name, 4, crop=(1, 1, 1))
    loader = DataLoader(data, 1, sampler=[0] * 8, num_workers=2, multiprocessing_context="fork")
    drawn = [tuple(values(batch)[0] for batch in loader) for _ in range(2)]
    assert drawn[0] != drawn[1]
    for epoch in drawn:  # batches come from the workers in turn
        assert epoch[0::2] != epoch[1::2]


def test_dtype_scale_offset_flip(name: str, fill: Fill) -> None:
    fill([ramp((2, 3), np.int16)] * 4, dtype="int16")
    data = dataset(name, 4, dtype=torch.float32, scale=0.5, offset=-3, flip=[0, -1])
    base = ramp((2, 3))
    wanted = {tuple(a.flatten()) for a in (base, base[::-1], base[:, ::-1], base[::-1, ::-1])}
    seen = set()
    for item in [data[k % 4] for k in range(60)] + data.__getitems__([0] * 60):
        assert item["data"].dtype == torch.float32
        seen.add(tuple(((item["data"] + 3) * 2).flatten().tolist()))
    assert seen == wanted


def test_big_endian_pools_are_cropped(name: str, fill: Fill) -> None:
    fill([ramp((4, 5), ">i4")] * 2, dtype=">i4")
    place_of(dataset(name, 2, crop=(2, 2))[0]["data"], (4, 5))


def test_a_shape_that_changes_is_converted_as_it_is(name: str, fill: Fill) -> None:
    vector = fill(chunks())
    data = dataset(name, 4, dtype="float64")
    reader = data._attached
    assert reader is not None
    shape_of = reader.shape_of

    def late(slots: Any) -> Any:
        found = shape_of(slots)
        if vector.write_counts()[2] == 1:
            vector.replace(2, np.full((5,), 9, np.float32))
        return found

    reader.shape_of = late  # type: ignore[method-assign]
    assert data[2]["data"].tolist() == [[9.0] * 5]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"crop": (3, 3, 4)},
            ValueError,
            r"crop should fit into the chunks.*\(2, 3, 4\) in slot 0",
        ),
        ({"crop": (1, 1)}, ValueError, "crop should have one length per dimension"),
        ({"crop": (1, 0, 1)}, ValueError, "crop should be 1 or more, got 0"),
        ({"crop": 3}, TypeError, "crop should be a sequence of lengths, got 3"),
        ({"crop": (1, 1, 1), "flip": [3]}, ValueError, "flip should name dimensions"),
        ({"flip": [-4]}, ValueError, "flip should name dimensions"),
        ({"dtype": "int16", "scale": 2}, ValueError, "scale and offset need a floating dtype"),
        ({"dtype": "float64", "scale": float("nan")}, ValueError, "scale should be a finite"),
        ({"dtype": "complex64"}, TypeError, "dtype, scale and offset should suit pool"),
    ],
)
def test_options_that_do_not_fit_are_refused_at_once(
    name: str, fill: Fill, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    fill(chunks())
    with pytest.raises(error, match=said):
        dataset(name, 4, **options)


def test_a_crop_that_does_not_fit_a_later_chunk(name: str, fill: Fill) -> None:
    fill([ramp((4, 4)), ramp((2, 4))], dtype="int32")
    data = dataset(name, 2, crop=(3, 3))
    place_of(data[0]["data"], (4, 4))
    for read in (lambda: data[1], lambda: data.__getitems__([0, 1])):
        with pytest.raises(ValueError, match="crop"):
            read()


def test_pickled_copies_crop(name: str, fill: Fill) -> None:
    fill([ramp((4, 4))] * 2, dtype="int32")
    copy = pickle.loads(pickle.dumps(dataset(name, 2, crop=(3, 3))))
    place_of(copy[1]["data"], (4, 4))


def test_without_torch_internals_batches_are_stacked(name: str, fill: Fill) -> None:
    fill(chunks())
    status, out, err = run(f"""
        import torch
        del torch._C._storage_Use_Count
        from torch.utils.data import DataLoader
        from sharedvector.dataset import SharedMemoryDataset
        data = SharedMemoryDataset({name!r}, 4, ready_timeout=20, strict=False)
        for batch in DataLoader(data, batch_size=4):
            print(batch["data"].flatten(1).unique(dim=1).flatten().tolist())
        """)
    assert (status, out, err) == (0, "[0.0, 1.0, 2.0, 3.0]\n", "")


def test_collate_functions_of_others_are_called(name: str, fill: Fill) -> None:
    fill(chunks())
    for first in (True, False):
        lines = [
            "from torch.utils.data._utils.collate import default_collate_fn_map as table",
            "table[torch.Tensor] = lambda batch, *, collate_fn_map: ['mine', len(batch)]",
            "from sharedvector.dataset import SharedMemoryDataset",
        ]
        body = "\n".join(lines if first else [lines[2], *lines[:2]])
        status, out, err = run(
            f"import torch\n{body}\n"
            f"data = SharedMemoryDataset({name!r}, 4, ready_timeout=20, strict=False)\n"
            "print(next(iter(torch.utils.data.DataLoader(data, batch_size=4)))['data'])\n"
        )
        assert (status, out, err) == (0, "['mine', 4]\n", "")


def test_missing_torch_is_said() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "try: import sharedvector.dataset\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False
    )
    assert "sharedvector[torch]" in done.stdout, done.stderr
