"""What is installed, and how others find it: wheel, lowest versions, CMake package, pkg-config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

import sharedvector

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = ROOT / "tests" / "packaging" / "consumer"
HEADER = ROOT / "include" / "sharedvector" / "sharedvector.h"
CC = os.environ.get("CC", "cc")

pytestmark = pytest.mark.timeout(1800)  # the first test that wants a wheel builds it


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a command under a time limit; its output is the message when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def lowest_numpy() -> str:
    """The lowest NumPy we promise that has a wheel for this interpreter."""
    return {11: "numpy==1.26.0", 12: "numpy==1.26.0", 13: "numpy==2.1.0"}.get(
        sys.version_info.minor, "numpy"
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tree, built without isolation from the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"),
        *("--no-build-isolation", "--no-deps", "-w", folder),
        *("-C", f"build-dir={folder / 'build'}", ROOT),
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, what it needs, and the lowest NumPy."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip_install(python, lowest_numpy(), str(wheel))
    return python


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library installed by CMake, then moved: its files may not name the old place."""
    folder = tmp_path_factory.mktemp("library")
    build, installed = folder / "build", folder / "installed"
    run("cmake", "-S", ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={installed}")
    run("cmake", "--build", build, "-j", "2")
    run("cmake", "--install", build)
    return installed.rename(folder / "moved")


def pip_install(python: Path, *packages: str) -> None:
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)


def pkg_config(prefix: Path, *flags: str) -> list[str]:
    """Asks the pkgconf of this environment about the installation under ``prefix``."""
    (pc_file,) = prefix.rglob("sharedvector.pc")
    command = [sys.executable, "-m", "pkgconf", *flags, "sharedvector"]
    return run(*command, env={"PKG_CONFIG_PATH": str(pc_file.parent)}).split()


def test_version_has_one_place() -> None:
    words = [
        line.split('"')[1]
        for line in HEADER.read_text().splitlines()
        if line.startswith("#define SV_VERSION_STRING ")
    ]
    assert words == [sharedvector.__version__] == [metadata.version("sharedvector")]


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = [name for name in names if name.startswith("sharedvector/_core.")]
    binary = [name for name in modules if name.endswith(".so")]
    assert sorted(set(modules) - set(binary)) == ["sharedvector/_core.pyi"]
    assert len(binary) == 1
    assert "sharedvector/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert {top.partition("-")[0] for top in tops} == {"sharedvector"}
    assert not [name for name in names if name.endswith((".h", ".c", ".a", ".cmake", ".pc"))]
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert binary == ["sharedvector/_core.abi3.so"]
        assert "-cp311-abi3-" in wheel.name


@pytest.mark.slow
def test_extension_exports_its_init_function_alone(wheel: Path, tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        extension = archive.extract(name, tmp_path)
    lines = run("nm", "-D", "--defined-only", extension).splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__core"]


@pytest.mark.slow
def test_commands_are_installed(bare_python: Path) -> None:
    help_text = run(bare_python.parent / "sharedvector-producer", "--help")
    assert "--slot-count" in help_text
    assert "--attr-key" in run(bare_python.parent / "sharedvector-spacing-manifest", "--help")


@pytest.mark.slow
def test_core_works_with_the_lowest_numpy(bare_python: Path) -> None:
    name = f"sv-packaging-bare-{os.getpid()}"
    run(
        bare_python,
        "-I",
        "-c",
        "import sys, numpy, sharedvector\n"
        "for heavy in ('torch', 'zarr', 'tqdm'):\n"
        "    assert heavy not in sys.modules, heavy\n"
        "import cloudpickle\n"
        "from sharedvector import *\n"
        "assert MemoryError is __import__('builtins').MemoryError\n"
        "assert 'PoolLoader' not in globals() and SharedVector is sharedvector.SharedVector\n"
        f"vec = sharedvector.SharedVector({name!r}, chunk_size=4096, slot_count=2)\n"
        "vec.append(numpy.arange(6, dtype='float32').reshape(2, 3), meta=[1.0, 2.0])\n"
        "view = vec.get(0)\n"
        "assert view.shape == (2, 3) and view.sum() == 15 and not view.flags.writeable\n"
        "del view\n"
        "vec.close()\n"
        f"sharedvector.remove_shared_memory({name!r})\n",
    )


@pytest.mark.slow
def test_zarr_extra_works_with_its_lowest_versions(wheel: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["zarr"]
    lowest = [item.replace(">=", "==") + ".0" for item in extra]
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip_install(python, lowest_numpy(), *lowest, str(wheel))
    run(
        python,
        "-I",
        "-c",
        "import numpy, zarr, sharedvector\n"
        f"root = {str(tmp_path / 'volumes')!r}\n"
        "data = numpy.arange(48, dtype='int16').reshape(4, 3, 4)\n"
        "volume = zarr.create_array(\n"
        "    f'{root}/a', shape=data.shape, dtype=data.dtype, chunks=(2, 3, 4))\n"
        "volume[...] = data\n"
        "volume.attrs['spacing'] = [1.0, 2.0, 3.0]\n"
        "sharedvector.write_spacing_manifest(root)\n"
        "loader = sharedvector.ZarrLoader(root, 0, spacing_file=f'{root}/spacing.json')\n"
        "(chunk,) = loader(0)\n"
        "assert sorted(numpy.asarray(chunk.data).ravel()) == sorted(data.ravel())\n"
        "assert list(chunk.meta) == [3.0, 2.0, 1.0]\n",
    )


@pytest.mark.slow
def test_find_package(prefix: Path, tmp_path: Path) -> None:
    run("cmake", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert "consumer: good" in run(tmp_path / "consumer", f"sv-packaging-cmake-{os.getpid()}")


@pytest.mark.slow
def test_pkg_config(prefix: Path, tmp_path: Path) -> None:
    assert pkg_config(prefix, "--modversion") == [sharedvector.__version__]
    flags = pkg_config(prefix, "--cflags", "--libs")
    program = tmp_path / "consumer"
    run(CC, CONSUMER / "consumer.c", "-o", program, *flags)
    assert "consumer: good" in run(program, f"sv-packaging-pc-{os.getpid()}")


@pytest.mark.slow
def test_shared_library_exports_the_public_names_alone(tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed")
    run("cmake", "-S", ROOT, "-B", tmp_path, "-DBUILD_SHARED_LIBS=ON")
    run("cmake", "--build", tmp_path, "-j", "2")
    lines = run("nm", "-D", "--defined-only", tmp_path / "libsharedvector.so").splitlines()
    names = {line.split()[-1] for line in lines}
    assert "sv_pin" in names
    assert not [name for name in names if not name.startswith("sv_")]


@pytest.mark.parametrize("standard", ["c99", "c11", "c17", "c++11", "c++20"])
def test_public_header_compiles_alone(standard: str, tmp_path: Path) -> None:
    language = "c++" if standard.startswith("c++") else "c"
    source = tmp_path / "include_only.c"
    source.write_text("#include <sharedvector/sharedvector.h>\nint main(void) { return 0; }\n")
    command = (CC, f"-std={standard}", "-x", language, "-fsyntax-only")
    if language == "c++":
        empty = tmp_path / "empty.c"
        empty.write_text("")
        probe = subprocess.run([*command, empty], capture_output=True, timeout=600, check=False)
        if probe.returncode != 0:
            pytest.skip(f"{CC} does not compile {standard} here")
    run(*command, "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{ROOT / 'include'}", source)
