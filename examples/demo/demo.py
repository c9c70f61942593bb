"""Two training ranks share one pool of a real head: `python examples/demo/demo.py`.

Writes a Zarr database (or takes yours with --data), sizes the pool so that it fits /dev/shm, starts
train.py under torchrun, and afterwards looks whether anything was left behind. Exit code 0 only if
the training ran and nothing was; 130 or 143 after an interrupt, cleaned up as well. When this
process is killed, torchrun ends too, and the next run removes what lies in the temporary directory.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from database import MIB, Plan, plan_pool, read_template, volume_shapes, write_database
from tqdm import tqdm

from sharedvector import write_spacing_manifest
from sharedvector.lifecycle import install_parent_death_signal

SCRATCH = "sharedvector-demo-"
HERE = Path(__file__).resolve().parent
RANKS = 2
PRODUCERS = 2
MARK = "SHAREDVECTOR_DEMO_RUN"
"""Environment variable that every process of a run inherits, so that leftovers can be found."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def on_signal(signum: int, frame: FrameType | None) -> None:
    # One is enough: a second must not break the cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted(signum)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train two ranks from one shared pool.")
    parser.add_argument("--data", type=Path, help="directory of 3-D Zarr v3 volumes to use instead")
    parser.add_argument("--steps", type=int, default=200, help="training steps per rank")
    parser.add_argument("--batch-size", type=int, default=8, help="patches per batch")
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers per rank")
    parser.add_argument("--subjects", type=int, default=12, help="volumes to write")
    parser.add_argument("--json", type=Path, help="also write the table's figures to this file")
    arguments = parser.parse_args()
    for name in ("steps", "batch_size", "workers", "subjects"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return arguments


def prepare_database(root: Path, subjects: int) -> None:
    template, spacing = read_template()
    print(f"template: MNI152 T1, {' x '.join(map(str, template.shape[::-1]))} voxels", flush=True)
    bar = tqdm(
        write_database(root, template, spacing, subjects),
        total=subjects,
        desc="writing subjects",
        unit="volume",
        mininterval=0.1 if sys.stderr.isatty() else 5,
    )
    for _ in bar:
        pass


def spacing_manifest(root: Path, scratch: Path) -> Path | None:
    """The database's own spacing.json, or one made in `scratch`; None if volumes carry none."""
    own = root / "spacing.json"
    if own.exists():
        return own
    try:
        return write_spacing_manifest(root, output=scratch / "spacing.json")
    except (KeyError, ValueError) as error:
        print(f"training without spacing: {error}", flush=True)
        return None


def describe(plan: Plan, shm: Path) -> None:
    print(
        f"{shm} has {plan.free_bytes / MIB:.0f} MiB free: {plan.slots} slots (+{plan.spares} spare "
        f"buffers) of {plan.slices} slices, {plan.chunk_bytes / MIB:.2f} MiB each = "
        f"{plan.pool_bytes / MIB:.1f} MiB, {plan.queue_bytes / MIB:.1f} MiB kept for batches; the "
        f"database has {plan.chunks_in_database} such chunks",
        flush=True,
    )


def launch(config_file: Path, mark: str) -> subprocess.Popen[bytes]:
    """Start torchrun in a session of its own: a Ctrl-C reaches us alone, and we pass it on."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    # Without it a torchrun that does not end by itself leaves an empty directory in /tmp.
    command += ["--log-dir", str(config_file.parent / "torchrun")]
    command += ["--nproc-per-node", str(RANKS), str(HERE / "train.py"), str(config_file)]
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    parent = os.getpid()

    def die_with_parent() -> None:
        install_parent_death_signal(signal.SIGTERM)  # torchrun passes it on to its ranks
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def marked_processes(mark: str) -> list[int]:
    """Live processes of this run, zombies left out."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # gone, or another user's
    return found


def end_ranks(mark: str) -> None:
    """SIGTERM to what torchrun has left running; the pool's own processes end with their owner."""
    for pid in marked_processes(mark):
        try:
            # Supervisors and workers run sharedvector/_producer/entry.py.
            if not re.search(rb"sharedvector/_", Path(f"/proc/{pid}/cmdline").read_bytes()):
                os.kill(pid, signal.SIGTERM)
        except OSError:
            continue  # gone meanwhile


def leftover_files(shm: Path, name: str, before: set[str]) -> list[str]:
    """Files of this run in shared memory: the pool's, and tensors of torch processes that died."""
    found = []
    for entry in sorted(set(os.listdir(shm)) - before):
        pid = entry.split("_")[1] if entry.startswith("torch_") else ""
        if name in entry or (pid.isdigit() and not Path("/proc", pid).exists()):
            found.append(entry)
    return found


def stop(process: subprocess.Popen[bytes], mark: str) -> None:
    """End torchrun and all it started; returns when they are gone (about 20 s at most).

    A torchrun that was killed has left its ranks running.
    """
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    end_ranks(mark)
    deadline = time.monotonic() + 10
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.1)


def check_clean(shm: Path, name: str, mark: str, before: set[str]) -> bool:
    """Say whether this run left anything; ends and removes what it did."""
    deadline = time.monotonic() + 10
    files, processes = leftover_files(shm, name, before), marked_processes(mark)
    while (files or processes) and time.monotonic() < deadline:
        time.sleep(0.1)
        files, processes = leftover_files(shm, name, before), marked_processes(mark)
    if not files and not processes:
        print(f"{shm} is clean, no process is left", flush=True)
        return True
    print(f"\nLEFT BEHIND: files {files} in {shm}, processes {processes}; removed", flush=True)
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for entry in files:
        (shm / entry).unlink(missing_ok=True)
    return False


def run(arguments: argparse.Namespace, scratch: Path, shm: Path, name: str) -> int:
    """Make the database and train; returns torchrun's exit code, 128 + n if signal n killed it."""
    root = arguments.data
    if root is None:
        root = scratch / "database"
        root.mkdir()
        prepare_database(root, arguments.subjects)
    shape_of = volume_shapes(root)
    space = os.statvfs(shm)
    plan = plan_pool(
        shape_of.values(),
        space.f_bavail * space.f_frsize,
        ranks=RANKS,
        workers=arguments.workers,
        batch_size=arguments.batch_size,
        producers=PRODUCERS,
    )
    spacing_file = spacing_manifest(root, scratch)
    describe(plan, shm)
    result = scratch / "result.json"
    config = {
        "name": name,
        "root": str(root),
        "spacing_file": None if spacing_file is None else str(spacing_file),
        "slots": plan.slots,
        "slices": plan.slices,
        "chunk_size": plan.chunk_bytes,
        "crop": plan.crop,
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "workers": arguments.workers,
        "producers": PRODUCERS,
        "sleep_seconds": 0.01,
        "result": str(result),
    }
    config_file = scratch / "config.json"
    config_file.write_text(json.dumps(config))
    process = launch(config_file, name)
    try:
        code = process.wait()
    finally:
        stop(process, name)
    if code < 0:
        print(f"\ntorchrun was killed by {signal.Signals(-code).name}", flush=True)
        code = 128 - code
    if code == 0 and arguments.json is not None:
        arguments.json.write_bytes(result.read_bytes())
    return code


def sweep_scratch() -> None:
    """Remove the scratch directories of demos that were killed: those that nobody holds locked."""
    for directory in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*"):
        pid = directory.name.removeprefix(SCRATCH).split("-")[0]
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone, or another user's
        try:
            # Its pid may be of another container: then only the lock tells that it lives.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)


def main() -> int:
    arguments = parse_arguments()
    shm = Path(os.environ.get("SHAREDVECTOR_SHM_DIR") or "/dev/shm")
    name = f"svdemo-{os.getpid()}"
    before = set(os.listdir(shm))
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    started = time.monotonic()
    sweep_scratch()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        # Locked until this process ends, see sweep_scratch. NFS locks no directories.
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(scratch, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
        try:
            code = run(arguments, Path(scratch), shm, name)
        except Interrupted as interrupt:
            print(f"\ninterrupted by {interrupt}, stopping", flush=True)
            code = 128 + interrupt.signum
        except (OSError, ValueError) as error:
            print(f"demo: {error}", file=sys.stderr, flush=True)
            code = 1
        clean = check_clean(shm, name, name, before)
    print(f"demo took {time.monotonic() - started:.0f} s", flush=True)
    return code if code != 0 else int(not clean)


if __name__ == "__main__":
    sys.exit(main())
