"""Two environments under build/compare: one with sharedvector 0.1.0 from PyPI, one with this tree.

Both share a third one's packages (NumPy, zarr, torch), so that torch is installed once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "compare"
PEER = "sharedvector==0.1.0"
PACKAGES = ("numpy>=2.0", "zarr>=3.1", "tqdm>=4.60", "cloudpickle")
TORCH = "torch==2.13.0"
BUILT_FROM = ("src", "include", "python", "cmake", "tools/sharedvector.c", "CMakeLists.txt")


def python_of(name: str) -> Path:
    return HOME / name / "bin" / "python"


def run(command: Sequence[str | Path]) -> None:
    """Run a command, its output into build/compare/setup.log; RuntimeError if it fails."""
    log = HOME / "setup.log"
    with log.open("ab") as stream:
        result = subprocess.run([str(part) for part in command], stdout=stream, stderr=stream)
    if result.returncode != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{' '.join(map(str, command))} failed, see {log}:\n{end}")


def pip(name: str, *arguments: str | Path) -> None:
    run([python_of(name), "-m", "pip", "install", "--quiet", *arguments])


def make(name: str, *, shared: bool) -> None:
    """A new virtual environment; with `shared`, it also sees the packages of "base"."""
    shutil.rmtree(HOME / name, ignore_errors=True)
    run([sys.executable, "-m", "venv", HOME / name])
    if shared:
        site = next((HOME / name / "lib").glob("python*/site-packages"))
        base = next((HOME / "base" / "lib").glob("python*/site-packages"))
        (site / "shared_packages.pth").write_text(f"{base}\n")


def fresh(name: str, wanted: str) -> bool:
    """Whether environment `name` was completed for exactly `wanted`."""
    stamp = HOME / name / "complete"
    return stamp.exists() and stamp.read_text() == wanted and python_of(name).exists()


def complete(name: str, wanted: str) -> None:
    (HOME / name / "complete").write_text(wanted)


def tree_digest() -> str:
    """Digest of the sources that the package is built from."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for part in BUILT_FROM:
        top = ROOT / part
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in files:
            if path.is_file() and path.suffix not in (".pyc", ".so"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def base() -> str:
    """Make the environment whose packages the others see; returns what it was made for."""
    HOME.mkdir(parents=True, exist_ok=True)
    index = os.environ.get("TORCH_INDEX")
    wanted = "\n".join([sys.version, *PACKAGES, TORCH, index or ""])
    if not fresh("base", wanted):
        print(
            f"installing {TORCH} and {', '.join(PACKAGES)} into {HOME.relative_to(ROOT)} (torch: "
            "CPU builds about 200 MB, PyPI's default CUDA build about 3 GB; TORCH_INDEX=<url> "
            "picks another index)",
            flush=True,
        )
        make("base", shared=False)
        pip("base", *(["--index-url", index] if index else []), TORCH)
        pip("base", *PACKAGES)
        complete("base", wanted)
    return wanted


def peer(name: str, requirement: str, *options: str) -> Path:
    """Python of an environment with one more package of PyPI; RuntimeError if pip fails."""
    wanted = base() + requirement
    if not fresh(name, wanted):
        print(f"installing {requirement} from PyPI", flush=True)
        make(name, shared=True)
        pip(name, *options, requirement)
        complete(name, wanted)
    return python_of(name)


def this_tree() -> Path:
    """Python of an environment with the package built from this tree."""
    wanted = base() + tree_digest()
    if not fresh("new", wanted):
        print("building and installing this tree", flush=True)
        make("new", shared=True)
        build = HOME / "cmake"
        shutil.rmtree(build, ignore_errors=True)
        pip("new", "--no-deps", "-C", f"build-dir={build}", ROOT)
        complete("new", wanted)
    return python_of("new")


def environments() -> tuple[Path, Path]:
    """Pythons of 0.1.0 and of this tree; made or brought up to date first."""
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "setup.log").write_bytes(b"")
    return peer("old", PEER, "--no-deps"), this_tree()
