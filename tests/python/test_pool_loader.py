"""PoolLoader: batches, crops, orders, ranks, memory, errors, ends."""

from __future__ import annotations

import gc
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from core_support import in_child
from pool_support import Constant, run, spec, unique, wait_for

from sharedvector import PoolLoader, PoolStalledError, SharedVector, ensure_pool
from sharedvector.coordination import PoolPaths
from sharedvector.pool import PoolHandle
from sharedvector.vector import remove_shared_memory

torch = pytest.importorskip("torch", reason="torch is not installed")

from sharedvector.training import batch_memory  # noqa: E402

Fill = Callable[..., PoolHandle]

SHAPE = (4, 6, 8)


@pytest.fixture(autouse=True)
def no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    yield
    gc.collect()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "sharedvector-feed"])


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", 1)


@pytest.fixture
def name() -> Iterator[str]:
    made = unique("loader")
    yield made
    remove_shared_memory(made)


@pytest.fixture
def fill(name: str) -> Iterator[Fill]:
    """fill(arrays, metas) makes a vector, `fill.vector`, and gives a handle on it."""
    made: list[SharedVector] = []

    def make(arrays: Any, metas: Any = None, dtype: Any = "float32") -> PoolHandle:
        vector = SharedVector(name, 4096, slot_count=len(arrays), dtype=dtype)
        made.append(vector)
        for array, meta in zip(arrays, metas or [None] * len(arrays), strict=True):
            vector.append(array, meta)
        make.vector = vector  # type: ignore[attr-defined]
        return PoolHandle(PoolPaths.for_name(name), len(arrays), None)

    yield make
    for vector in made:
        vector.close()


def chunks(count: int = 12, dtype: str = "float32") -> list[np.ndarray[Any, Any]]:
    """Chunk k counts up from 1000 k."""
    ramp = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    return [(ramp + 1000 * k).astype(dtype) for k in range(count)]


def slots(batch: dict[str, Any]) -> list[int]:
    """The slots of an uncropped batch of `chunks`, each compared with what it should be."""
    found = [int(item.flatten()[0]) // 1000 for item in batch["data"]]
    wanted = np.stack([chunks(12)[slot] for slot in found])
    assert np.array_equal(batch["data"].squeeze(1).double().numpy(), wanted)
    return found


def test_batches(name: str, fill: Fill) -> None:
    handle = fill(chunks(), [[k, 2, 3.5] for k in range(12)])
    loader = PoolLoader(handle, 4, sampling="permutation", seed=1)
    assert (len(loader), loader.name) == (3, name)
    got = list(loader)
    assert len(got) == 3
    assert sorted(slot for batch in got for slot in slots(batch)) == list(range(12))
    for batch in got:
        assert list(batch) == ["data", "spacing"] and type(batch["data"]) is torch.Tensor
        assert batch["data"].shape == (4, 1, *SHAPE) and batch["data"].dtype == torch.float32
        assert batch["data"].is_contiguous()
        assert batch["spacing"].shape == (4, 3) and batch["spacing"].dtype == torch.float32
        assert batch["spacing"][:, 0].tolist() == slots(batch)
    assert fill.vector.read_counts().tolist() == [1] * 12  # type: ignore[attr-defined]
    assert loader.stats().slots == 12


def test_without_metadata_and_with_another_key(fill: Fill) -> None:
    assert list(next(iter(PoolLoader(fill(chunks()), 4)))) == ["data"]


def test_metadata_of_different_lengths(fill: Fill) -> None:
    handle = fill(chunks(2), [[1, 2], None])
    loader = PoolLoader(handle, 2, meta_key="place")
    with pytest.raises(ValueError, match=r"slot \d has . metadata values and slot \d has ."):
        next(iter(loader))


@pytest.mark.parametrize("sampling", ["uniform", "permutation", "least_read"])
def test_same_seed_same_batches(fill: Fill, sampling: Any) -> None:
    handle = fill(chunks(), [[k] for k in range(12)])

    def batches(seed: int | None, epochs: int = 2) -> list[Any]:
        loader = PoolLoader(handle, 3, (2, 3, 3), sampling, seed=seed, flip=[0])
        if sampling == "least_read":  # an order that depends on what was read before
            for slot in range(12):
                fill.vector.replace(slot, chunks()[slot], [slot])  # type: ignore[attr-defined]
        return [batch["data"].tolist() for _ in range(epochs) for batch in loader]

    first = batches(7)
    assert batches(7) == first
    assert batches(8) != first and batches(None) != batches(None)
    assert first[:4] != first[4:]  # epochs differ


def test_epochs(fill: Fill) -> None:
    loader = PoolLoader(fill(chunks()), 3, seed=3, steps=5)
    epochs = [[slots(batch) for batch in loader] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert [slots(batch) for batch in loader] == epochs[1]
    assert [slots(batch) for batch in loader] == epochs[2]
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_steps(fill: Fill) -> None:
    handle = fill(chunks())
    for steps in (0, 1, 9):
        loader = PoolLoader(handle, 5, steps=steps, sampling="permutation")
        assert (len(loader), len(list(loader))) == (steps, steps)
    assert len(PoolLoader(handle, 5)) == 2
    assert len(slots(next(iter(PoolLoader(handle, 30, steps=1))))) == 30


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("sampling", ["uniform", "permutation", "least_read"])
def test_ranks(fill: Fill, world_size: int, sampling: Any) -> None:
    handle = fill(chunks())
    seen: list[set[int]] = []
    lengths = set()
    for rank in range(world_size):
        loader = PoolLoader(handle, 2, None, sampling, None, rank, world_size, seed=4)
        lengths.add(len(loader))
        seen.append({slot for _ in range(8) for batch in loader for slot in slots(batch)})
    assert lengths == {12 // world_size // 2}
    assert set.union(*seen) == set(range(12)) and sum(map(len, seen)) == 12


def test_rank_from_the_environment(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = fill(chunks())
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert sorted(slots(next(iter(PoolLoader(handle, 4))))) == [2, 5, 8, 11]


def test_least_read_goes_first(fill: Fill) -> None:
    handle = fill(chunks())
    vector = fill.vector  # type: ignore[attr-defined]
    for slot in range(12):
        for _ in range(slot % 3):
            vector.get(slot)
    loader = PoolLoader(handle, 4, sampling="least_read", prefetch=1)
    first, second, third = loader
    assert sorted(slots(first)) == [0, 3, 6, 9]
    assert set(slots(second)) <= {0, 1, 3, 4, 6, 7, 9, 10}
    assert max(vector.read_counts()) - min(vector.read_counts()) <= 1 and slots(third)


def test_crops(fill: Fill) -> None:
    shapes = [(4, 6, 8), (2, 6, 4), (5, 9, 7)]
    handle = fill(
        [np.arange(np.prod(shape), dtype=np.int32).reshape(shape) for shape in shapes],
        [[k] for k in range(3)],
        "int32",
    )
    loader = PoolLoader(handle, 3, crop=(2, 3, 4), sampling="permutation", steps=900, seed=5)
    origins: list[set[tuple[int, ...]]] = [set(), set(), set()]
    for batch in loader:
        assert batch["data"].shape == (3, 1, 2, 3, 4)
        for item, slot in zip(
            batch["data"], batch["spacing"].int().flatten().tolist(), strict=True
        ):
            origin = np.unravel_index(int(item.flatten()[0]), shapes[slot])
            origins[slot].add(tuple(map(int, origin)))
            whole = np.arange(np.prod(shapes[slot])).reshape(shapes[slot])
            part = tuple(slice(o, o + n) for o, n in zip(origin, (2, 3, 4), strict=True))
            assert np.array_equal(item[0].numpy(), whole[part])
    places = [(s[0] - 1) * (s[1] - 2) * (s[2] - 3) for s in shapes]
    assert [len(found) for found in origins] == places  # each of them was hit


def test_flips(fill: Fill) -> None:
    handle = fill([np.arange(6, dtype=np.int16).reshape(2, 3)] * 4, dtype="int16")
    loader = PoolLoader(handle, 4, steps=30, flip=[0, -1], seed=0)
    seen = {tuple(item.flatten().tolist()) for batch in loader for item in batch["data"]}
    base = np.arange(6).reshape(2, 3)
    flipped = [base, base[::-1], base[:, ::-1], base[::-1, ::-1]]
    assert seen == {tuple(array.flatten().tolist()) for array in flipped}


def test_dtype_scale_offset(fill: Fill) -> None:
    handle = fill(chunks(dtype="int16"), dtype="int16")
    plain = next(iter(PoolLoader(handle, 4)))["data"]
    assert plain.dtype == torch.int16 and slots({"data": plain})
    for dtype in ("float32", np.float32, torch.float32):
        loader = PoolLoader(handle, 4, seed=1, dtype=dtype, scale=0.5, offset=-3)
        data = next(iter(loader))["data"]
        assert data.dtype == torch.float32
        assert slots({"data": (data + 3) * 2})
    assert next(iter(PoolLoader(handle, 4, dtype="float16")))["data"].dtype == torch.float16


@pytest.mark.parametrize("dtype", [">i2", ">f4", "bfloat16", "complex64", "bool"])
def test_pool_dtypes(fill: Fill, dtype: str) -> None:
    if dtype == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        dtype = ml_dtypes.bfloat16
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    handle = fill([array] * 3, dtype=dtype)
    data = next(iter(PoolLoader(handle, 2, crop=(1, 2), steps=1, seed=2)))["data"]
    assert {tuple(item.flatten().tolist()) for item in data.to(torch.complex64)} <= {(0, 1), (1, 0)}
    assert data.dtype == getattr(torch, array.dtype.name)


def test_transforms_change_batches(fill: Fill) -> None:
    def label(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "thread": threading.current_thread().name}

    def zero(batch: dict[str, Any]) -> dict[str, Any]:
        batch["data"].zero_()
        return batch

    handle = fill(chunks())
    batch = next(iter(PoolLoader(handle, 4, transforms=[label, zero])))
    assert batch["thread"] == "sharedvector-feed" and not batch["data"].any()
    assert [int(fill.vector.get(k).max()) for k in (0, 11)] == [191, 11191]  # type: ignore[attr-defined]


def test_no_transforms(fill: Fill) -> None:
    handle = fill(chunks())
    for none in (None, (), []):
        assert slots(next(iter(PoolLoader(handle, 4, transforms=none))))


def test_memory_is_used_again_only_when_dropped(fill: Fill) -> None:
    handle = fill(chunks())
    loader = PoolLoader(handle, 4, steps=40, prefetch=2)
    addresses = {batch["data"].data_ptr() for _ in range(3) for batch in loader}
    assert len(addresses) <= 4
    kept = list(loader)
    views = [batch["data"][1:, :, ::2].numpy() for batch in loader]
    copies = [view.copy() for view in views]
    for batch in kept:
        assert slots(batch)
    for batch in loader:
        batch["data"].fill_(-1)
    assert all(np.array_equal(view, copy) for view, copy in zip(views, copies, strict=True))
    assert [slots(batch) for batch in kept]


def test_batches_outlive_everything(name: str, fill: Fill) -> None:
    handle = fill(chunks())
    loader = PoolLoader(handle, 4)
    batch = next(iter(loader))
    del loader
    fill.vector.close()  # type: ignore[attr-defined]
    remove_shared_memory(name)
    gc.collect()
    assert len(slots(batch)) == 4
    assert in_child(lambda: slots(batch)) == 0


def test_abandoned_half_way(fill: Fill) -> None:
    handle = fill(chunks())
    vector = fill.vector  # type: ignore[attr-defined]
    loader = PoolLoader(handle, 4, steps=10**6)
    for batch in loader:
        assert slots(batch)
        break
    iterator = iter(loader)
    next(iterator)
    del iterator
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "sharedvector-feed"])
    assert [vector.get_chunk_ref_count(slot) for slot in range(12)] == [0] * 12
    reads = vector.read_counts().sum()
    assert len(slots(next(iter(loader)))) == 4 and reads <= vector.read_counts().sum()


def test_two_iterators_at_once(fill: Fill) -> None:
    loader = PoolLoader(fill(chunks()), 3, steps=20)
    for one, other in zip(loader, loader, strict=True):
        assert slots(one) and slots(other)


def test_errors_of_the_thread(fill: Fill) -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("label")

    handle = fill([np.zeros((2, 2), np.float32), np.zeros((2, 3), np.float32)])
    with pytest.raises(KeyError, match="label"):
        list(PoolLoader(handle, 1, transforms=[fail]))
    with pytest.raises(ValueError, match=r"the batch takes 2 x [23]") as found:
        list(PoolLoader(handle, 2))
    assert "crop=" in found.value.__notes__[0]
    with pytest.raises(ValueError, match="crop"):
        list(PoolLoader(handle, 2, crop=(2, 3)))
    with pytest.raises(ValueError, match=r"which has 2, got \(2,\)"):
        list(PoolLoader(handle, 1, flip=(2,)))
    assert [len(batch["data"]) for batch in PoolLoader(handle, 2, crop=(2, 2))] == [2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size should be 1 or more, got 0"),
        ({"batch_size": 13}, "12 slots of a rank do not fill a batch of 13"),
        ({"batch_size": 13, "sampling": "least_read", "steps": 1}, "least_read"),
        ({"sampling": "best"}, "sampling"),
        ({"crop": (1, 0, 2)}, "crop should be 1 or more"),
        ({"steps": -1}, "steps"),
        ({"prefetch": 0}, "prefetch"),
        ({"seed": -1}, "seed"),
        ({"rank": 1}, "go together"),
        ({"rank": 12, "world_size": 13, "steps": 1}, "13 ranks need a slot each.*has 12"),
        ({"rank": 0, "world_size": 13, "steps": 1}, "13 ranks need a slot each.*has 12"),
        ({"scale": float("nan")}, "scale should be a finite number, got nan"),
        ({"offset": float("-inf")}, "offset should be a finite number, got -inf"),
        ({"flip": (3,), "crop": (1, 2, 2)}, r"which has 3, got \(3,\)"),
        ({"flip": (0, -4), "crop": (1, 2, 2)}, r"which has 3, got \(0, -4\)"),
        ({"meta_key": "data"}, "meta_key"),
        ({"scale": 2.0, "dtype": "int16"}, "floating dtype.*int16"),
        ({"dtype": "datetime64[s]"}, "does not have"),
        ({"crop": (2, 3)}, r"crop .*\(2, 3\) for the chunk of shape \(4, 6, 8\) in slot 0"),
        ({"crop": (2, 3, 9)}, r"crop should fit.*\(2, 3, 9\)"),
        ({"flip": [3]}, "flip should name dimensions of a chunk"),
    ],
)
def test_bad_arguments(fill: Fill, settings: dict[str, Any], message: str) -> None:
    handle = fill(chunks())
    with pytest.raises(ValueError, match=message):
        PoolLoader(handle, **{"batch_size": 2, **settings})
    assert len(PoolLoader(handle, 2)) == 6


def test_more_bad_arguments(fill: Fill) -> None:
    handle = fill(chunks(4))
    named: dict[str, tuple[Any, str]] = {
        "batch_size": ("4", "batch_size should be an integer, got '4'"),
        "crop": (8, "crop should be a sequence of lengths, got 8"),
        "flip": (True, "flip should be a sequence of dimensions, got True"),
        "scale": ("x", "scale should be a number, got 'x'"),
        "seed": (1.5, "seed should be an integer, got 1.5"),
        "dtype": ("complex64", "dtype.*no conversion from float32 to complex64"),
        "transforms": (len, "transforms should be a sequence .*, got <built-in function len>"),
    }
    for name, (value, message) in named.items():
        with pytest.raises(TypeError, match=f"^{message}"):
            PoolLoader(handle, **{"batch_size": 2, name: value})
    for settings in (
        {"transforms": [3]},
        {"batch_size": 1.5},
        {"crop": ("a",)},
        {"scale": "2"},
        {"rank": 0, "world_size": 2.0},
    ):
        with pytest.raises(TypeError):
            PoolLoader(handle, **{"batch_size": 2, **settings})  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_without_reading(fill: Fill) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    handle = fill(chunks())
    bad: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"crop": (2,)}, {"flip": [5]}]
    for settings in bad:
        with pytest.raises((TypeError, ValueError), match=f"^{next(iter(settings))}"):
            PoolLoader(handle, 2, **settings)
    PoolLoader(handle, 2, dtype="float64", crop=(1, 2, 3), flip=[-1])
    assert fill.vector.read_counts().sum() == 0  # type: ignore[attr-defined]


def test_pin_memory_without_cuda(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = fill(chunks())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(RuntimeWarning, match="no CUDA device"):
        loader = PoolLoader(handle, 4, pin_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert slots(next(iter(loader))) and not next(iter(loader))["data"].is_pinned()


def test_pinned_batches(fill: Fill) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    loader = PoolLoader(fill(chunks()), 4, pin_memory=True, steps=20)
    on_device = [batch["data"].to("cuda", non_blocking=True) for batch in loader]
    assert all(slots({"data": data.cpu()}) for data in on_device)
    assert next(iter(loader))["data"].is_pinned()


def test_pool_that_ends(name: str) -> None:
    handle = ensure_pool(name, 4, producer=spec(Constant(8)), ready_timeout=150)
    loader = PoolLoader(handle, 2, steps=10**6, prefetch=1)
    iterator = iter(loader)
    assert next(iterator)["data"].shape == (2, 1, 4, 8)
    handle.close()
    with pytest.raises(PoolStalledError, match="its owner closed it"):
        for _ in range(20):
            next(iterator)
    with pytest.raises(PoolStalledError):
        next(iter(loader))
    with pytest.raises(PoolStalledError):
        PoolLoader(handle, 2)


def test_forked_child_works_anew(fill: Fill) -> None:
    loader = PoolLoader(fill(chunks()), 4, steps=5, seed=1)
    iterator = iter(loader)
    before = slots(next(iterator))

    def child() -> None:
        loader.set_epoch(0)
        assert slots(next(iter(loader))) == before
        with pytest.raises(RuntimeError, match="belongs to the parent"):
            next(iterator)

    assert in_child(child) == 0
    assert len([slots(batch) for batch in iterator]) == 4


def test_forks_while_the_thread_copies(fill: Fill) -> None:
    loader = PoolLoader(fill(chunks()), 12, steps=10**6, seed=1)
    for _, batch in zip(range(15), loader, strict=False):
        assert slots(batch)
        assert in_child(lambda: slots(next(iter(loader)))) == 0
    vector = fill.vector  # type: ignore[attr-defined]
    assert [vector.get_chunk_ref_count(slot) for slot in range(12)] == [0] * 12


def test_chunks_are_whole_while_they_are_replaced(fill: Fill) -> None:
    handle = fill([np.full((16, 16), k, np.float32) for k in range(4)], [[k] for k in range(4)])
    vector = fill.vector  # type: ignore[attr-defined]
    ended = threading.Event()

    def write() -> None:
        value = 4
        while not ended.is_set():
            vector.replace(value % 4, np.full((16, 16), value, np.float32), [value], refuse=False)
            value += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        newest = 0.0
        loader = PoolLoader(handle, 4, steps=100_000, sampling="permutation")
        for step, batch in enumerate(loader):
            assert bool((batch["data"].flatten(1) == batch["spacing"]).all())
            newest = max(newest, float(batch["spacing"].max()))
            if step >= 300 and newest > 3:  # the writer has had its turn
                break
        assert newest > 3
    finally:
        ended.set()
        writer.join(20)


def test_pickled_copy(fill: Fill) -> None:
    loader = PoolLoader(fill(chunks()), 4, seed=1)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy._reader is None
    assert [slots(batch) for batch in copy] == [slots(batch) for batch in loader]


def test_interpreter_exits(name: str, fill: Fill) -> None:
    fill(chunks())
    code = f"""
        from sharedvector import PoolLoader
        from sharedvector.coordination import PoolPaths
        from sharedvector.pool import PoolHandle
        loader = PoolLoader(PoolHandle(PoolPaths.for_name({name!r}), 12, None), 4, steps=10**6)
        iterators = [iter(loader) for _ in range(3)]
        print([len(next(iterator)["data"]) for iterator in iterators])
        raise SystemExit(3)
    """
    assert run(code) == (3, "[4, 4, 4]\n", "")


def test_progress_bar(fill: Fill) -> None:
    tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed")
    bar = tqdm.tqdm(PoolLoader(fill(chunks()), 4), disable=True)
    assert len(bar) == 3 and len(list(bar)) == 3


def test_missing_torch_is_said() -> None:
    status, out, _ = run("""
        import sys
        sys.modules["torch"] = None
        try:
            import sharedvector.pool_loader
        except ImportError as error:
            print(error)
    """)
    assert status == 0 and "sharedvector[torch]" in out


def test_the_thread_is_like_its_maker(fill: Fill) -> None:
    def tell(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "grad": torch.is_grad_enabled()}

    loader = PoolLoader(fill(chunks()), 4, transforms=[tell])
    with torch.no_grad():
        assert [batch["grad"] for batch in loader] == [False] * 3
    assert [batch["grad"] for batch in loader] == [True] * 3
