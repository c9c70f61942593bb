"""The command `bench share`: what it prints and writes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import pytest

from sharedvector.cli.bench import share
from sharedvector.cli.bench.jobs import METHODS, Job, Method, Workers

pytestmark = pytest.mark.timeout(400)

SHM = Path("/dev/shm")
LIMIT = 150  # seconds for one command
SMALL = ("--mb", "0.1", "--workers", "2", "--rounds", "2")
LABELS = [method.label for method in METHODS]


def start(directory: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, with `directory` for its temporary files."""
    # What matplotlib's newest versions warn of is not ours.
    strict = () if "--plot" in words else ("-W", "error")
    return subprocess.Popen(
        [sys.executable, *strict, "-m", "sharedvector", "bench", "share", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory), **environment},
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def run(directory: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    return finish(start(directory, *words, **environment))


@pytest.fixture(scope="module", autouse=True)
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Segments in a directory of their own, and SharedMemory with names of its own, here and in the
    commands: tests that run beside these make both."""
    prefix = f"/{os.getpid()}_"
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(
        f"from multiprocessing import shared_memory\nshared_memory._SHM_NAME_PREFIX = {prefix!r}\n"
    )
    with (
        tempfile.TemporaryDirectory(prefix=f"svtest-{os.getpid()}-", dir=SHM) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SHAREDVECTOR_SHM_DIR", directory)
        patch.setenv("PYTHONPATH", str(site))
        patch.setattr(shared_memory, "_SHM_NAME_PREFIX", prefix)
        yield


def ours() -> set[str]:
    """Blocks of the benchmark, and segments of SharedMemory."""
    blocks = os.listdir(os.environ["SHAREDVECTOR_SHM_DIR"])
    return {*blocks, *(path.name for path in SHM.glob(f"{os.getpid()}_*"))}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    assert not ours()
    yield
    deadline = time.monotonic() + 30
    while ours() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ours()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, "fork") as two:
        yield two
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_every_method_is_in_the_table(start_method: str, tmp_path: Path) -> None:
    words = (*SMALL, "--start-method", start_method, "--json", "all.json")
    status, out, err = run(tmp_path, *words)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"100 kB of float64, 2 workers ({start_method}, started)")
    assert [line.split("  ")[0] for line in lines[3 : 3 + len(LABELS)]] == LABELS
    assert lines[-1].startswith("100 kB, 2 workers: ") and "for processes take" in lines[-1]
    (found,) = json.loads((tmp_path / "all.json").read_text())
    assert found["size_bytes"] == 100_000 and 0 < found["pickled_bytes"] < 300
    assert found["advice"] == lines[-1]
    counts = {key: len(method["samples"]) for key, method in found["methods"].items()}
    assert counts == {method.key: min(method.rounds, 2) for method in METHODS}
    for method in found["methods"].values():
        spread = method["seconds"]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"] < LIMIT
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]


def test_the_base_of_the_ratios(workers: Workers) -> None:
    measured = share.measure(workers, 80_000, 3)
    here, empty = (measured.outcomes[key].seconds for key in ("in_process", "empty"))
    for outcome in measured.outcomes.values():
        rounds = zip(outcome.seconds, outcome.ratios, here, empty, strict=False)
        for seconds, ratio, work, tasks in rounds:
            assert ratio == pytest.approx(seconds / (work + tasks))


def test_a_sweep_says_where_sharing_pays(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    words = ("--sweep", "--mb", "1", "--workers", "2", "--rounds", "1", "--plot", "lines.svg")
    status, out, err = run(tmp_path, *words)
    assert status == 0, err
    # The first start of matplotlib may say that it takes a moment.
    said = [line for line in err.splitlines() if line.endswith(" ...")]
    assert said == ["10 kB ...", "100 kB ...", "1 MB ..."]
    assert out.split("\n")[0].split() == ["10", "kB", "100", "kB", "1", "MB"]
    assert "sharing for a single job beats pickled slices: " in out
    assert (tmp_path / "lines.svg").read_text().startswith("<?xml")


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    status, _, err = run(tmp_path, *SMALL, "--plot")
    assert status == 0 and "sharedvector" not in err, err
    assert (tmp_path / "share.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    status, out, err = run(tmp_path, "--plot", PYTHONPATH=str(tmp_path))
    assert (status, out) == (1, "")
    assert err.startswith("sharedvector: --plot needs matplotlib") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--workers", "0"), "--workers should be 1 or more, got 0"),
        (("--rounds", "0"), "--rounds should be 1 or more, got 0"),
        (("--mb", "0"), "--mb should give each of 8 workers at least one value"),
        (("--mb", "nan"), "--mb should give"),
        (("--mb", "inf"), "--mb should give"),
        (("--mb", "0.00001", "--workers", "2"), "at least one value of 8 bytes, got 1e-05 MB"),
        (("--sweep", "--mb", "0.001"), "no size could be measured"),
        (("--json", "missing/all.json"), "there is no folder missing"),
        (("--plot", "share.txt"), "share.txt should end in one of: "),
    ],
)
def test_options_without_sense(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    status, out, err = run(tmp_path, *words)
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("sharedvector: ") and told in last


@pytest.mark.parametrize(
    ("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_signal_in_the_middle(
    signum: signal.Signals, expected: int, start_method: str, tmp_path: Path
) -> None:
    process = start(tmp_path, "--mb", "8", "--rounds", "100000", "--start-method", start_method)
    deadline = time.monotonic() + LIMIT
    while not ours() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)  # as a terminal does it
    else:
        process.terminate()
    status, out, err = finish(process)
    assert (status, out) == (expected, "")
    assert err == ("interrupted; everything is removed\n" if signum == signal.SIGINT else "")
    assert not list(tmp_path.iterdir())


def test_wrong_sums_are_an_error(workers: Workers) -> None:
    def wrong(job: Job, given: Any) -> list[float]:
        return [*job.sums[:-1], job.sums[-1] + 1]

    bad = Method("bad", "a method that adds one", wrong)
    methods = [*(method for method in METHODS if method.key in ("in_process", "empty")), bad]
    with pytest.raises(RuntimeError, match="a method that adds one: the sums are"):
        share.measure(workers, 80_000, 1, methods)
