"""The README's snippets as they stand: as an unguarded script, from standard input, in a notebook.

"Unguarded" means without `if __name__ == "__main__"`: a supervisor that ran the main module again
would start pools without end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SNIPPETS = Path(__file__).resolve().parents[2] / "examples" / "python"
SECONDS = 90
EXPECTED = {
    "trainer_spawns": "epoch 1 batch (4, 1, 4, 8, 8)",
    "own_loader": "slot 3 shape (10, 10, 10) slope",
    "low_level": "replaced, first value 7 slots 2",
    "pool_stats": "pool/blocked_replaces",
    "coordination_files": "ready: True generation as promised: True",
}
_counter = iter(range(1000))


@pytest.fixture
def pool_name() -> str:
    return f"svsnippet-{os.getpid()}-{next(_counter)}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with a folder "data" of four volumes."""
    (tmp_path / "data").mkdir()
    for number in range(4):
        volume = np.full((4, 8, 8), number, dtype=np.float32)
        np.save(tmp_path / "data" / f"{number}.npy", volume)
    return tmp_path


def environment(pool_name: str) -> dict[str, str]:
    return {**os.environ, "POOL": pool_name, "PYTHONUNBUFFERED": "1"}


def source_of(snippet: str) -> str:
    """A snippet as one would paste it: with the module beside it in its place."""
    source = (SNIPPETS / f"{snippet}.py").read_text()
    module = (SNIPPETS / "gradients.py").read_text()
    return source.replace(
        "from gradients import Gradients\n",
        module.replace("from __future__ import annotations", ""),
    )


def run(arguments: list[str], pool_name: str, cwd: Path, stdin: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=cwd,
        env=environment(pool_name),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def run_notebook(
    cells: list[str], pool_name: str, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Run the cells in one kernel; returns what they printed."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("POOL", pool_name)
    make: Any = nbformat.v4
    notebook = make.new_notebook(cells=[make.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(cwd)}},
    )
    client.execute()
    return "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.outputs
        if output.output_type == "stream"
    )


@pytest.mark.parametrize("snippet", sorted(EXPECTED))
def test_as_an_unguarded_script(snippet: str, pool_name: str, directory: Path) -> None:
    output = run([str(SNIPPETS / f"{snippet}.py")], pool_name, directory)
    assert EXPECTED[snippet] in output


@pytest.mark.parametrize("snippet", sorted(EXPECTED))
def test_from_standard_input(snippet: str, pool_name: str, directory: Path) -> None:
    source = source_of(snippet)
    assert EXPECTED[snippet] in run(["-"], pool_name, directory, stdin=source)


@pytest.mark.parametrize("snippet", sorted(EXPECTED))
def test_in_a_notebook(
    snippet: str, pool_name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(snippet)
    output = run_notebook([source], pool_name, directory, monkeypatch)
    assert EXPECTED[snippet] in output


def test_an_own_loader_in_its_module_needs_no_cloudpickle(
    pool_name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "sitecustomize.py").write_text("import sys\nsys.modules['cloudpickle'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(directory))
    output = run([str(SNIPPETS / "own_loader.py")], pool_name, directory)
    assert EXPECTED["own_loader"] in output


INTERRUPTED_CELLS = [
    """
import os, signal, time
from sharedvector import NumpyLoader, ProducerSpec, ensure_pool
spec = ProducerSpec(loader=NumpyLoader("data"), chunk_size=1 << 20, num_producers=1)
handle = ensure_pool(os.environ["POOL"], 4, producer=spec)
vector = handle.attach()
""",
    # A notebook's interrupt goes to the kernel's whole process group.
    """
try:
    os.killpg(os.getpgrp(), signal.SIGINT)
    time.sleep(30)
    print("no interrupt came")
except KeyboardInterrupt:
    print("caught")
""",
    """
time.sleep(1)
before = int(vector.write_counts().sum())
deadline = time.monotonic() + 20
while int(vector.write_counts().sum()) < before + 8 and time.monotonic() < deadline:
    for index in range(4):
        vector.get(index)
    time.sleep(0.01)
print("alive" if int(vector.write_counts().sum()) >= before + 8 else "frozen")
del vector
handle.close()
""",
]


def test_caught_interrupt_leaves_the_pool_alive(
    pool_name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run_notebook(INTERRUPTED_CELLS, pool_name, directory, monkeypatch)
    # The library's own log lines are among the output when the machine is slow.
    said = ("caught", "no interrupt came", "alive", "frozen")
    assert [line for line in output.splitlines() if line in said] == ["caught", "alive"]


@pytest.fixture
def producer_job(pool_name: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(SNIPPETS / "producer_job.py")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env=environment(pool_name),
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_producer_as_its_own_job_step(
    producer_job: subprocess.Popen[str], pool_name: str, directory: Path, signum: signal.Signals
) -> None:
    output = run([str(SNIPPETS / "trainer_attaches.py")], pool_name, directory)
    assert output.count("batch (4, 1, 4, 8, 8)") == 2
    producer_job.send_signal(signum)
    log, _ = producer_job.communicate(timeout=30)
    assert "Traceback" not in log, log
    deadline = time.monotonic() + 10
    while list(Path("/dev/shm").glob(f"{pool_name}*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(Path("/dev/shm").glob(f"{pool_name}*"))
