"""The examples as they stand: as an unguarded script, from standard input, in a notebook. And the
README's and the sharing guide's Python, as it is printed.

"Unguarded" means without `if __name__ == "__main__"`: a supervisor that ran the main module again
would start pools without end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS = ROOT / "examples" / "python"
SECONDS = 240
EXPECTED = {
    "trainer_spawns": "epoch 1 batch (4, 1, 10, 10, 10)",
    "own_loader": "slot 3 shape (10, 10, 10) slope",
    "low_level": "replaced, first value 7 slots 2",
    "pool_stats": "pool/blocked_replaces",
    "coordination_files": "ready: True generation as promised: True",
    "share_array": "- first root 0.798",
}
_counter = iter(range(1000))

pytestmark = pytest.mark.timeout(600)


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


def test_every_example_is_run() -> None:
    others = {"gradients", "producer_job", "trainer_attaches"}  # a module, and a pair
    assert {path.stem for path in SNIPPETS.glob("*.py")} == {*EXPECTED, *others}


@pytest.mark.parametrize("snippet", sorted(EXPECTED))
def test_as_an_unguarded_script(snippet: str, pool_name: str, tmp_path: Path) -> None:
    output = run([str(SNIPPETS / f"{snippet}.py")], pool_name, tmp_path)
    assert EXPECTED[snippet] in output
    assert not list(tmp_path.iterdir())


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
deadline = time.monotonic() + 120
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
    assert output.count("batch (4, 1, 10, 10, 10)") == 2
    producer_job.send_signal(signum)
    log, _ = producer_job.communicate(timeout=120)
    assert "Traceback" not in log, log
    deadline = time.monotonic() + 60
    while list(Path("/dev/shm").glob(f"{pool_name}*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(Path("/dev/shm").glob(f"{pool_name}*"))


# ---- README ------------------------------------------------------------------------------------

# What is smaller than in the README, and what is checked behind each of its snippets, in order.
SMALLER = {
    "slot_count=256": "slot_count=8",
    "(16, 128, 128)": "(16, 16, 12)",
}
CHECKS = [
    """
assert batch["data"].shape == (4, 1, 16, 24, 24) and batch["data"].dtype == torch.int16
assert batch["spacing"].tolist() == [[3, 2, 1]] * 4
""",
    """
assert len(batches) == 1 and batch["data"].dtype == torch.float32
assert batch["data"].shape == (8, 1, 16, 16, 12) and batch["data"].max() < 0.1
""",
    """
from gradients_module import Gradients
own = ProducerSpec(loader=Gradients(), chunk_size=1 << 20, num_producers=1)
with pool("run42-own", 2, producer=own) as gradient_pool:
    assert gradient_pool.attach()[1].shape == (16, 64, 64)
""",
    """
assert dataset[3]["data"].shape == (1, 16, 24, 24)
""",
    """
assert batch.shape == (2, 8, 32, 32) and batch.dtype == np.float16
assert np.allclose(batch, 0.007, atol=1e-4)
""",
    """
assert np.isclose(sum(sums), array.sum()) and len(sums) == len(parts) == 8
""",
    """
assert logged["sharedvector/loads_direct"] >= 4 and logged["sharedvector/sources_failed"] == 0
assert vec.rows() and len(vec.write_counts()) == 8
handle.close()
""",
]


def test_the_readme_as_it_is_printed(pool_name: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    from sharedvector import write_spacing_manifest

    for number in range(4):
        volume = np.full((32, 24, 24), number, np.int16)
        array = zarr.create_array(tmp_path / "db.zarr" / f"{number}", data=volume)
        array.attrs["spacing"] = [1, 2, 3]
    write_spacing_manifest(tmp_path / "db.zarr")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == len(CHECKS)
    (own_loader,) = [block for block in blocks if "class " in block]
    (tmp_path / "gradients_module.py").write_text(own_loader)
    script = """
import types
import torch
from sharedvector import pool
logged = {}
wandb = types.SimpleNamespace(log=logged.update)
"""
    script += "".join(block + check for block, check in zip(blocks, CHECKS, strict=True))
    for printed, here in SMALLER.items():
        assert printed in script
        script = script.replace(printed, here)
    script = script.replace("/data/db.zarr", f"{tmp_path}/db.zarr")
    script = script.replace('"demo"', f'"{pool_name}-demo"').replace("run42", pool_name)
    (tmp_path / "readme.py").write_text(script)
    run([str(tmp_path / "readme.py")], pool_name, tmp_path)
    assert not list(Path("/dev/shm").glob(f"{pool_name}*"))


# ---- docs/SHARING.md ---------------------------------------------------------------------------

# Checked behind each of the guide's snippets, in order; the first one is the module.
GUIDE_CHECKS = [
    """
assert len(sums) == 4 and np.isclose(sum(sums), data.sum())
""",
    """
assert len(parts) == 4 and np.isclose(sum(parts), data.sum())
""",
    """
assert not removed and not would_remove
""",
    """
assert np.array_equal(result, normalise(data, data.mean(), data.std()))
""",
    """
assert lengths == [333_334, 333_333, 333_333] and [len(part) for part in unequal] == [10, 990]
""",
    """
assert sums_async == sums
""",
    """
assert np.isclose(sum(sums_joblib), data.sum())
""",
    """
assert tensor.sum() == 100 * 100
""",
    "",
]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_sharing_guide_as_it_is_printed(
    start_method: str, pool_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("joblib", reason="joblib is not installed")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/SHARING.md").read_text(), re.DOTALL)
    module, *blocks = blocks
    assert module.startswith("# work.py\n") and len(blocks) == len(GUIDE_CHECKS)
    (tmp_path / "work.py").write_text(module)
    body = "".join(block + check for block, check in zip(blocks, GUIDE_CHECKS, strict=True))
    script = f"""
import multiprocessing
if __name__ == "__main__":
    multiprocessing.set_start_method({start_method!r})
{textwrap.indent(body, "    ")}
    assert not diagnostics().blocks_made
    pool.shutdown()
"""
    # Other tests leave blocks to be swept, which are theirs.
    for printed in ("sweep()", 'sweep(prefix="block"'):
        assert printed in script
    script = script.replace("sweep()", f'sweep("{pool_name}")')
    script = script.replace('sweep(prefix="block"', f'sweep(prefix="{pool_name}"')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "guide.py").write_text(script)
    run([str(tmp_path / "guide.py")], pool_name, tmp_path)
