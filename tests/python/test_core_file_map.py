"""Parts of files as memory: the same bytes, and no end of the process when a file is cut short."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from pool_support import run

MIB = 2**20
PAGE = os.sysconf("SC_PAGESIZE")
BYTES = np.random.default_rng(3).integers(1, 256, 3 * MIB + 5, np.uint8)

# The handler belongs to a whole process: each test of it has one of its own.
BEGIN = """
    import ctypes, faulthandler, gc, mmap, os, signal, sys, threading
    from pathlib import Path
    import numpy as np
    from sharedvector import _core
    path = Path(sys.argv[1])
    file = open(path, "rb+")
    size = path.stat().st_size
    def open_map(offset=0, length=None):
        return _core.map_file(file.fileno(), offset, length or size - offset)
    def maps():
        return sum(str(path) in line for line in open("/proc/self/maps"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "bytes"
    made.write_bytes(BYTES.tobytes())
    descriptor = os.open(made, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        pytest.skip(f"{tmp_path}: its file system cannot tell what is cached: {error}")
    finally:
        os.close(descriptor)
    return made


def child(body: str, path: Path) -> tuple[int, str, str]:
    lines = [line[4:] for line in body.splitlines()]
    return run(BEGIN.replace("\n    ", "\n") + "\n".join(lines), str(path), seconds=150)


def test_without_the_guard_there_is_no_map(path: Path) -> None:
    assert child("\n    assert open_map() is None and maps() == 0\n", path) == (0, "", "")


def test_the_bytes_are_those_of_the_file(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    _core.guard_file_maps()
    whole = path.read_bytes()
    page = mmap.PAGESIZE
    for offset in (0, 1, page - 1, page, page + 1, size - page, size - 1):
        for length in (1, 5, page, page + 1, size - offset):
            if offset + length > size:
                continue
            part = open_map(offset, length)
            view = memoryview(part)
            assert view == whole[offset : offset + length], (offset, length)
            assert view.readonly and view.format == "B" and view.ndim == 1
            assert not np.frombuffer(part, np.uint8).flags.writeable
            assert part.whole
            del view, part
    assert maps() == 0
    """
    assert child(code, path) == (0, "", "")


def test_an_array_keeps_the_map(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    array = np.frombuffer(open_map(), np.uint8)
    file.close()
    path.unlink()
    assert len(array) == size and array[-1] > 0 and maps() == 1
    del array
    assert maps() == 0
    """
    assert child(code, path) == (0, "", "")


def test_what_is_cut_off_is_zero_and_said(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    part = open_map(1000)
    array = np.frombuffer(part, np.uint8)
    assert array[-1] > 0
    os.truncate(path, 2**20)
    assert part.whole  # nobody has looked
    left = 2**20 - 1000
    assert array[:left].all() and part.whole
    assert array[left] == 0 and part.whole  # the rest of the page is there, and empty
    assert not array[left + mmap.PAGESIZE :].any() and not part.whole
    assert array[:left].all()
    file.seek(0)
    file.write(b"z" * size)
    file.flush()
    assert not array[left + mmap.PAGESIZE :].any()  # it does not come back
    del array, part
    assert open_map().whole
    again = open_map()
    assert bytes(again) == b"z" * size and again.whole
    """
    code = code.replace("2**20", str(MIB + PAGE // 2))
    assert child(code, path) == (0, "", "")


def test_one_map_is_lost_and_others_are_not(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    with open(other, "rb") as second:
        kept = _core.map_file(second.fileno(), 0, size)
    lost = open_map()
    os.truncate(path, 0)
    assert not np.frombuffer(lost, np.uint8).any()
    assert (lost.whole, kept.whole) == (False, True)
    assert bytes(kept) == other.read_bytes() and kept.whole
    """
    assert child(code, path) == (0, "", "")


def test_better_read(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    assert open_map(size - 1, 1) is not None
    assert open_map(size - 1, 2) is None  # beyond the end
    assert open_map(size + mmap.PAGESIZE, 1) is None
    assert _core.map_file(-1, 0, 1) is None  # reading says why
    reader, writer = os.pipe()
    assert _core.map_file(reader, 0, 1) is None
    assert _core.map_file(os.open(path.parent, os.O_RDONLY), 0, 1) is None
    for arguments in ((0, 0), (0, -1), (-1, 1), (2**63 - 1, 1)):
        try:
            _core.map_file(file.fileno(), *arguments)
        except ValueError as error:
            assert "wanted 1 or more from 0 on" in str(error)
        else:
            raise AssertionError(arguments)
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print(open_map() is None)
    file.read()
    assert open_map() is not None
    """
    status, out, err = child(code, path)
    assert (status, err) == (0, "")
    assert out == "True\n"  # what is not cached is read


def test_a_limited_number_at_a_time(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    held = [open_map() for _ in range(100)]
    got = [part for part in held if part is not None]
    assert 16 <= len(got) < 100 and held[len(got)] is None
    assert all(bytes(part[:9]) == path.read_bytes()[:9] for part in map(memoryview, got))
    os.truncate(path, 0)
    assert all(not any(memoryview(part)[:9]) for part in got)
    assert not any(part.whole for part in got)
    del held, got, part
    """
    code = code.replace("    del held, got, part\n", "")
    assert child(code, path) == (0, "", "")


def test_threads_and_a_file_that_comes_and_goes(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    whole, stop, seen = path.read_bytes(), threading.Event(), [0, 0, 0]
    def look():
        while not stop.is_set():
            part = open_map()
            if part is None:
                seen[2] += 1
                continue
            same = np.array_equal(np.frombuffer(part, np.uint8), np.frombuffer(whole, np.uint8))
            assert same or True
            seen[part.whole] += 1
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    import time
    deadline = time.monotonic() + 120
    while min(seen) < 20 and time.monotonic() < deadline:
        os.truncate(path, size // 3)
        time.sleep(0.0005)
        os.pwrite(file.fileno(), whole[size // 3 :], size // 3)
        time.sleep(0.0005)
    stop.set()
    for thread in threads:
        thread.join()
    assert maps() == 0 and open_map().whole
    print(min(seen) >= 20, file=sys.stderr if min(seen) < 20 else sys.stdout)
    """
    code = code.replace("            assert same or True\n", "").replace("same = ", "")
    assert child(code, path) == (0, "True\n", "")


FOREIGN = """
    foreign = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), size, mmap.MAP_SHARED, mmap.PROT_READ)
    held = open_map()
    print(foreign[0] > 0, flush=True)
    os.truncate(path, 0)
    foreign[size - 1]
    print("not reached")
"""


def test_a_bus_error_elsewhere_ends_the_process(path: Path) -> None:
    code = f"\n    _core.guard_file_maps()\n{FOREIGN}"
    assert child(code, path) == (-signal.SIGBUS, "True\n", "")


def test_who_stood_before_is_called(path: Path) -> None:
    code = f"\n    faulthandler.enable()\n    _core.guard_file_maps()\n{FOREIGN}"
    status, out, err = child(code, path)
    assert (status, out) == (-signal.SIGBUS, "True\n")
    assert "Fatal Python error: Bus error" in err


def test_who_comes_later_ends_the_maps(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    assert open_map() is not None
    signal.signal(signal.SIGBUS, lambda *_: print("mine"))
    assert open_map() is None
    _core.guard_file_maps()
    assert open_map() is None
    signal.raise_signal(signal.SIGBUS)
    """
    assert child(code, path) == (0, "mine\n", "")


def test_a_thread_that_blocks_the_signal_reads(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])
    assert open_map() is None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGBUS])
    assert open_map() is not None
    """
    assert child(code, path) == (0, "", "")


@pytest.mark.parametrize("before", ["SIG_IGN", "own"])
def test_a_sent_signal_that_is_outlived_leaves_the_guard(path: Path, before: str) -> None:
    handler = "lambda *_: print('mine')" if before == "own" else f"signal.{before}"
    code = f"""
    signal.signal(signal.SIGBUS, {handler})
    _core.guard_file_maps()
    part = open_map()
    signal.raise_signal(signal.SIGBUS)
    assert open_map() is not None
    os.truncate(path, 0)
    assert not any(memoryview(part)) and not part.whole
    """
    assert child(code, path) == (0, "mine\n" if before == "own" else "", "")


def test_a_signal_that_somebody_sent(path: Path) -> None:
    code = """
    _core.guard_file_maps()
    held = open_map()
    os.kill(os.getpid(), signal.SIGBUS)
    print("not reached")
    """
    assert child(code, path) == (-signal.SIGBUS, "", "")
