"""The `sharedvector` command: the C program that the wheel puts beside the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest
from core_support import filled, fresh_name

import sharedvector
from sharedvector.stats import collect_stats

COMMAND = Path(sysconfig.get_path("scripts")) / "sharedvector"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"sharedvector {sharedvector.__version__}, segment format 1.")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("info",),
        ("info", "x", "--mode"),
        ("info", "x", "--mode", "0x1"),
        ("info", "x", "--mode", "1000"),
        ("info", "x", "--mode", "0o"),
        ("info", "x", "--mode", "0o0o640"),
        ("list", "x"),
        ("mend", "x"),
        ("remove",),
        ("sweep", "x"),
        ("sweep", "--prefix"),
    ],
)
def test_a_wrong_call_says_how_to_call_it(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: sharedvector list")
    assert done.stdout == ""


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_an_answer(word: str) -> None:
    done = run(word)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: sharedvector list") and "remove NAME..." in done.stdout


def test_info_has_the_counters_of_the_statistics() -> None:
    with fresh_name() as name, filled(name) as vector:
        for counter in range(1, 11):
            vector.counter_add(counter, 100 + counter)
        stats = collect_stats(vector).as_dict("")
        lines = [line.split() for line in run("info", name).stdout.splitlines()]
        told = {words[0]: int(words[1]) for words in lines if words[0] in stats and len(words) == 2}
        assert told == {key: value for key, value in stats.items() if value >= 100}
        assert len(told) == 8


def test_the_mode_of_a_shared_segment_is_given() -> None:
    with fresh_name() as name, filled(name, mode=0o640):
        refused = run("info", name)
        assert refused.returncode == 1 and "mode=0o640" in refused.stderr
        for verb in ("info", "recover", "check"):
            for mode in ("640", "0640", "0o640"):
                done = run(verb, name, "--mode", mode)
                assert (done.returncode, done.stderr) == (0, "")
        python = [sys.executable, "-m", "sharedvector", "info", name]
        assert subprocess.run(python, capture_output=True, timeout=60, check=False).returncode == 1
        told = subprocess.run(
            [*python, "--mode", "0640"], capture_output=True, text=True, timeout=60, check=True
        )
        assert "3 of" in told.stdout


def test_list_and_info_tell_what_is_there() -> None:
    with fresh_name() as name, filled(name, count=3) as vector:
        view = vector.get(0)
        listed = next(line for line in run("list").stdout.splitlines() if name in line)
        assert "owner none" in listed and "in use" in listed
        told = run("info", name).stdout
        assert f"{sharedvector.SharedVector(name, create=False).generation}" in told
        assert "slots              3 of 235 filled, 2 spare buffers" in told
        assert "dtype              float32, 4 bytes" in told
        assert any(
            line.split()[:5] == ["pid", str(os.getpid()), "alive", "1", "pins"]
            for line in told.splitlines()
        )
        del view
        assert run("check", name).stdout == "good\n"


def test_recover_gives_back_what_a_killed_reader_held() -> None:
    with fresh_name() as name, filled(name) as vector:
        reader = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sharedvector as s, time; v = s.SharedVector({name!r}, create=False); "
                "a = v.get(1); print('held', flush=True); time.sleep(600)",
            ],
            stdout=subprocess.PIPE,
        )
        assert reader.stdout is not None and reader.stdout.readline() == b"held\n"
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        reader.stdout.close()
        assert [row["pins"] for row in vector.rows() if not row["live"]] == [1]
        assert run("recover", name).stdout == "what dead processes held has been given back\n"
        assert all(row["live"] and row["pins"] == 0 for row in vector.rows())
        vector.replace(1, np.zeros((3, 4), np.float32))


def test_remove_unlinks_names_and_leaves_data_to_the_attached() -> None:
    with fresh_name() as name, filled(name) as vector:
        assert run("remove", name, f"no_such_{name}").returncode == 0
        with pytest.raises(FileNotFoundError):
            sharedvector.SharedVector(name, create=False)
        assert vector.get(2)[0, 0] == 2


@pytest.mark.parametrize("verb", ["info", "recover", "check"])
def test_a_missing_or_broken_segment_is_one_line_and_status_one(verb: str) -> None:
    with fresh_name() as name:
        missing = run(verb, name)
        assert missing.returncode == 1
        assert name in missing.stderr and missing.stderr.count("\n") == 1
        file = Path(f"/dev/shm/{name}")
        file.write_bytes(bytes(5000))
        file.chmod(0o600)
        started = time.monotonic()
        broken = run(verb, name)
        assert time.monotonic() - started < 30
        assert broken.returncode == 1 and "never finished" in broken.stderr


def orphans(prefix: str) -> list[str]:
    """Names of two blocks with this prefix whose maker was killed."""
    maker = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, numpy as np, sharedvector as s\n"
            f"made = [s.share(np.ones(1 << 17), prefix={prefix!r}) for _ in range(2)]\n"
            "print(*(block.name for block in made), flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert maker.returncode == -signal.SIGKILL
    return maker.stdout.split()


def test_list_and_info_say_that_a_block_is_one() -> None:
    with sharedvector.share(np.arange(1000)) as block:
        listed = next(line for line in run("list").stdout.splitlines() if block.name in line)
        assert "block, maker alive" in listed and "in use" in listed
        told = run("info", block.name).stdout
        assert "block              8000 bytes" in told and "maker              alive" in told
        assert "slots" not in told and "loads_zarr" not in told
        assert run("check", block.name).stdout == "good\n"


def test_remove_refuses_what_a_living_owner_has() -> None:
    with fresh_name() as name, filled(name, owned=True, replace=True) as vector:
        refused = run("remove", name)
        assert refused.returncode == 1
        assert f"in use by its owner, process {os.getpid()} (" in refused.stderr
        assert "end that process, which removes it" in refused.stderr
        assert vector.owner_live() and Path("/dev/shm", name).exists()
        vector.close()
        assert run("remove", name).returncode == 0
        assert not Path("/dev/shm", name).exists()


def test_sweep_removes_what_the_dead_left() -> None:
    prefix = f"cmd{os.getpid()}"
    names = orphans(prefix)
    with sharedvector.share(np.zeros(10), prefix=prefix) as alive:
        listed = run("list").stdout
        assert all(
            any(name in line and "dead: an orphan" in line for line in listed.splitlines())
            for name in names
        )
        dry = run("sweep", "--prefix", prefix, "--dry-run")
        assert dry.returncode == 0
        assert all(f"{name}\n" in dry.stdout for name in names)
        assert dry.stdout.splitlines()[-1].startswith("would remove 2 orphans, 2.")
        assert all(Path(f"/dev/shm/{name}").exists() for name in names)
        done = run("sweep", "--dry-run", "--prefix", "no" + prefix)
        assert done.stdout == "would remove 0 orphans, 0.0 MiB\n"
        done = run("sweep", "--prefix", prefix)
        assert done.returncode == 0 and done.stdout.startswith("removed  block ")
        assert done.stdout.splitlines()[-1].startswith("removed 2 orphans, 2.")
        assert not any(Path(f"/dev/shm/{name}").exists() for name in names)
        assert Path(f"/dev/shm/{alive.name}").exists()


def test_a_sweep_that_cannot_be_is_one_line_and_status_one() -> None:
    done = run("sweep", "--prefix", "")
    assert done.returncode == 1
    assert "the prefix is empty" in done.stderr and done.stderr.count("\n") == 1
