"""Memory of batches: used again when nobody looks, never before; dtypes of tensors."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from core_support import in_child

torch = pytest.importorskip("torch", reason="torch is not installed")

from sharedvector.training import batch_memory  # noqa: E402
from sharedvector.training.batch_memory import BatchMemory, Layout, bytes_of, shared_tensor  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", 1)


def filled(memory: BatchMemory, value: int, shape: tuple[int, ...] = (4, 1, 100)) -> Any:
    tensor = memory.tensor(shape, torch.int32)
    tensor.fill_(value)
    return tensor


def test_tensors_are_ordinary() -> None:
    tensor = filled(BatchMemory(2), 7, (2, 1, 3, 5))
    assert tensor.shape == (2, 1, 3, 5) and tensor.is_contiguous()
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert bytes_of(tensor).nbytes == tensor.nbytes
    bytes_of(tensor).view(np.int32)[-1] = 9
    assert tensor[-1, 0, -1, -1] == 9


@pytest.mark.parametrize("shape", [(0, 1, 5), (3, 1, 0), (1,), (3, 1)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    tensor = filled(BatchMemory(1), 1, shape)
    assert tensor.shape == shape and bytes_of(tensor).nbytes == tensor.nbytes


def test_small_tensors_come_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "SMALL_BYTES", 1601)
    memory = BatchMemory(2)
    kept = [filled(memory, k) for k in range(3)]
    assert [int(tensor.unique()) for tensor in kept] == [0, 1, 2]
    kept.clear()
    assert len(memory._free) == 0


@pytest.mark.parametrize("shape", [(2, 1, 3, 5), (2, 1, 0)])
def test_shared_tensors(shape: tuple[int, ...]) -> None:
    tensor = shared_tensor(shape, torch.int16)
    assert tensor.shape == shape and tensor.is_shared() and tensor.is_contiguous()
    tensor.zero_()
    assert in_child(lambda: tensor.fill_(4)) == 0
    assert not tensor.numel() or tensor.unique().tolist() == [4]


def test_memory_is_used_again() -> None:
    memory = BatchMemory(2)
    first = filled(memory, 1)
    address = first.data_ptr()
    del first
    assert filled(memory, 2).data_ptr() == address
    smaller = filled(memory, 3, (2, 1, 100))  # the last batch of an epoch
    assert smaller.data_ptr() == address
    assert smaller.untyped_storage().nbytes() == 800


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1:, :, 3],
        lambda tensor: tensor.numpy()[2],
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.view(torch.uint8).requires_grad_(False).detach(),
    ],
)
def test_memory_in_use_is_left_alone(keep: Any) -> None:
    memory = BatchMemory(2)
    kept = keep(filled(memory, 5))
    gc.collect()
    others = [filled(memory, 6) for _ in range(4)]
    if not isinstance(kept, (torch.Tensor, np.ndarray, memoryview, torch.UntypedStorage)):
        kept = torch.utils.dlpack.from_dlpack(kept)
    values = np.frombuffer(bytes(kept), np.uint8) if isinstance(kept, memoryview) else kept
    assert 6 not in np.asarray(values.tolist())
    del others


def test_keeps_at_most_so_much() -> None:
    memory = BatchMemory(2)
    tensors = [filled(memory, k) for k in range(5)]
    assert len({tensor.data_ptr() for tensor in tensors}) == 5
    tensors.clear()
    assert len(memory._free) == 2
    del memory
    late = filled(BatchMemory(1), 4)  # outlives what made it
    assert late.unique().tolist() == [4]


def test_too_small_memory_is_given_back() -> None:
    memory = BatchMemory(2)
    del (small := [filled(memory, 0)])[:]
    assert len(memory._free) == 1
    large = filled(memory, 1, (3 << 20,))
    assert len(memory._free) == 0
    assert large.unique().tolist() == [1]
    del large, small
    assert len(memory._free[0]) % (2 << 20) == 0


def test_threads_get_memory_of_their_own() -> None:
    memory = BatchMemory(3)
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(200):
            tensor = filled(memory, value, (500,))
            if not bool((tensor == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_fork_and_pickle() -> None:
    memory = BatchMemory(2)
    kept = filled(memory, 1)
    filled(memory, 2)

    def child() -> None:
        mine = filled(memory, 3)
        assert mine.unique().tolist() == [3] and kept.unique().tolist() == [1]
        kept.fill_(4)

    assert in_child(child) == 0
    assert kept.unique().tolist() == [1]
    copy = pickle.loads(pickle.dumps(memory))
    assert filled(copy, 8).unique().tolist() == [8]


def test_pinned_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    tensor = filled(BatchMemory(2, pinned=True), 3)
    assert tensor.is_pinned() and tensor[1:].to("cuda", non_blocking=True).unique().tolist() == [3]
    bytes_of(tensor)[:] = 0
    assert tensor.unique().tolist() == [0]


def test_layout_swaps_in_place() -> None:
    array = np.array([1, 256], ">i2")
    layout = Layout.of(array.dtype, "p")
    layout.make_native(array)
    assert array.view(layout.native).tolist() == [1, 256]
    native = np.array([1, 2], "i2")
    Layout.of(native.dtype, "p").make_native(native)
    assert native.tolist() == [1, 2]
