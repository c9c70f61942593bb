"""examples/demo: the plan that fits /dev/shm, the subjects, and the whole demo on small volumes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
MNI = (189, 233, 197)
MIB = 1 << 20
SECONDS = 300  # of the 400 that a test has
ENDING = 100


@pytest.fixture(scope="module")
def database() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_database", DEMO / "database.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import zarr

    root = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    for number in range(3):
        values = rng.integers(0, 1000, (32, 50, 60)).astype(np.int16)
        array = zarr.create_array(
            root / f"v{number}", shape=values.shape, dtype="int16", chunks=(16, 50, 60)
        )
        array[:] = values
        array.attrs["spacing"] = [1.0, 1.0, 2.0]
    (root / "notes").mkdir()
    return root


def command(volumes: Path, *more: str) -> list[str]:
    small = ["--steps", "3", "--batch-size", "2", "--workers", "1"]
    return [sys.executable, str(DEMO / "demo.py"), "--data", str(volumes), *small, *more]


@pytest.mark.parametrize("free_mib", [64, 256, 24_000])
def test_plan_fits(database: ModuleType, free_mib: int) -> None:
    plan = database.plan_pool(
        [MNI] * 12, free_mib * MIB, ranks=2, workers=2, batch_size=8, producers=2
    )
    assert plan.pool_bytes + plan.queue_bytes < free_mib * MIB
    assert plan.slots >= database.FEWEST_SLOTS
    assert plan.chunk_bytes == plan.slices * MNI[1] * MNI[2] * 2
    assert plan.crop[0] == plan.slices and plan.crop[1] % 2 == 0 and plan.crop[2] % 2 == 0


def test_plan_takes_thinner_chunks_before_it_gives_up(database: ModuleType) -> None:
    big = (64, 1024, 1024)
    options = {"ranks": 2, "workers": 2, "batch_size": 2, "producers": 2}
    assert database.plan_pool([big], 64 * MIB, **options).slices < database.MOST_SLICES
    with pytest.raises(OSError, match=r"8\.0 MiB free.*shm-size"):
        database.plan_pool([big], 8 * MIB, **options)


def test_subjects_differ_and_repeat(database: ModuleType) -> None:
    template = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
    first = database.make_subject(template, np.random.default_rng(1))
    assert first.dtype == np.int16 and first.shape == template.shape
    assert first.min() >= 0 and first.max() > 500
    np.testing.assert_array_equal(first, database.make_subject(template, np.random.default_rng(1)))
    assert (first != database.make_subject(template, np.random.default_rng(2))).mean() > 0.5


def test_database_is_written_with_spacing(database: ModuleType, tmp_path: Path) -> None:
    import zarr

    template = np.full((5, 6, 8), 200, dtype=np.uint8)
    paths = list(database.write_database(tmp_path, template, (1.0, 2.0, 3.0), subjects=2))
    assert database.volume_shapes(tmp_path) == {path.name: (5, 6, 8) for path in paths}
    array = zarr.open_array(paths[0], mode="r")
    assert array.attrs["spacing"] == [1.0, 2.0, 3.0]
    assert array.dtype == np.int16 and np.asarray(array[:]).min() > 0


def test_shapes_leave_strays_out(database: ModuleType, volumes: Path, tmp_path: Path) -> None:
    assert database.volume_shapes(volumes) == {f"v{n}": (32, 50, 60) for n in range(3)}
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        database.volume_shapes(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothere does not exist"):
        database.volume_shapes(tmp_path / "nothere")
    with pytest.raises(FileNotFoundError, match=f"parent directory {re.escape(str(volumes))}"):
        database.volume_shapes(volumes / "v0")


def test_template_is_the_mni_head(database: ModuleType) -> None:
    for name in ("nibabel", "nilearn"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (`make test` installs it for the demo)")
    template, spacing = database.read_template()
    assert template.shape == MNI and template.dtype == np.uint8
    assert spacing == (1.0, 1.0, 1.0)
    assert template.flags.c_contiguous and template.max() > 200


def test_demo_trains_and_leaves_nothing(volumes: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        command(volumes, "--json", str(figures)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is clean, no process is left" in done.stdout
    for row in ("batches/s", "reads per chunk before replacement", "once per node"):
        assert row in done.stdout
    result = json.loads(figures.read_text())
    assert result["chunks_read"] == 2 * 3 * 2
    assert result["batches_per_second"] > 0
    assert result["copies_bytes"] == 2 * result["shared_bytes"] > 0


@contextlib.contextmanager
def training(volumes: Path, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo without end, from when its pool is filled."""
    process = subprocess.Popen(
        command(volumes, "--steps", "1000000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)},
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "owns the pool" in line:
                break
        else:
            pytest.fail("".join(seen))
        time.sleep(1)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=ENDING)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(
    volumes: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    with training(volumes, tmp_path) as process:
        process.send_signal(signum)
        output, _ = process.communicate(timeout=ENDING)
    assert process.returncode == 128 + signum, output
    assert "is clean, no process is left" in output
    assert list(tmp_path.iterdir()) == []


def marked(pid: int) -> list[int]:
    mark = f"SHAREDVECTOR_DEMO_RUN=svdemo-{pid}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def test_killed_demo_takes_its_run_with_it(volumes: Path, tmp_path: Path) -> None:
    with training(volumes, tmp_path) as process:
        assert marked(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + ENDING
        while marked(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert marked(process.pid) == []
    assert not [name for name in os.listdir("/dev/shm") if f"svdemo-{process.pid}" in name]
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / f"sharedvector-demo-{os.getpid()}-alive").mkdir()
    nowhere = command(tmp_path / "nothere")
    done = subprocess.run(
        nowhere,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert f"{tmp_path / 'nothere'} does not exist" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [f"sharedvector-demo-{os.getpid()}-alive"]


def test_killed_torchrun_ends_the_demo_at_once(volumes: Path, tmp_path: Path) -> None:
    with training(volumes, tmp_path) as process:
        (torchrun,) = (
            pid
            for pid in marked(process.pid)
            if b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(torchrun, signal.SIGKILL)
        output, _ = process.communicate(timeout=ENDING)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert "torchrun was killed by SIGKILL" in output
    assert "is clean, no process is left" in output


def test_demo_fits_a_container(volumes: Path) -> None:
    """A private 64 MiB /dev/shm, which is what a container gets by default."""
    unshare = shutil.which("unshare")
    private = [unshare or "unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    if unshare is None or subprocess.run([*private, "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs unshare and the right to mount a private /dev/shm")
    done = subprocess.run(
        [*private, "sh", "-c", f'{mount} && exec "$@"', "sh", *command(volumes)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/shm has 64 MiB free" in done.stdout
    assert "is clean, no process is left" in done.stdout
