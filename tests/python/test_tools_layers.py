"""tools/check_layers.py: the package has no arrow that points up, and each kind of one is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_layers  # noqa: E402

LAYERS = (("low",), ("left", "right"), ("high",), ("__init__",))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of four folders with one module each, which import nothing."""
    for part in ("", "low", "left", "right", "high"):
        folder = tmp_path / "package" / part
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "module.py").write_text("thing = 1\n") if part else None
    return tmp_path / "package"


def test_the_package_has_its_layers() -> None:
    assert check_layers.main([]) == 0


def problems(package: Path) -> list[str]:
    return [
        *check_layers.check_imports(package, LAYERS),
        *check_layers.check_sizes(package),
    ]


def test_nothing_is_wrong_with_a_tree_of_arrows_that_point_down(package: Path) -> None:
    (package / "low" / "__init__.py").write_text(
        "__getattr__, __dir__ = lazy_names(__name__, {'.module': 'thing'})\n"
    )
    (package / "high" / "module.py").write_text("from package.low import thing\nimport json\n")
    (package / "high" / "other.py").write_text("from package.high import module\n")
    assert problems(package) == []


@pytest.mark.parametrize(
    "text",
    [
        "from package.high import thing",
        "import package.high",
        "def late():\n    from package.high import thing",
        "if TYPE_CHECKING:\n    from package.high import thing",
        "from importlib import import_module\nimport_module('package.high')",
        "get, names = lazy_names(__name__, {'package.high': 'thing'})",
    ],
)
def test_an_arrow_that_points_up(package: Path, text: str) -> None:
    (package / "low" / "module.py").write_text(f"{text}\n")
    (problem,) = problems(package)
    assert problem.startswith("low.module, line ")
    assert "low may not import high, which is not below it" in problem


def test_an_arrow_between_neighbours(package: Path) -> None:
    (package / "left" / "module.py").write_text("from package.right import thing\n")
    (problem,) = problems(package)
    assert "left may not import right" in problem


@pytest.mark.parametrize(
    "text", ["from package.low.module import thing", "import package.low.module"]
)
def test_a_module_that_is_private_to_its_folder(package: Path, text: str) -> None:
    (package / "high" / "module.py").write_text(f"{text}\n")
    (problem,) = problems(package)
    assert "high.module, line 1: takes low.module" in problem and "private" in problem
    (package / "low" / "other.py").write_text(f"{text}\n")
    assert len(problems(package)) == 1  # its own folder may


def test_a_circle_within_a_folder(package: Path) -> None:
    (package / "low" / "module.py").write_text("from package.low.other import thing\n")
    (package / "low" / "other.py").write_text("def late():\n    from package.low import module\n")
    assert problems(package) == ["a circle: low.module -> low.other -> low.module"]


def test_a_circle_through_the_names_of_a_folder(package: Path) -> None:
    (package / "low" / "__init__.py").write_text("from package.low.module import thing\n")
    (package / "low" / "module.py").write_text("from package.low import other\n")
    (package / "low" / "other.py").write_text("from package.low import thing\n")
    assert problems(package) == ["a circle: low.module -> low.other -> low.module"]


def test_a_part_without_a_layer(package: Path) -> None:
    (package / "new.py").write_text("")
    (problem,) = problems(package)
    assert problem.startswith("new is not in the table")


def test_too_many_modules_in_a_folder(package: Path) -> None:
    for number in range(check_layers.MOST_MODULES - 1):
        (package / "low" / f"m{number}.py").write_text("")
    assert problems(package) == []
    (package / "low" / "one_more.py").write_text("")
    (problem,) = problems(package)
    assert problem.startswith(f"{package / 'low'} has 15 modules, more than 14")


@pytest.mark.parametrize("name", ["module.py", "stub.pyi"])
def test_a_file_that_is_too_long(package: Path, name: str) -> None:
    (package / "low" / name).write_text("\n" * check_layers.MOST_LINES)
    assert problems(package) == []
    (package / "low" / name).write_text("\n" * (check_layers.MOST_LINES + 1))
    (problem,) = problems(package)
    assert problem.startswith(f"{package / 'low' / name} has 501 lines, more than 500")


def test_the_command_names_what_it_has_found(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_layers.main(["--package", str(package)]) == 1
    assert "low is not in the table of layers" in capsys.readouterr().out
