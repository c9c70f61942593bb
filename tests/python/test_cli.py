"""The commands, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_support import (
    HERE,
    Constant,
    children,
    ended,
    files,
    own_words,
    refreshes,
    spec,
    start,
    unique,
    wait_for,
)

from sharedvector import (
    NumpyLoader,
    SharedVector,
    ensure_pool,
    remove_shared_memory,
    share,
    sweep,
)
from sharedvector.cli import (
    EXIT_BUSY,
    instantiate_loader,
    producer_main,
    resolve_source_size,
    spacing_manifest_main,
)

PRODUCER = "import sys; from sharedvector.cli import producer_main; sys.exit(producer_main())"


def command(*arguments: str, code: str = PRODUCER) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, env=environment(), check=False
    )


def producer_arguments(name: str, loader: str = "pool_support:Constant") -> list[str]:
    required = ["--name", name, "--slot-count", "4", "--chunk-size-mb", "0.01"]
    return [*required, "--loader-class", loader, "--num-producers", "2"]


# ---- parts -------------------------------------------------------------------------------------


def test_a_loader_from_its_name_and_json(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    text = json.dumps({"directory": str(tmp_path), "dtype": "int16"})
    assert len(instantiate_loader("sharedvector.loaders:NumpyLoader", text)) == 1
    assert len(instantiate_loader("pool_support:Constant", None)) == 8


@pytest.mark.parametrize(
    ("spec", "text", "error"),
    [
        ("no_colon", None, ValueError),
        ("no_such_module:X", None, ImportError),
        ("sharedvector.loaders:NoSuch", None, AttributeError),
        ("sharedvector.loaders:NumpyLoader", "{", ValueError),
        ("sharedvector.loaders:NumpyLoader", "[1]", TypeError),
        ("sharedvector.loaders:NumpyLoader", None, TypeError),
        ("sharedvector.loaders:NumpyLoader", '{"directory": "/no/such"}', FileNotFoundError),
    ],
)
def test_bad_loaders(spec: str, text: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        instantiate_loader(spec, text)


def test_the_number_of_sources() -> None:
    assert resolve_source_size(Constant(5), None) == 5
    assert resolve_source_size(Constant(5), 9) == 9
    without: Any = object()
    assert resolve_source_size(without, 4) == 4
    with pytest.raises(ValueError, match="--source-size"):
        resolve_source_size(without, None)
    assert NumpyLoader.__len__ is not None


# ---- sharedvector-producer ---------------------------------------------------------------------


def test_owns_a_pool_until_it_is_told_to_end() -> None:
    name = unique("cli")
    arguments = [
        *producer_arguments(name),
        *("--loader-args", '{"dtype": "int16", "sources": 3}', "--dtype", "int16"),
        *("--spare-buffers", "3", "--sleep-seconds", "0.001", "--producer-kind", "thread"),
        *("--processes", "9"),
    ]
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        with ensure_pool(name, 4, mode="attach", ready_timeout=50, poll_interval=0.02) as handle:
            vector = handle.attach()
            assert (vector.dtype, vector.spare_buffers) == ("int16", 3)
            assert vector.processes == 9 + 1 + 2  # the supervisor and two workers
            assert vector.chunk_size == int(0.01 * 2**20)
            assert refreshes(vector)
            (supervisor,) = children(process.pid)
            assert len(children(supervisor)) == 1  # two workers, one process
            busy = run(command(*producer_arguments(name)))
            assert busy.returncode == EXIT_BUSY == 2
            assert f"process {process.pid}" in busy.stderr
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, ""), err
    assert all("INFO" in line for line in own_words(err).splitlines()), err
    assert files(name) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--loader-class", "no_such_module:X"], "no_such_module"),
        (["--loader-class", "pool_support:AllBad"], "volume-00"),
        (["--loader-class", "pool_support:Empty"], "empty list"),
        (["--dtype", "unheard-of"], "unheard-of"),
        (["--slot-count", "0"], "slot_count"),
        (["--name", "a/b"], "a/b"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--loader-args", "{"], "JSON"),
        (["--loader-args", '{"wrong": 1}'], "wrong"),
        (["--chunk-size-mb", "0"], "--chunk-size-mb should make a chunk_size"),
        (["--chunk-size-mb", "nan"], "got nan MiB"),
        (["--chunk-size-mb", "inf"], "got inf MiB"),
        (["--chunk-size-mb", "1e300"], "got 1e+300 MiB"),
        (["--chunk-size-mb", "-1"], "got -1 MiB"),
        (["--sleep-seconds", "nan"], "sleep_seconds"),
    ],
)
def test_errors_are_one_line(
    change: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = unique("err")
    status = producer_main([*producer_arguments(name), "--log-level", "ERROR", *change])
    assert status == 1
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = [text for text in err.splitlines() if text.startswith("sharedvector-producer: ")]
    assert words in line
    assert "Traceback" not in err
    assert files(name) == []


def test_missing_options_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        producer_main(["--name", "x"])
    assert left.value.code == 64
    assert "--slot-count" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        producer_main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    options = "name slot-count chunk-size-mb dtype num-producers sleep-seconds"
    options += " producer-join-timeout loader-class loader-args source-size lock-dir log-level"
    assert all(f"--{option}" in text for option in options.split())


# ---- sharedvector-spacing-manifest -------------------------------------------------------------


def write_volume(path: Path, attributes: dict[str, Any]) -> None:
    """The metadata of a Zarr v3 array; the manifest reads nothing else."""
    path.mkdir(parents=True)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4, 4],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": attributes,
    }
    (path / "zarr.json").write_text(json.dumps(metadata))


def test_the_manifest_of_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "db.zarr"
    write_volume(root / "a", {"spacing": [1.0, 2.0, 3.0]})
    assert spacing_manifest_main([str(root)]) == 0
    assert json.loads((root / "spacing.json").read_text()) == {"a": [1.0, 2.0, 3.0]}
    write_volume(root / "b", {"gap": [1, 1, 1]})
    assert spacing_manifest_main([str(root)]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("sharedvector-spacing-manifest: ")
    output = tmp_path / "out.json"
    arguments = [str(root), "--output", str(output), "--skip-missing", "--attr-key", "gap"]
    assert spacing_manifest_main(arguments) == 0
    assert json.loads(output.read_text()) == {"b": [1.0, 1.0, 1.0]}
    assert spacing_manifest_main([str(tmp_path / "none")]) == 1


# ---- python -m sharedvector --------------------------------------------------------------------


def test_what_there_is_to_run() -> None:
    done = run([sys.executable, "-m", "sharedvector"])
    assert done.returncode == 0, done.stderr
    for command in ("producer", "spacing-manifest", "zarr-verify"):
        assert f"  sharedvector-{command} " in done.stdout
    for command in ("list", "info", "sweep", "diagnostics", "bench"):
        assert f"python -m sharedvector {command}" in done.stdout


def test_list_and_info() -> None:
    name = unique("info")
    plain = unique("plain")
    vector = SharedVector(plain, chunk_size=4096, slot_count=2)
    try:
        with ensure_pool(name, 4, producer=spec(), ready_timeout=50) as handle:
            # A source counts as loaded a moment after its last chunk can be seen.
            wait_for(lambda: handle.stats().sources_loaded >= 4)
            listed = run([sys.executable, "-m", "sharedvector", "list"]).stdout.splitlines()
            (line,) = [text for text in listed if text.startswith(f"{name} ")]
            assert "pool, in use" in line and "orphan" not in line
            (line,) = [text for text in listed if text.startswith(f"{plain} ")]
            assert "no pool" in line
            told = run([sys.executable, "-m", "sharedvector", "info", name])
            assert told.returncode == 0, told.stderr
            assert "4 of 4 filled" in told.stdout
            facts = dict(text.split(maxsplit=1) for text in told.stdout.splitlines())
            assert int(facts["sources_loaded"]) >= 4 and int(facts["sources_failed"]) == 0
            (line,) = [
                r for r in told.stdout.splitlines() if r.startswith(f"process {os.getpid()} ")
            ]
            words = Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")
            assert line.endswith(" ".join(" ".join(words).split())[-40:])
            assert "this command" in told.stdout and "_producer/entry.py worker" in told.stdout
        none = run([sys.executable, "-m", "sharedvector", "info", name])
        assert none.returncode == 1 and name in none.stderr
        assert "Traceback" not in none.stderr
    finally:
        vector.close()
        remove_shared_memory(plain)
    wait_for(lambda: files(name) == [])


def node(*arguments: str) -> tuple[int, list[str], str]:
    """python -m sharedvector: status, lines, what it says on standard error."""
    done = run([sys.executable, "-m", "sharedvector", *arguments])
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("mode", ["640", "0640", "0o640"])
def test_a_mode_is_octal_with_or_without_its_sign(mode: str) -> None:
    name = unique("mode")
    with SharedVector(name, chunk_size=64, slot_count=2, mode=0o640):
        try:
            assert node("info", name)[0] == 1
            status, lines, error = node("info", name, "--mode", mode)
            assert (status, error) == (0, "") and lines[0].endswith(name)
        finally:
            remove_shared_memory(name)


@pytest.mark.parametrize("mode", ["", "0", "0o", "0x1a0", "6_40", "-640", "1000", "rw-r-----"])
def test_what_is_no_mode_is_a_usage_error(mode: str) -> None:
    status, lines, error = node("info", "x", f"--mode={mode}")
    assert (status, lines) == (64, [])
    assert error.startswith("usage: python -m sharedvector info")
    words = "argument --mode: should be permission bits in octal, such as 640 or 0o640, got"
    assert f"{words} {mode!r}" in error


def dead_block(prefix: str) -> tuple[str, int]:
    """A block whose maker was killed: its name and the maker's pid."""
    code = f"""
    import os, signal, numpy, sharedvector
    kept = sharedvector.share(numpy.zeros(1 << 18), prefix={prefix!r})
    print(kept.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    process = start(code)
    status, out, err = ended(process)
    assert status == -signal.SIGKILL, err
    return out.strip(), process.pid


def test_info_does_not_take_a_lock_elsewhere_for_none(tmp_path: Path) -> None:
    name = unique("elsewhere")
    with ensure_pool(name, 4, producer=spec(), ready_timeout=50, lock_dir=tmp_path):
        _, lines, _ = node("info", name)
        facts = dict(text.split(maxsplit=1) for text in lines)
        assert facts["owner"] == "alive, with its lock not in /dev/shm: see --lock-dir"
        assert facts["ready"].startswith("unknown")
        _, lines, _ = node("info", name, "--lock-dir", str(tmp_path))
        facts = dict(text.split(maxsplit=1) for text in lines)
        assert facts["owner"] == f"process {os.getpid()}" and facts["ready"] == "True"


def test_list_and_info_show_blocks() -> None:
    prefix = f"cli{os.getpid()}"
    try:
        with share(np.zeros(1 << 18), prefix=prefix) as shared:
            dead, maker = dead_block(prefix)
            _, lines, _ = node("list")
            (line,) = [text for text in lines if text.startswith(shared.name)]
            assert line == f"{shared.name}  2.0 MiB  block of process {os.getpid()}, alive, in use"
            (line,) = [text for text in lines if text.startswith(dead)]
            assert line.endswith(f"block of process {maker}, dead, not in use")
            status, lines, error = node("info", shared.name)
            assert status == 0, error
            facts = dict(text.split(maxsplit=1) for text in lines)
            assert facts["kind"] == f"block of process {os.getpid()}, alive, in use"
            assert facts["dtype"] == "float64" and "slots" not in facts
            (line,) = [text for text in lines if text.startswith(f"process {os.getpid()} ")]
            assert "alive" in line
            assert f"block of process {maker}, dead" in "".join(node("info", dead)[1])
            assert shared.array[0] == 0
    finally:
        sweep(prefix)


def test_sweep() -> None:
    prefix = f"swp{os.getpid()}"
    with share(np.zeros(100), prefix=prefix) as alive:
        assert node("sweep", "--prefix", prefix) == (0, ["nothing to remove"], "")
        dead, _ = dead_block(prefix)
        other, _ = dead_block(f"{prefix}x")
        told = [f"would remove block {dead}  2.0 MiB", "would remove 1 segment(s), 2.0 MiB"]
        assert node("sweep", "--prefix", prefix, "--dry-run") == (0, told, "")
        assert Path("/dev/shm", dead).exists()
        done = [text.replace("would remove", "removed") for text in told]
        assert node("sweep", "--prefix", prefix) == (0, done, "")
        assert not Path("/dev/shm", dead).exists()
        assert Path("/dev/shm", alive.name).exists() and Path("/dev/shm", other).exists()
        assert node("sweep", f"--prefix={prefix}x")[1][1] == "removed 1 segment(s), 2.0 MiB"
    environ = {**os.environ, "SHAREDVECTOR_SHM_DIR": "/nonexistent"}
    failed = subprocess.run(
        [sys.executable, "-m", "sharedvector", "sweep"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
        check=False,
    )
    assert failed.returncode == 1 and "/nonexistent" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_diagnostics_for_people_and_for_prometheus() -> None:
    prefix = f"dia{os.getpid()}"
    dead, _ = dead_block(prefix)
    try:
        status, lines, error = node("diagnostics")
        assert status == 0, error
        assert "LEFT BEHIND" in lines[0] and "python -m sharedvector sweep" in lines[0]
        assert any(text.startswith("free in /dev/shm ") for text in lines)
        status, lines, error = node("diagnostics", "--prometheus")
        assert status == 0, error
        (line,) = [text for text in lines if text.startswith("sharedvector_blocks_all ")]
        assert float(line.split()[1]) >= 1
        assert not any(text == "" for text in lines)
    finally:
        assert [item.name for item in sweep(prefix)] == [dead]
