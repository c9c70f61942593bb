"""SharedVector: what users of 0.1.0 rely on, and what is new."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import FLOATS, filled, fresh_name

import sharedvector
from sharedvector import SharedVector, remove_shared_memory


@pytest.fixture
def name() -> Iterator[str]:
    with fresh_name() as fresh:
        yield fresh


# ---- making and finding ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_size", "max_memory_size", "slots"),
    [
        (1 << 20, 10 << 20, 9),
        (1 << 20, 64 << 20, 63),
        (16 << 20, 128 << 20, 7),
        (4096, 1 << 20, 235),
    ],
)
def test_max_memory_size_gives_as_many_slots_as_ever(
    name: str, chunk_size: int, max_memory_size: int, slots: int
) -> None:
    there = os.statvfs(os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm"))
    if there.f_bavail * there.f_frsize < 2 * max_memory_size:
        pytest.skip(f"shared memory has no room for {max_memory_size} bytes")
    with SharedVector(name, chunk_size, max_memory_size) as vector:
        assert vector.capacity == slots
        assert vector.free_memory == slots * chunk_size


def test_the_second_one_attaches(name: str) -> None:
    with filled(name) as first, SharedVector(name, chunk_size=1, max_memory_size=7) as second:
        assert (second.chunk_size, second.capacity) == (first.chunk_size, first.capacity)
        assert (second.get(1) == FLOATS + 1).all()
        second.append(FLOATS + 3)
        assert len(first) == first.size() == 4


def test_positional_arguments_are_those_of_0_1_0(name: str) -> None:
    with SharedVector(name, 4096, 1 << 20, "int16", True, 100) as vector:
        assert vector.dtype == "int16"
        assert vector.stats_capacity == 100
        assert vector.stats["sample_capacity"] == 100
        assert vector.has_stats is True


def test_create_false_needs_a_segment(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        SharedVector(name, create=False)


def test_an_explicit_slot_count_must_agree(name: str) -> None:
    with SharedVector(name, slot_count=4, chunk_size=64):
        with SharedVector(name, slot_count=4) as same:
            assert same.capacity == 4
        with pytest.raises(ValueError, match=r"4.*5|5.*4"):
            SharedVector(name, slot_count=5)


def test_mode_is_that_of_the_file(name: str) -> None:
    before = os.umask(0o077)
    try:
        with SharedVector(name, slot_count=1, chunk_size=64, mode=0o660) as vector:
            assert (Path(vector.directory) / name).stat().st_mode & 0o777 == 0o660
    finally:
        os.umask(before)


def test_a_directory_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        SharedVector(name, slot_count=1, directory=tmp_path / "nowhere")


def test_remove_is_quiet_about_missing_names(name: str) -> None:
    sharedvector.remove_shared_memory(name)
    with filled(name):
        sharedvector.remove_shared_memory(name)
        sharedvector.remove_shared_memory(name)
        with pytest.raises(FileNotFoundError):
            SharedVector(name, create=False)


# ---- writing -----------------------------------------------------------------------------------


def test_append_until_it_is_full(name: str) -> None:
    with SharedVector(name, slot_count=3, chunk_size=64) as vector:
        chunk = np.zeros(16, np.float32)
        for expected in range(3):
            assert vector.append_slot(chunk) == expected
            assert vector.free_memory == (2 - expected) * 64
        for call in (vector.append, vector.append_slot):
            with pytest.raises(sharedvector.OutOfMemoryError, match="3 slots"):
                call(chunk)
        assert len(vector) == 3


def test_append_and_replace_return_none(name: str) -> None:
    with filled(name, 0) as vector:
        anything: Any = vector
        assert anything.append(FLOATS) is None
        assert anything.append(array=FLOATS, meta=None) is None
        assert anything.replace(0, FLOATS) is None
        assert anything.replace(index=0, array=FLOATS, meta=[1]) is None


class Subclass(np.ndarray[Any, Any]):
    pass


LAYOUTS: dict[str, Any] = {
    "plain": FLOATS,
    "one row": FLOATS[1],
    "empty": np.zeros((0, 3), np.float32),
    "empty middle": np.zeros((4, 0, 2), np.float32),
    "scalar": np.array(7, np.float32),
    "sixteen dimensions": np.ones((1,) * 15 + (3,), np.float32),
    "subclass": FLOATS.view(Subclass),
    "unaligned": np.frombuffer(b"\0" + FLOATS.tobytes(), np.float32, offset=1),
    "odd length": np.arange(13, dtype=np.float32),
    "transposed vector": np.arange(5, dtype=np.float32).reshape(1, 5).T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_are_stored(name: str, layout: str) -> None:
    array = LAYOUTS[layout]
    with filled(name) as vector:
        vector.append(array)
        vector.replace(0, array)
        for index in (0, 3):
            found = vector.get(index)
            assert type(found) is np.ndarray
            assert found.shape == array.shape
            assert np.array_equal(found, array)
            assert found.ctypes.data % 64 == 0


def test_read_only_sources_are_fine(name: str) -> None:
    array = FLOATS.copy()
    array.flags.writeable = False
    with filled(name) as vector:
        vector.append(array)
        vector.append(vector.get(0))
        assert (vector.get(4) == FLOATS).all()


def test_mapped_files_are_stored(name: str, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "chunk", np.float32, "w+", shape=(5, 7))
    mapped[:] = 3
    with filled(name) as vector:
        vector.append(mapped)
        assert type(vector.get(3)) is np.ndarray and (vector.get(3) == mapped).all()


@pytest.mark.parametrize(
    "array",
    [
        FLOATS.T,
        FLOATS[:, ::2],
        FLOATS[::-1],
        np.broadcast_to(np.float32(2), (3, 5)),
        np.asfortranarray(FLOATS),
    ],
    ids=["transposed", "strided", "reversed", "broadcast", "Fortran"],
)
def test_other_layouts_are_refused_with_the_remedy(name: str, array: Any) -> None:
    with filled(name) as vector:
        for call in (lambda: vector.append(array), lambda: vector.replace(0, array)):
            with pytest.raises(
                sharedvector.ArraySizeError, match=r"C-contiguous.*ascontiguousarray"
            ):
                call()
        assert len(vector) == 3


@pytest.mark.parametrize("thing", [[1.0], None, 3.0, "ab", np.float32(3), b"abcd", (1,)], ids=repr)
def test_things_that_are_no_arrays_are_type_errors(name: str, thing: Any) -> None:
    with filled(name) as vector:
        for call in (lambda: vector.append(thing), lambda: vector.replace(0, thing)):
            with pytest.raises(TypeError, match="ndarray"):
                call()


def test_masked_arrays_are_refused(name: str) -> None:
    masked = np.ma.masked_array(FLOATS, FLOATS > 3)
    with filled(name) as vector:
        with pytest.raises(TypeError, match="filled"):
            vector.append(masked)
        vector.append(masked.filled(0))


def test_too_large_and_too_many_dimensions(name: str) -> None:
    with filled(name) as vector:
        with pytest.raises(sharedvector.MemoryError, match=r"4100.*4096"):
            vector.append(np.zeros(1025, np.float32))
        vector.append(np.zeros(1024, np.float32))
        with pytest.raises(ValueError, match="16"):
            vector.append(np.zeros((1,) * 17, np.float32))


def test_a_large_chunk_is_copied_without_the_gil(name: str) -> None:
    with SharedVector(name, chunk_size=8 << 20, slot_count=1) as vector:
        chunk = np.random.default_rng(1).random((1024, 2048), dtype=np.float32)
        vector.append(chunk)
        assert np.array_equal(vector.get(0), chunk)


# ---- metadata ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meta",
    [
        [],
        [1],
        (1, 2.5),
        np.arange(8),
        np.array([1, 2], np.int32),
        range(3),
        [True],
        [np.nan],
        np.arange(16.0)[::2],
        [np.inf, -0.0],
        np.array([1.5], ">f8"),
    ],
    ids=repr,
)
def test_meta_that_is_stored(name: str, meta: Any) -> None:
    with filled(name) as vector:
        vector.append(FLOATS, meta)
        vector.replace(0, FLOATS, meta=meta)
        for index in (0, 3):
            found = vector.get_meta(index)
            assert found.dtype == np.float64
            assert found.ndim == 1
            assert found.flags.writeable
            np.testing.assert_array_equal(found, np.asarray(meta, np.float64))


@pytest.mark.parametrize(
    "meta",
    [
        5.0,
        "ab",
        ["1"],
        [[1, 2]],
        np.zeros((2, 2)),
        range(9),
        np.zeros(()),
        {},
        [1j],
        b"12",
        np.array(["2020"], "M8[D]"),
        [object()],
        [[1], [2, 3]],
        [10**400],
        np.ma.masked_array([1.0, 2.0], [False, True]),
    ],
    ids=[str(i) for i in range(15)],
)
def test_meta_that_is_refused(name: str, meta: Any) -> None:
    with filled(name) as vector:
        for call in (lambda: vector.append(FLOATS, meta), lambda: vector.replace(0, FLOATS, meta)):
            with pytest.raises(ValueError):
                call()
        assert len(vector) == 3
        assert vector.get_chunk_write_count(0) == 1


def test_replace_without_meta_clears_it(name: str) -> None:
    with filled(name) as vector:
        vector.replace(0, FLOATS, meta=[1, 2])
        assert vector.get_meta(0).shape == (2,)
        vector.replace(0, FLOATS)
        assert vector.get_meta(0).shape == (0,)


# ---- the object --------------------------------------------------------------------------------


def test_iteration_and_length(name: str) -> None:
    with filled(name) as vector:
        assert [float(chunk[0, 0]) for chunk in vector] == [0, 1, 2]
        assert len(vector) == 3
        assert vector.get_chunk_pointer(0) == vector.get(0).ctypes.data


def test_repr(name: str) -> None:
    vector = filled(name)
    assert repr(vector) == f"<SharedVector '{name}' float32 3/235 slots of 4096 bytes>"
    vector.close()
    assert repr(vector) == f"<SharedVector '{name}' closed>"


class Volumes(SharedVector):
    def __init__(self, name: str, spacing: float) -> None:
        super().__init__(name, slot_count=2, chunk_size=64)
        self.spacing = spacing


def test_subclasses_work_and_pickle_with_their_state(name: str) -> None:
    with Volumes(name, 1.5) as volumes:
        volumes.append(np.arange(4, dtype=np.float32))
        other = pickle.loads(pickle.dumps(volumes))
        assert type(other) is Volumes
        assert other.spacing == 1.5
        assert other.get(0).tolist() == [0, 1, 2, 3]
        other.close()


def test_pickles_attach_again(name: str) -> None:
    with filled(name) as vector:
        other = pickle.loads(pickle.dumps(vector))
        assert (other.name, other.inode, other.dtype) == (name, vector.inode, "float32")
        other.append(FLOATS)
        assert len(vector) == 4
        other.close()
        assert not vector.closed
        for twin in (copy.copy(vector), copy.deepcopy(vector)):
            assert twin is not vector
            assert len(twin) == 4
            twin.close()


def test_pickles_refuse_another_segment(name: str) -> None:
    with filled(name) as vector:
        data = pickle.dumps(vector)
    sharedvector.remove_shared_memory(name)
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)
    with filled(name), pytest.raises(ValueError, match=name):
        pickle.loads(data)
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(vector)


def test_exceptions_survive_pickling() -> None:
    for each in (sharedvector.InUseError, sharedvector.MemoryError, sharedvector.ArraySizeError):
        found = pickle.loads(pickle.dumps(each("text")))
        assert type(found) is each
        assert found.args == ("text",)


# ---- the package -------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_needs_numpy_alone() -> None:
    unwanted = ("torch", "zarr", "tqdm", "ml_dtypes", "cloudpickle", "multiprocessing")
    code = (
        "import sys, numpy; before = set(sys.modules); import sharedvector\n"
        f"print(sorted(set({unwanted}) & (set(sys.modules) - before)))"
    )
    assert run_python(code).strip() == "[]"


@pytest.mark.parametrize(
    "first", ["import sharedvector.pool, sharedvector.stats", "import sharedvector.stats"]
)
def test_pool_is_the_function_however_it_is_imported(first: str) -> None:
    code = (
        f"import inspect, sharedvector; {first}\n"
        "print(inspect.isfunction(sharedvector.pool), inspect.ismodule(sharedvector.stats))"
    )
    assert run_python(code).strip() == "True True"


@pytest.mark.parametrize("missing", [False, True])
def test_import_star_needs_no_torch_and_hides_no_builtin(missing: bool) -> None:
    if not missing:
        pytest.importorskip("torch", reason="torch is not installed")
    code = (
        "import builtins, sys\n"
        f"if {missing}: sys.modules['torch'] = None\n"
        "from sharedvector import *\n"
        "import sharedvector\n"
        "print(MemoryError is builtins.MemoryError, 'PoolLoader' in globals())\n"
        "print(issubclass(sharedvector.MemoryError, MemoryError), SharedVector.__name__)"
    )
    assert run_python(code).split("\n") == [f"True {not missing}", "True SharedVector", ""]


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        sharedvector.nonsense  # noqa: B018
    assert set(sharedvector.__all__) <= set(dir(sharedvector))
    assert sharedvector.__version__.count(".") == 2


@pytest.mark.parametrize("option", ["exclusive", "replace"])
def test_who_only_attaches_makes_nothing(name: str, option: str) -> None:
    options: dict[str, Any] = {"create": False, option: True}
    with pytest.raises(ValueError, match=f"{option}=True makes a segment and create=False"):
        SharedVector(name, **options)
    assert not Path("/dev/shm", name).exists()
    with filled(name) as vector:
        with pytest.raises(ValueError, match="leave one of them out"):
            SharedVector(name, **options)
        assert len(vector) == 3
        with SharedVector(name, create=False) as other:
            assert other.inode == vector.inode


def test_the_mode_is_pickled(name: str) -> None:
    with filled(name, mode=0o660) as vector:
        assert vector.mode == 0o660
        with pickle.loads(pickle.dumps(vector)) as copied:
            assert copied.mode == 0o660 and (copied.get(0) == FLOATS).all()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Another directory in shared memory."""
    path = tempfile.mkdtemp(prefix=f"svtest-vector-{os.getpid()}-", dir="/dev/shm")
    yield Path(path)
    shutil.rmtree(path)


def test_removing_elsewhere(name: str, elsewhere: Path) -> None:
    with filled(name), filled(name, directory=elsewhere):
        remove_shared_memory(name, elsewhere)
        assert not (elsewhere / name).exists() and Path("/dev/shm", name).exists()


def test_a_relative_directory_is_that_of_the_beginning(
    name: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(elsewhere)
    with filled(name, directory=".") as vector:
        assert Path(vector.directory) == elsewhere / "."
        monkeypatch.chdir("/")
        with pickle.loads(pickle.dumps(vector)) as copied:
            assert (copied.get(1) == FLOATS + 1).all()


# ---- a file system that something else fills ---------------------------------------------------

FULL = '''
import os, subprocess, sys
import numpy as np
from sharedvector import SharedVector

look = """
from sharedvector import SharedVector
vector = SharedVector("v", create=False)
print(vector.get(0)[0], flush=True)
input()
"""
processes = int(sys.argv[1])
made = SharedVector("v", chunk_size=1 << 12, slot_count=4, dtype="float32", processes=processes)
made.append(np.full(8, 7, np.float32))
with open("/dev/shm/filler", "wb", buffering=0) as filler:
    for size in (1 << 20, 4096):
        try:
            while filler.write(b"x" * size):
                pass
        except OSError as error:
            assert error.errno == 28, error
attached = []
for _ in range(processes + 1):
    attached.append(
        subprocess.Popen(
            [sys.executable, "-c", look],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    print(attached[-1].stdout.readline().strip() or attached[-1].stderr.read().splitlines()[-1])
for process in attached:
    process.communicate(input="", timeout=60)
'''


def test_processes_attach_to_a_full_file_system() -> None:
    """As many as the segment is made for, all alive; one more gets an error that says so."""
    unshare = shutil.which("unshare")
    private = [unshare or "unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if unshare is None or subprocess.run([*private, "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs unshare and the right to mount a private /dev/shm")
    done = subprocess.run(
        [*private, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, "5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *seen, refused = done.stdout.splitlines()
    assert seen == ["7.0"] * 5
    assert "made for 5 processes" in refused and "processes" in refused


def test_processes_are_counted_beside_the_maker(name: str) -> None:
    with SharedVector(name, slot_count=2, chunk_size=64, processes=7, max_rows=8) as vector:
        assert vector.processes == 7
    remove_shared_memory(name)
    with pytest.raises(ValueError, match="processes must be from 0 to 7, found 8"):
        SharedVector(name, slot_count=2, chunk_size=64, processes=8, max_rows=8)


@pytest.mark.parametrize(
    "what",
    "chunk_size max_memory_size slot_count spare_buffers max_rows stats_capacity mode "
    "processes".split(),
)
@pytest.mark.parametrize("value", [float("nan"), 1.5, "16", -1, 1 << 64])
def test_numbers_that_a_segment_cannot_have_are_named(what: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{what} should be an integer.*got {value!r}$"):
        SharedVector("svvector-none", **{what: value})
