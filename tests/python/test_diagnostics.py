"""Diagnostics: what a process, a user and the machine have, and the hook above a limit."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import pickle
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_support import held_child, in_child
from pool_support import run

from sharedvector import Diagnostics, SharedArray, SharedVector, share, sweep, warn_above
from sharedvector.arrays import attachments
from sharedvector.monitoring.usage import diagnostics
from sharedvector.stats import PoolStats

KIB, MIB = 2**10, 2**20
TABLES = 64 * KIB  # more than a block takes beside its array
ROWS = 64 * 4 * KIB  # what a small pool reserves for the processes that will attach


@pytest.fixture(autouse=True)
def no_limit() -> Iterator[None]:
    gc.collect()  # blocks that earlier tests left to it are not to go while others are counted
    yield
    warn_above(None)


@pytest.fixture
def directory() -> Iterator[str]:
    """A place of its own in shared memory, where nobody else's blocks count."""
    path = tempfile.mkdtemp(prefix=f"svtest-diagnostics-{os.getpid()}-", dir="/dev/shm")
    yield path
    shutil.rmtree(path)


def base() -> int:
    """What this process has from elsewhere."""
    return sum(size for _, size in attachments.made())


def block(size: int, **options: Any) -> SharedArray:
    return SharedArray.empty(size, np.uint8, **options)


# ---- what is found -----------------------------------------------------------------------------


def test_blocks_made_here(directory: str) -> None:
    before = diagnostics(directory=directory)
    assert (before.blocks_all, before.blocks_all_bytes, before.orphans) == (0, 0, 0)
    with block(MIB, directory=directory) as one, block(2 * MIB, directory=directory) as two:
        found = diagnostics(directory=directory)
        assert found.pid == os.getpid()
        assert found.blocks_made == before.blocks_made + 2
        grown = found.blocks_made_bytes - before.blocks_made_bytes
        assert 3 * MIB <= grown < 3 * MIB + 2 * TABLES
        assert found.blocks_all == 2
        assert 3 * MIB <= found.blocks_all_bytes < 3 * MIB + 2 * TABLES
        assert {one.name, two.name} <= {name for name, _ in found.made}
        assert found.blocks_made_bytes == sum(size for _, size in found.made)
        assert (found.orphans, found.orphaned) == (0, ())
        assert found.blocks_attached == before.blocks_attached
    assert diagnostics(directory=directory).blocks_all == 0
    assert diagnostics().blocks_made == before.blocks_made


def test_a_child_starts_with_nothing(directory: str) -> None:
    with block(MIB, directory=directory):

        def look() -> None:
            found = diagnostics(directory=directory)
            assert (found.pid, found.blocks_made, found.blocks_made_bytes) == (os.getpid(), 0, 0)
            assert found.blocks_all == 1
            with block(KIB, directory=directory):
                assert diagnostics().blocks_made == 1

        assert in_child(look) == 0


def test_blocks_of_others(directory: str, tmp_path: Path) -> None:
    attachments._forget_gone()  # what earlier tests attached to goes at the next attachment
    before = diagnostics(directory=directory)

    def make() -> SharedArray:
        made = block(MIB, directory=directory)
        (tmp_path / "handle").write_bytes(pickle.dumps(made))
        return made

    with held_child(make):
        shared = pickle.loads((tmp_path / "handle").read_bytes())
        assert shared.array.shape == (MIB,)
        found = diagnostics(directory=directory)
        assert found.blocks_made == before.blocks_made
        assert found.blocks_attached == before.blocks_attached + 1
        assert MIB <= found.blocks_attached_bytes - before.blocks_attached_bytes < MIB + TABLES
        assert (found.blocks_all, found.orphans) == (1, 0)
    found = diagnostics(directory=directory)  # its maker was killed
    assert (found.blocks_all, found.orphans) == (1, 1)
    sweep(directory=directory)


def test_what_the_dead_left(directory: str) -> None:
    names: list[str] = []

    def die() -> None:
        kept = [
            block(MIB, directory=directory, prefix="dead"),
            SharedVector("lost", chunk_size=MIB, slot_count=2, owned=True, directory=directory),
            SharedVector("plain", chunk_size=KIB, slot_count=2, directory=directory),
        ]
        os.kill(os.getpid(), signal.SIGKILL)
        del kept

    assert in_child(die) == -signal.SIGKILL
    names = sorted(os.listdir(directory))
    assert len(names) == 3
    with block(KIB, directory=directory):
        found = diagnostics(directory=directory, lock_dir=directory)
        assert found.orphans == 2  # a plain segment records no owner
        assert sorted(item.kind for item in found.orphaned) == ["block", "pool"]
        assert found.orphans_bytes == sum(item.bytes for item in found.orphaned)
        assert 5 * MIB <= found.orphans_bytes < 5 * MIB + 2 * TABLES + ROWS
        assert found.blocks_all == 2
        assert set(names) < set(os.listdir(directory))
        first, *lines = str(found).splitlines()
        assert "LEFT BEHIND: 2 segments" in first and "python -m sharedvector sweep" in first
        assert "5." in first and "MiB" in first
        assert any(line.strip().startswith("lost ") for line in lines)
    swept = sweep(directory=directory, lock_dir=directory)
    assert sum(item.bytes for item in swept) == found.orphans_bytes
    left = diagnostics(directory=directory, lock_dir=directory)
    assert (left.orphans, left.blocks_all) == (0, 0)
    assert "nothing was left behind" in str(left).splitlines()[0]


def test_the_file_system_and_the_memory(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnostics()
    disk = os.statvfs(found.directory)
    assert found.directory == os.environ.get("SHAREDVECTOR_SHM_DIR", "/dev/shm")
    assert found.shm_bytes == disk.f_blocks * disk.f_frsize
    assert 0 < found.shm_free_bytes <= found.shm_bytes
    assert found.memory_free_bytes is None or found.memory_free_bytes > MIB
    assert "memory" in found.memory_limit
    assert found.container_limit_bytes is None or found.container_limit_bytes > MIB
    monkeypatch.setenv("SHAREDVECTOR_SHM_DIR", directory)
    assert diagnostics().directory == directory
    found = diagnostics(directory=os.fsencode(directory))  # type: ignore[arg-type]
    assert found.directory == directory


def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        diagnostics(directory=tmp_path / "nowhere")


# ---- how it is told ----------------------------------------------------------------------------


def some(**changes: Any) -> Diagnostics:
    known = Diagnostics(
        pid=4321,
        blocks_made=7,
        blocks_made_bytes=7 * MIB,
        blocks_attached=1,
        blocks_attached_bytes=1000 * MIB,
        blocks_all=9,
        blocks_all_bytes=2000 * MIB,
        orphans=0,
        orphans_bytes=0,
        shm_bytes=64 * MIB,
        shm_free_bytes=10 * MIB + 100 * KIB,
        memory_free_bytes=123 * MIB,
        container_limit_bytes=None,
        warn_above_bytes=None,
        directory="/dev/shm",
        memory_limit="this machine's memory",
        made=tuple((f"sv-0-x-{i}", i * MIB) for i in range(7)),
        orphaned=(),
    )
    return dataclasses.replace(known, **changes)


def test_numbers_for_a_logger() -> None:
    numbers = some().as_dict()
    assert all(type(value) is int for value in numbers.values())
    assert numbers["sharedvector/blocks_made_bytes"] == 7 * MIB
    absent = {"container_limit_bytes", "warn_above_bytes"}
    text = {"directory", "memory_limit", "made", "orphaned"}
    names = {field.name for field in dataclasses.fields(Diagnostics)}
    assert set(some().as_dict("")) == names - absent - text
    assert set(some(container_limit_bytes=5).as_dict("")) & absent == {"container_limit_bytes"}
    assert not names & {field.name for field in dataclasses.fields(PoolStats)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        some().pid = 3  # type: ignore[misc]


def test_the_table() -> None:
    lines = str(some()).splitlines()
    assert lines[0] == "sharedvector: nothing was left behind by dead processes"
    table = {line[: line.index("  ", 2)].strip(): line for line in lines[1:]}
    assert table["made by process 4321"].split()[-4:] == ["7.0", "MiB", "7", "blocks"]
    assert table["attached by it"].split()[-4:] == ["1,000.0", "MiB", "1", "block"]
    assert table["free in /dev/shm"].split()[-5:] == ["10.1", "MiB", "of", "64.0", "MiB"]
    assert table["container's limit"].endswith(" none")
    assert list(table)[1:7] == [*(f"sv-0-x-{i}" for i in (6, 5, 4, 3, 2)), "and 2 more"]
    assert table["and 2 more"].endswith(" 1.0 MiB")
    assert "ABOVE" not in str(some(warn_above_bytes=7 * MIB))
    assert "7 blocks, ABOVE the limit of 6.0 MiB" in str(some(warn_above_bytes=6 * MIB))
    assert "< 0.1 MiB" in str(some(blocks_attached_bytes=1))
    assert "none" in str(some(memory_free_bytes=None))


# ---- above a limit -----------------------------------------------------------------------------


def test_the_hook_is_called_once_for_each_crossing() -> None:
    calls: list[Diagnostics] = []
    warn_above(base() + 3 * MIB, calls.append)
    one = block(2 * MIB)
    assert calls == []
    two = block(2 * MIB)
    assert len(calls) == 1
    assert calls[0].blocks_made_bytes >= base() > calls[0].warn_above_bytes  # type: ignore[operator]
    assert two.name in {name for name, _ in calls[0].made}
    three = block(2 * MIB)
    assert len(calls) == 1  # it was above before
    three.close()
    two.close()
    four = block(KIB)
    assert len(calls) == 1
    five = block(2 * MIB)
    assert len(calls) == 2
    five.close()  # below, and above again with the very next block
    six = block(3 * MIB)
    assert len(calls) == 3
    warn_above(None)
    seven = block(3 * MIB)
    assert len(calls) == 3
    assert diagnostics().warn_above_bytes is None
    for handle in (one, four, six, seven):
        handle.close()


def test_a_new_limit_counts_from_anew() -> None:
    calls: list[int] = []
    with block(MIB):
        warn_above(np.int64(base()), lambda found: calls.append(1))
        with block(KIB):
            assert calls == [1]
        warn_above(base() - 1, lambda found: calls.append(2))
        assert calls == [1]  # it is looked at when a block is made
        with block(KIB), block(KIB):
            assert calls == [1, 2]


@pytest.mark.parametrize(
    ("limit", "hook", "error", "told"),
    [
        (-1, None, ValueError, "limit_bytes should be 0 or more, got -1"),
        (1.5, None, TypeError, "limit_bytes should be an integer, got 1.5"),
        ("2G", None, TypeError, "limit_bytes should be an integer, got '2G'"),
        (5, "x", TypeError, "hook must be callable with a Diagnostics; found 'x'"),
    ],
)
def test_bad_arguments_change_nothing(
    limit: Any, hook: Any, error: type[Exception], told: str
) -> None:
    warn_above(12345 * MIB)
    with pytest.raises(error, match=told):
        warn_above(limit, hook)
    assert diagnostics().warn_above_bytes == 12345 * MIB


def test_a_hook_that_raises_does_not_take_the_block(caplog: pytest.LogCaptureFixture) -> None:
    def hook(found: Diagnostics) -> None:
        raise OSError("the pager is out of order")

    warn_above(0, hook)
    with caplog.at_level(logging.ERROR, "sharedvector"), share(np.arange(10)) as shared:
        assert shared.array.sum() == 45
        assert Path("/dev/shm", shared.name).exists()
    (record,) = (one for one in caplog.records if one.name == "sharedvector")
    assert "warn_above" in record.getMessage()
    assert "the pager is out of order" in caplog.text


def test_an_interrupt_in_the_hook_ends_the_call_and_leaves_nothing() -> None:
    names: list[str] = []

    def hook(found: Diagnostics) -> None:
        names.extend(name for name, _ in found.made)
        raise KeyboardInterrupt

    warn_above(base(), hook)
    with pytest.raises(KeyboardInterrupt):
        share(np.arange(10))
    assert names
    assert not [name for name in names if Path("/dev/shm", name).exists()]


def test_a_hook_may_make_blocks() -> None:
    made: list[SharedArray] = []
    warn_above(base() + MIB, lambda found: made.append(block(MIB)))
    with block(2 * MIB):
        assert len(made) == 1
        made[0].close()


def test_the_default_hook_warns_at_the_line_that_made_the_block() -> None:
    warn_above(base() + MIB)
    with block(MIB // 2, prefix="small") as small:
        with pytest.warns(RuntimeWarning, match="made and has not removed") as told:
            big = share(np.zeros(MIB, np.uint8), prefix="images")
        big.close()
    (warning,) = (one for one in told if one.category is RuntimeWarning)
    assert warning.filename == __file__
    text = str(warning.message)
    assert text.index(big.name) < text.index(small.name)  # the largest first
    assert f"{big.name} (1.0 MiB)" in text and f"process {os.getpid()}" in text


def test_a_warning_that_is_an_error_does_not_take_the_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_above(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with share(np.arange(10)) as shared:
            assert shared.array.sum() == 45
    assert "RuntimeWarning" in caplog.text


def test_threads_cross_a_limit_once() -> None:
    calls: list[Diagnostics] = []
    warn_above(base() + 16 * KIB, calls.append)
    made: list[SharedArray] = []
    barrier = threading.Barrier(4)

    def make() -> None:
        barrier.wait(60)
        made.extend(block(64 * KIB) for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 20
    assert len(calls) == 1
    for handle in made:
        handle.close()


def test_a_child_has_the_limit_and_its_own_count() -> None:
    calls: list[Diagnostics] = []
    warn_above(base() + 2 * MIB, calls.append)

    def look() -> None:
        assert diagnostics().warn_above_bytes == limit
        warn_above(2 * MIB, calls.append)
        with block(MIB):  # the parent's do not count
            assert len(calls) == 1
            with block(2 * MIB):
                assert len(calls) == 2 and calls[1].pid == os.getpid()

    limit = diagnostics().warn_above_bytes
    with block(3 * MIB):
        assert len(calls) == 1
        assert in_child(look) == 0


# ---- the environment ---------------------------------------------------------------------------

MAKES = """
import sharedvector, numpy
with sharedvector.share(numpy.zeros(100_000)):
    print(sharedvector.diagnostics().warn_above_bytes)
"""


@pytest.mark.parametrize(
    ("text", "limit", "warned"),
    [("500k", 500 * KIB, True), ("2G", 2 << 30, False), (" 1T ", 1 << 40, False), ("7", 7, True)],
)
def test_a_limit_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, limit: int, warned: bool
) -> None:
    monkeypatch.setenv("SHAREDVECTOR_WARN_ABOVE", text)
    status, out, err = run(MAKES)
    assert (status, out.strip()) == (0, str(limit)), err
    assert ("RuntimeWarning" in err) is warned, err


def test_an_empty_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAREDVECTOR_WARN_ABOVE", "")
    status, out, err = run(MAKES)
    assert (status, out.strip(), err) == (0, "None", "")


@pytest.mark.parametrize("text", ["2X", "-5", "1.5G", "much"])
def test_one_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from sharedvector.monitoring import usage

    monkeypatch.setenv("SHAREDVECTOR_WARN_ABOVE", text)
    with pytest.raises(ValueError, match=f"SHAREDVECTOR_WARN_ABOVE={text!r}"):
        usage._from_environment()


def test_the_package_imports_no_prometheus() -> None:
    status, out, err = run(
        "import sys, sharedvector as s; s.diagnostics();"
        "print([name for name in sys.modules if 'prometheus' in name or name == 'logging'])"
    )
    assert (status, out.strip()) == (0, "[]"), err


def test_a_process_that_only_attaches_does_not_import_this() -> None:
    status, out, err = run(
        "import sys; from sharedvector.arrays import SharedArray\n"
        "print('sharedvector.monitoring.usage' in sys.modules)"
    )
    assert (status, out.strip()) == (0, "False"), err
