"""SharedArray: every array comes back as it was, and nothing else can be reached through it."""

from __future__ import annotations

import ast
import copy
import gc
import itertools
import os
import pickle
import random
import re
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_support import LIMIT, PREFIX, again, blocks, empty, maps_of, share
from core_support import descriptors, fresh_name, in_child
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pool_support import run

import sharedvector
from sharedvector import SharedArray, SharedVector
from sharedvector.arrays.shared_array import _attach

NUMBERS = np.arange(24.0).reshape(2, 3, 4)

# ---- shapes, dtypes, layouts -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), 5, (0,), (3, 0, 2), [2, 3], np.array([2, 3]), (1,) * 16])
def test_every_shape_that_fits_holds_zeros(shape: Any) -> None:
    wanted = np.zeros(shape)
    with empty(shape) as made:
        facts = (made.shape, made.ndim, made.size, made.nbytes, made.itemsize, made.dtype)
        assert facts == (wanted.shape, wanted.ndim, wanted.size, wanted.nbytes, 8, np.dtype(float))
        assert np.array_equal(made.array, wanted) and made.array.flags.writeable
        assert np.array_equal(again(made).array, wanted)


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ((1,) * 17, ValueError, "at most 16 lengths"),
        (-1, ValueError, "none of them negative"),
        ((2, -3), ValueError, "none of them negative"),
        (1 << 62, ValueError, "too large"),
        ((1 << 31,) * 3, ValueError, "too large"),
        ((1 << 62, 0), ValueError, "too large"),
        (1 << 40, OSError, "are free"),
        (1 << 41, OSError, r"needs 17592\d{9} bytes .* are free"),
        ((1 << 41) + 1, OSError, r"17592186044424 bytes; .* are free in /dev/shm: ask for less"),
        (1 << 50, OSError, "9007199254740992 bytes; .* are free in /dev/shm: ask for less"),
        (2.5, TypeError, "integer"),
        ("ab", TypeError, "integer"),
        (None, TypeError, "integer"),
    ],
)
def test_a_shape_that_cannot_be_is_an_error_at_once(
    shape: Any, error: type[Exception], text: str
) -> None:
    before = descriptors()
    with pytest.raises(error, match=text):
        empty(shape)
    assert blocks() == [] and descriptors() == before


DTYPES = ["?", ">i2", "<u8", "f2", ">f8", "c16", "g", "M8[ns]", "m8[D]", "M8", "U5", "S3", "V7"]
DTYPES += [[("a", "i1"), ("b", ">f8", (2,))], np.dtype([("a", "i1"), ("b", "f8")], align=True)]


def content(array: np.ndarray[Any, Any]) -> Any:
    """The bytes of all elements; those between fields are nobody's."""
    if array.dtype.names is None:
        return array.tobytes()
    return [content(array[name]) for name in array.dtype.names]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_without_objects_comes_back(dtype: Any) -> None:
    data = np.frombuffer(bytes(range(240)), "u1")
    data = data[: 6 * np.dtype(dtype).itemsize] if dtype != "?" else data[:6] % 2
    wanted = data.view(dtype).reshape(2, 3)
    for source in (wanted, wanted[:, ::-1], wanted.T):
        with share(source) as shared:
            for got in (shared, again(shared)):
                assert got.dtype == source.dtype and got.array.dtype == source.dtype
                assert got.shape == source.shape and content(got.array) == content(source)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_the_dtypes_of_ml_dtypes_come_back(name: str) -> None:
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    source = np.arange(8).astype(dtype)
    for array in (source, source[::2]):
        with share(array) as shared:
            assert again(shared).dtype == dtype
            assert again(shared).array.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [object, [("a", "O")], np.dtypes.StringDType(), "U", (float, 2)])
def test_a_dtype_that_cannot_be_shared_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="dtype"):
        empty(3, dtype)
    assert blocks() == []


LAYOUTS = {
    "C": NUMBERS,
    "Fortran": np.asfortranarray(NUMBERS),
    "strided": NUMBERS[:, ::2, 1:],
    "negative": NUMBERS[::-1, :, ::-1],
    "turned": NUMBERS.transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.arange(4.0), (3, 4)),
    "read-only": np.frombuffer(np.arange(3.0).tobytes()),
    "list": [[1, 2], [3, 4]],
    "scalar": 5.5,
    "range": range(4),
    "bytes": memoryview(b"abc"),
    "records": np.rec.array([(1, 2.0), (3, 4.0)]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_back(layout: str) -> None:
    source = LAYOUTS[layout]
    wanted = np.asarray(source)
    with share(source) as shared:
        for got in (shared, again(shared)):
            assert type(got.array) is np.ndarray
            assert got.array.shape == wanted.shape and got.array.dtype == wanted.dtype
            assert np.array_equal(got.array, wanted) and got.array.strides == got.strides
        assert not np.may_share_memory(shared.array, wanted)
        if layout in ("C", "Fortran"):
            assert shared.strides == wanted.strides


def test_a_tensor_is_shared_and_a_mask_is_not_lost() -> None:
    torch = pytest.importorskip("torch")
    with share(torch.arange(6).reshape(2, 3).T) as shared:
        assert shared.array.tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(TypeError, match=r"filled\(value\)"):
        share(np.ma.masked_array([1, 2], [False, True]))
    with pytest.raises(ValueError, match="holds references"):
        share(None)
    with share([1, 2]) as first, share(first) as second:
        assert second.name != first.name and second.array.tolist() == [1, 2]


@pytest.mark.parametrize("prefix", ["", "a" * 65, "a/b", "a b", "\u00fc", "a\0b"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"prefix|NUL"):
        sharedvector.share(1, prefix=prefix)


def test_what_is_not_a_text_is_no_prefix() -> None:
    with pytest.raises(TypeError, match="wanted a str"):
        sharedvector.share(1, prefix=5)  # type: ignore[arg-type]


def test_mode_and_name_are_those_of_the_file() -> None:
    before = os.umask(0o077)
    try:
        with sharedvector.share(1, prefix=f"a.{PREFIX}_-Z", mode=0o640) as shared:
            assert shared.name.startswith(f"sv-{os.geteuid()}-a.{PREFIX}_-Z-")
            assert (Path("/dev/shm") / shared.name).stat().st_mode & 0o7777 == 0o640
            assert again(shared)[...].array == 1
    finally:
        os.umask(before)
    for mode in (0, 0o400, 0o1777):
        with pytest.raises(ValueError, match="mode must"):
            share(1, mode=mode)


def test_a_directory_must_be_a_tmpfs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot be used"):
        share(1, directory=tmp_path / "none")
    with pytest.raises(OSError, match="not on tmpfs"):
        share(1, directory="/")


def test_a_relative_directory_outlives_chdir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/dev")
    with share(NUMBERS, directory="shm") as shared:
        sent = pickle.dumps(shared)
        monkeypatch.chdir("/")
        assert np.array_equal(pickle.loads(sent).array, NUMBERS)
    assert blocks() == []


# ---- indices -----------------------------------------------------------------------------------


def same(got: Any, wanted: Any) -> None:
    """A handle or a value is what NumPy gives, also when it is sent."""
    if isinstance(wanted, np.ndarray):
        for handle in (got, again(got)):
            assert isinstance(handle, SharedArray)
            assert handle.shape == wanted.shape and handle.dtype == wanted.dtype
            assert np.array_equal(handle.array, wanted)
    else:
        assert type(got) is type(wanted) and got == wanted


@given(st.data())
def test_every_basic_index_gives_the_same_part_as_numpy(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    wanted = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    order = data.draw(st.sampled_from("CF"))
    with share(np.asarray(wanted, order=order)) as shared:
        got: Any = shared
        for _ in range(data.draw(st.integers(1, 3))):
            key = data.draw(hnp.basic_indices(wanted.shape, allow_newaxis=True))
            got, wanted = got[key], wanted[key]
            same(got, wanted)
            if not isinstance(wanted, np.ndarray):
                break


@given(st.data())
def test_every_fancy_index_gives_a_copy(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    wanted = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    key = data.draw(
        st.one_of(hnp.integer_array_indices(shape), hnp.arrays(bool, shape), st.just([0]))
    )
    with share(wanted) as shared:
        got = shared[key]
        assert isinstance(got, np.ndarray | np.generic) and np.array_equal(got, wanted[key])
        assert not np.may_share_memory(got, shared.array)


class Index:
    def __index__(self) -> int:
        return 1


RECORDS = np.array([(1, 2.5, [1, 2]), (3, 4.5, [3, 4])], [("a", "i4"), ("b", "f8"), ("c", "i2", 2)])


@pytest.mark.parametrize("key", ["a", "b", "c", ["a", "c"], np.s_[1:], 1, Index(), np.int64(1)])
def test_records_are_indexed_by_field_and_place(key: Any) -> None:
    with share(RECORDS) as shared:
        got = shared[key]
        if isinstance(got, SharedArray):
            same(got, RECORDS[key])
        else:
            assert got == RECORDS[key]


@pytest.mark.parametrize("key", [0, -1, np.int8(1), Index(), ..., None, True, [1, 0], np.array(1)])
def test_odd_keys_give_what_numpy_gives(key: Any) -> None:
    with share(NUMBERS) as shared:
        got, wanted = shared[key], NUMBERS[key]
        assert np.array_equal(np.asarray(got), wanted) and np.shape(got) == wanted.shape
        if isinstance(got, np.ndarray):
            assert not np.may_share_memory(got, shared.array)
        else:
            assert np.may_share_memory(got.array, shared.array)


def test_a_bad_index_is_numpys_error() -> None:
    with share(NUMBERS) as shared:
        for key in (2, (0, 0, 0, 0), "a", 1.5, (..., ...)):
            with pytest.raises(IndexError):
                shared[key]
        with pytest.raises(IndexError):
            shared[5] = 1
        with pytest.raises(ValueError, match="broadcast"):
            shared[0] = [1, 2]
        assert np.array_equal(shared.array, NUMBERS)


def test_what_is_written_by_index_is_seen_by_all_handles() -> None:
    with share(NUMBERS) as shared:
        sent = again(shared)
        shared[1, :, 0] = 5
        shared[0][0][:] = -1
        shared[[0, 1], 2, 3] = 9
        wanted = NUMBERS.copy()
        wanted[1, :, 0], wanted[0, 0], wanted[[0, 1], 2, 3] = 5, -1, 9
        assert np.array_equal(sent.array, wanted)


def test_length_and_conversions() -> None:
    with share(NUMBERS) as shared:
        assert len(shared) == 2 and len(shared[0, 1:]) == 2
        assert np.may_share_memory(np.asarray(shared), shared.array)
        assert not np.may_share_memory(np.array(shared), shared.array)
        assert np.asarray(shared, "f4").dtype == np.float32
        with pytest.raises(ValueError, match="needs a copy"):
            np.asarray(shared, "f4", copy=False)
        assert np.array_equal(np.from_dlpack(shared), NUMBERS)
        assert 5.0 in shared and 99 not in shared and 1 in shared[0, 0]
        assert np.add(shared, 1).sum() == NUMBERS.sum() + 24
        assert shared.array is not shared.array
        for text in (shared.name, "float64", "(2, 3, 4)", "writable"):
            assert text in repr(shared)
    assert "closed" in repr(shared)
    with pytest.raises(TypeError, match="share"):
        SharedArray()


@pytest.mark.parametrize("value", [0.0, 1.5, [0], [[7]], [0, 0], [1, 2], [], np.zeros((2, 0)), ""])
def test_truth_length_and_iteration_are_those_of_the_array(value: Any) -> None:
    with share(value) as shared:
        for fn in (bool, len, list, tuple, iter, reversed):
            got, wanted = outcome(fn, shared), outcome(fn, np.asarray(value))
            assert got == wanted, fn
        if shared.ndim == 0:
            for fn in (len, iter):
                with pytest.raises(
                    TypeError, match=r"without axes; its one element is handle\[\(\)\]"
                ):
                    fn(shared)
            assert shared[()] == value
    with pytest.raises(ValueError, match="closed"):
        bool(shared)


def outcome(fn: Any, array: Any) -> Any:
    """What comes out as plain values, or the type of the exception."""
    with warnings.catch_warnings():  # NumPy's, of empty arrays, before it made them errors
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            result = fn(array)
        except (TypeError, ValueError) as error:
            return type(error)
    return result if isinstance(result, int) else [np.asarray(one).tolist() for one in result]


# ---- pickles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_small(protocol: int) -> None:
    longest = sharedvector.share(
        np.zeros((2,) * 8, ">M8[ns]", order="F"), prefix=f"{PREFIX}{'x' * 50}", mode=0o660
    )
    with longest, share(NUMBERS) as plain:
        part = longest[:, ::-1, 1:]
        sizes = [len(pickle.dumps(handle, protocol)) for handle in (plain, plain[1:], part)]
        assert max(sizes[:2]) < 150 and sizes[2] < 300


def test_a_pickle_and_a_copy_are_handles_on_the_same_memory() -> None:
    with share(NUMBERS, writable=True) as shared:
        for other in (again(again(shared)), copy.copy(shared), copy.deepcopy(shared)):
            assert np.may_share_memory(other.array, shared.array)
            assert other.array.flags.writeable and other.writable
            other.close()
            assert not shared.closed and blocks() == [shared.name]


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_is_a_further_handle_on_the_same_memory(make: Callable[[Any], Any]) -> None:
    shared = share(NUMBERS)
    part = make(shared[::-1, 1:, ::2])
    same(part, NUMBERS[::-1, 1:, ::2])
    pair = make([part, part])
    assert pair[0].shape == part.shape
    if make is copy.deepcopy:
        assert pair[0] is pair[1] and pair[0] is not part
    name, other = shared.name, make(shared)
    del shared, part, pair  # the block is there as long as one of its handles
    gc.collect()
    assert blocks() == [name] and np.array_equal(other.array, NUMBERS)
    other.close()
    with pytest.raises(ValueError, match="closed"):
        make(other)
    del other
    gc.collect()
    assert blocks() == []


HOSTILE = {
    "longer": ("f8", (25,)),
    "wider": ("c16", (24,)),
    "moved": ("f8", (24,), False, 8),
    "before": ("f8", (24,), False, -8),
    "far before": ("f8", (1 << 40,), False, -(1 << 43)),
    "far": ("u1", (1,), False, 1 << 62),
    "farther": ("u1", (1,), False, 1 << 80),
    "stride": ("u1", (2,), False, 0, (192,)),
    "stride before": ("u1", (2,), False, 0, (-1,)),
    "stride that wraps": ("u1", (5,), False, 0, (1 << 62,)),
    "strides that wrap": ("u1", (3, 3), False, 0, (1 << 62, 1 << 62)),
    "few strides": ("u1", (2, 2), False, 0, (1,)),
    "negative": ("u1", (-1,)),
    "huge": ("f8", (1 << 40, 1 << 40)),
    "empty and huge": ("f8", (1 << 62, 1 << 62, 0)),
    "axes": ("u1", (1,) * 65),
    "objects": ("O", (24,)),
    "records of objects": ("[('a','O')]", (24,)),
    "no size": ("V0", (24,)),
    "no dtype": ("nonsense", (24,)),
    "fractions": ("u1", (2.5,)),
    "texts": ("u1", "ab"),
    "offset": ("u1", (1,), False, "x"),
    "bool": ("u1", (True,)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_forged_pickle_reaches_nothing_else(what: str) -> None:
    with share(NUMBERS) as shared, pytest.raises((TypeError, ValueError)):
        forged = _attach(shared.name, *HOSTILE[what])  # type: ignore[arg-type]
        forged.array.tobytes()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", ".x", "a.lock", "a\0b", "x" * 300])
def test_a_forged_name_opens_no_other_file(name: str) -> None:
    forged = _attach(name, "u1", (1,))
    with pytest.raises(ValueError, match=r"name|NUL"):
        forged.array  # noqa: B018


def test_a_segment_that_is_no_block_is_refused() -> None:
    with fresh_name() as name:
        vector = SharedVector(name, chunk_size=4096)
        vector.append(np.zeros(4, "f4"))
        with pytest.raises(ValueError, match="is no block"):
            _attach(name, "f4", (4,)).array  # noqa: B018


def test_a_block_that_is_gone_is_an_error_where_it_is_used() -> None:
    with share(NUMBERS) as shared:
        sent = pickle.dumps(shared[1:])
    late = pickle.loads(sent)
    assert late.shape == (1, 3, 4) and not late.closed and late.name == shared.name
    uses = (
        lambda: late.array,
        lambda: late[0],
        lambda: late.__dlpack__(),
        lambda: np.asarray(late),
        lambda: late.__setitem__(0, 1),
    )
    for use in uses:
        with pytest.raises(FileNotFoundError, match="is gone"):
            use()
    late.close(strict=True)
    with pytest.raises(ValueError, match="closed"):
        late.array  # noqa: B018


def from_a_twin(shared: SharedArray, offset: int, damage: bytes) -> Any:
    """What a copy of the block's file holds after some of its bytes were changed."""
    path = Path("/dev/shm") / shared.name
    twin = path.with_name(f"{path.name[:-1]}{'1' if path.name[-1] == '0' else '0'}")
    content = bytearray(path.read_bytes())
    content[offset : offset + len(damage)] = damage
    twin.write_bytes(content)
    twin.chmod(0o600)
    sent = pickle.dumps(shared).replace(path.name.encode(), twin.name.encode())
    try:
        return pickle.loads(sent).array.tolist()
    finally:
        twin.unlink()


@pytest.mark.parametrize("offset", [0, 8, 12, 24, 32, 40, 48, 56, 64, 72, 88, 144])
def test_a_damaged_header_is_an_error(offset: int) -> None:
    with share(NUMBERS) as shared:
        assert from_a_twin(shared, 0, b"") == NUMBERS.tolist()
        with pytest.raises((OSError, RuntimeError, ValueError), match=re.escape(shared.name[:-1])):
            from_a_twin(shared, offset, b"\xff" * 8)


def test_no_damage_whatever_ends_a_process() -> None:
    code = """
        import pathlib, pickle, random, sys
        from sharedvector.arrays import attachments
        path = pathlib.Path("/dev/shm", sys.argv[1])
        sent = bytes.fromhex(sys.argv[2])
        dice = random.Random(int(sys.argv[3]))
        good, found = path.read_bytes()[:12288], {"value": 0, "error": 0}
        with open(path, "r+b") as file:
            def write(offset, content):
                file.seek(offset)
                file.write(content)
                file.flush()
            for turn in range(400):
                before = pickle.loads(sent).array if turn % 2 else None
                # The geometry; size and removal; the slot and the header of the buffer.
                offset = dice.randrange(
                    *[(0, 160), (512, 708), (4096, 4104), (4104, 5200)][turn % 4])
                write(offset, dice.choice([b"\\xff" * 8, bytes(8), dice.randbytes(4)]))
                try:
                    pickle.loads(sent).array.tobytes()
                    found["value"] += 1
                except (OSError, MemoryError, RuntimeError, ValueError, TypeError):
                    found["error"] += 1
                del before
                write(0, good)
                attachments._known.clear()
                attachments._recent.clear()
        print(found)
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with share(NUMBERS) as shared:
        twin = Path("/dev/shm") / f"{shared.name[:-1]}{'1' if shared.name[-1] == '0' else '0'}"
        twin.write_bytes((Path("/dev/shm") / shared.name).read_bytes())
        twin.chmod(0o600)
        sent = pickle.dumps(shared).replace(shared.name.encode(), twin.name.encode())
        try:
            status, out, err = run(code, twin.name, sent.hex(), str(seed))
        finally:
            twin.unlink()
        assert status == 0, err
        found = ast.literal_eval(out)
        assert found["value"] > 20 and found["error"] > 20


# ---- who may write -----------------------------------------------------------------------------


def test_those_who_receive_a_handle_cannot_write() -> None:
    torch = pytest.importorskip("torch")
    records = share(RECORDS)
    with share(NUMBERS) as shared, records:

        def receive() -> None:
            got = again(shared)
            assert not got.writable and not shared.writable and "read-only" in repr(got)
            array = got.array
            for view in (array, array.base, np.asarray(got), array[0], got[1].array, shared.array):
                assert not view.flags.writeable
                with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
                    view.flags.writeable = True
                    view[...] = 9
            assert memoryview(array).readonly
            with pytest.raises(ValueError, match="read-only"):
                got[0, 0, 0] = 1
            with pytest.raises(ValueError, match="read-only"):
                again(records)[0]["a"] = 1
            tensor = torch.from_dlpack(got)
            tensor[:] = 7
            assert tensor.sum() == 7 * 24 and np.array_equal(got.array, NUMBERS)
            other = np.from_dlpack(got)
            assert np.array_equal(other, NUMBERS)

        assert in_child(receive) == 0
        assert np.array_equal(shared.array, NUMBERS) and np.array_equal(records.array, RECORDS)


def test_those_who_receive_a_writable_handle_can() -> None:
    with share(NUMBERS, writable=True) as shared, empty(4, "i8", writable=True) as results:

        def receive() -> None:
            torch = pytest.importorskip("torch")
            got = again(shared[:, 1])
            assert got.writable
            got[0] = -1
            torch.from_dlpack(again(results)[1:3])[:] = 8

        assert in_child(receive) == 0
        assert (shared.array[0, 1] == -1).all() and shared.array.sum() < NUMBERS.sum()
        assert results.array.tolist() == [0, 8, 8, 0]


def test_a_part_can_be_writable_when_the_whole_is_not() -> None:
    with empty(6) as whole:
        part = whole._part(2, 4, True)

        def receive() -> None:
            again(part)[...] = 3
            assert again(part)[:1].writable and not again(whole).writable

        assert in_child(receive) == 0
        assert whole.array.tolist() == [0, 0, 3, 3, 0, 0]


# ---- life --------------------------------------------------------------------------------------


def test_arrays_outlive_the_handle_and_nothing_else_does() -> None:
    shared = share(NUMBERS)
    part, array, sent = shared[1], shared.array, pickle.dumps(shared)
    private = again(shared).array
    shared.close()
    shared.close()
    assert shared.closed and part.closed and blocks() == []
    assert np.array_equal(array, NUMBERS) and np.array_equal(private, NUMBERS)
    array[0] = 1
    assert (private[0] == 1).all()
    for use in (
        lambda: shared.array,
        lambda: part.array,
        lambda: shared[0],
        lambda: np.asarray(part),
        lambda: shared.__dlpack__(),
        lambda: pickle.dumps(part),
        lambda: shared.__setitem__(0, 0),
        lambda: shared.__enter__(),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    with pytest.raises(FileNotFoundError):
        pickle.loads(sent).array  # noqa: B018
    assert (shared.shape, shared.nbytes, part.strides) == ((2, 3, 4), 192, (32, 8))


def test_a_strict_close_refuses_while_arrays_live() -> None:
    shared = share(NUMBERS)
    received, array = again(shared), shared[0].array
    for handle in (shared, received):
        with pytest.raises(BufferError, match=r"1 live array"):
            handle.close(strict=True)
        assert not handle.closed and blocks() == [shared.name]
    del array
    received.close(strict=True)
    assert received.closed and not shared.closed
    shared.close(strict=True)
    shared.close(strict=True)
    assert blocks() == []


def test_a_part_closes_itself_alone() -> None:
    with share(NUMBERS) as shared:
        with shared[1] as part:
            assert part.array.shape == (3, 4)
        assert part.closed and not shared.closed and blocks() == [shared.name]


def test_the_last_handle_that_is_dropped_removes_the_block() -> None:
    shared = share(NUMBERS)
    part = shared[0, 1:]
    del shared
    gc.collect()
    assert blocks() == [part.name] and np.array_equal(part.array, NUMBERS[0, 1:])
    array = part.array
    del part
    gc.collect()
    assert blocks() == [] and np.array_equal(array, NUMBERS[0, 1:])
    cycle: list[Any] = [share(NUMBERS)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert blocks() == []


def test_sharing_imports_no_more_than_it_needs() -> None:
    code = """
        import sys
        import sharedvector
        with sharedvector.share([1, 2]) as shared:
            assert shared[0] == 1
        print([name for name in ("numpy.ma", "multiprocessing", "torch") if name in sys.modules])
    """
    assert run(code) == (0, "[]\n", "")


def test_an_exception_removes_the_block() -> None:
    with pytest.raises(ZeroDivisionError), share(NUMBERS):
        raise ZeroDivisionError
    assert blocks() == []


def test_a_source_that_fails_leaves_nothing() -> None:
    class Fails:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise ZeroDivisionError

    before = descriptors()
    with pytest.raises(ZeroDivisionError):
        share(Fails())
    assert blocks() == [] and descriptors() == before


def read_until_closed(shared: SharedArray) -> int:
    """How many looks found what was shared."""
    for looks in itertools.count():
        try:
            assert shared.array.sum() == NUMBERS.sum()
        except ValueError as error:
            assert "closed" in str(error)
            return looks
        except FileNotFoundError:
            return looks
    raise AssertionError


def test_closing_and_looking_at_once_gives_a_value_or_an_error() -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(30):
            shared = share(NUMBERS)
            reads = [threads.submit(read_until_closed, shared) for _ in range(2)]
            closes = [threads.submit(shared.close) for _ in range(2)]
            for future in (*reads, *closes):
                future.result(LIMIT)
    assert blocks() == []


class Staged:
    """A block's segment, with something to be done at the first call of one of its methods."""

    def __init__(self, segment: Any, method: str, at_first: Callable[[], object]) -> None:
        self._segment, self._method, self._at_first = segment, method, [at_first]

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._at_first:
            self._at_first.pop()()
        return getattr(self._segment, name)


@pytest.mark.parametrize("method", ["block_remove", "close"])
@pytest.mark.parametrize("strict", [False, True])
def test_who_closes_while_another_one_does_waits_for_it(method: str, strict: bool) -> None:
    shared = share(NUMBERS)
    begun, go_on = threading.Event(), threading.Event()
    block: Any = shared._block

    def hold() -> None:
        begun.set()
        assert go_on.wait(LIMIT)

    block._segment = Staged(block._segment, method, hold)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(shared.close)
        assert begun.wait(LIMIT)
        second = threads.submit(shared.close, strict)
        time.sleep(0.1)  # time to return too early
        early = first.done() or second.done()
        go_on.set()
        assert not early
        second.result(LIMIT)
        assert blocks() == [] and block._segment.closed
        first.result(LIMIT)


@pytest.mark.parametrize("other", ["handle", "received", "part"])
def test_a_strict_close_that_another_thread_overtakes_is_no_error(other: str) -> None:
    shared = share(NUMBERS)
    block: Any = shared._block
    closer = threading.Thread(target=shared.close)

    def overtake() -> None:
        closer.start()
        closer.join(0.5)  # it may have to wait

    block._segment = Staged(block._segment, "own_pins", overtake)
    {"handle": shared, "received": again(shared), "part": shared[1:]}[other].close(strict=True)
    closer.join(LIMIT)
    assert not closer.is_alive() and blocks() == [] and shared.closed


def test_a_strict_close_refuses_while_another_thread_has_an_array() -> None:
    taken, go_on = threading.Event(), threading.Event()

    def look() -> bool:
        array = shared.array
        taken.set()
        return go_on.wait(LIMIT) and bool((array == NUMBERS).all())

    with ThreadPoolExecutor(1) as threads:
        shared = share(NUMBERS)
        reader = threads.submit(look)
        assert taken.wait(LIMIT)
        try:
            for _ in range(2):
                with pytest.raises(BufferError, match="1 live array"):
                    shared.close(strict=True)
                assert not shared.closed and blocks() == [shared.name]
            assert np.array_equal(again(shared).array, NUMBERS)
        finally:
            go_on.set()
        assert reader.result(LIMIT)
    shared.close(strict=True)
    assert blocks() == []


def test_making_and_closing_leaves_no_descriptor_and_no_map() -> None:
    def cycle() -> None:
        with share(NUMBERS, writable=True) as shared:
            again(shared[1]).array[0] = 1

    cycle()
    before = descriptors(), maps_of("sv-")
    for _ in range(200):
        cycle()
    assert (descriptors(), maps_of("sv-")) == before and blocks() == []


def test_what_only_arrays_have_is_pointed_at() -> None:
    with share(np.arange(3)) as shared:
        with pytest.raises(
            AttributeError, match=r"no attribute 'sum'; its array has: use .array.sum"
        ):
            shared.sum()  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            _ = shared.nonsense  # type: ignore[attr-defined]
        assert not hasattr(shared, "__array_interface__")


def test_a_closed_handle_says_why_it_cannot_be_sent() -> None:
    shared = share(np.arange(3))
    shared.close()
    with pytest.raises(ValueError, match="until the tasks that take it are done"):
        pickle.dumps(shared)
