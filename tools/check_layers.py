"""Check which part of the Python package imports which: arrows point down, and there is no circle.

The table LAYERS has the parts of the package, the lowest first: the folders, and the modules that
lie in no folder. The check fails on

- an import of a part that stands higher, or beside the importing one in the same row;
- an import of a module of another folder, past the ``__init__`` that says what others may use;
- modules that import each other in a circle, whatever folder they are in;
- a part that is not in the table;
- a folder with more than 14 modules beside its ``__init__``, and a file of more than 500 lines.

Every import counts: those inside functions and under ``if TYPE_CHECKING`` too, as both need the
other module to be known; ``import_module`` with a literal name; and the tables of `lazy_names`. An
import of a name from a folder leads to the module that the folder has the name from.

Usage: check_layers.py [--package python/sharedvector]. Exit 1: something was found.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_MODULES = 14
MOST_LINES = 500

LAYERS = (
    ("_core",),
    ("_common",),
    ("dtypes", "lifecycle"),
    ("vector",),
    ("stats",),
    ("monitoring",),
    ("arrays", "loaders", "_coordination"),
    ("_producer",),
    ("_pool",),
    ("training",),
    ("cli",),
    # Paths of earlier versions, and the package itself.
    (
        "coordination",
        "dataset",
        "metrics",
        "pool",
        "pool_loader",
        "producer",
        "service",
        "spacing",
        "verify",
    ),
    ("__init__", "__main__"),
)

Homes = dict[str, str]  # of a folder's names: where each comes from


def modules_of(package: Path) -> dict[str, ast.Module]:
    """Every module below a package, by its dotted name within it; a folder is its ``__init__``."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = ast.parse(path.read_text(), str(path))
    return found


class Imports:
    """The imports of a package.

    Args:
        package: its directory.
    """

    def __init__(self, package: Path) -> None:
        self._name = package.name
        self._modules = modules_of(package)
        self._folders = {
            ".".join(path.parent.relative_to(package).parts) or "__init__"
            for path in package.rglob("__init__.py")
        }
        self._homes: dict[str, Homes] = {
            folder: dict(self._names_of(folder, self._modules[folder])) for folder in self._folders
        }

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Importing module, what it names (module, or folder and name), line."""
        for module, tree in self._modules.items():
            for node in ast.walk(tree):
                for target in self._targets(module, node):
                    yield module, target, getattr(node, "lineno", 0)

    def home(self, target: str) -> str | None:
        """The module that a target leads to, through folders; None for what is not Python here."""
        if target in self._modules and target not in self._folders:
            return target
        folder, _, name = target.rpartition(".")
        for _ in range(len(self._folders) + 1):
            at = self._homes.get(folder or "__init__", {}).get(name)
            if at is None:
                break
            if at in self._modules and at not in self._folders:
                return at
            folder = at
        return target if target in self._modules else folder if folder in self._modules else None

    def is_private(self, module: str, target: str) -> bool:
        """Whether a target lies in a folder that the importing module is not in."""
        inside = module.split(".") if module in self._folders else module.split(".")[:-1]
        folder: list[str] = []
        for part in target.split(".")[:-1]:
            folder.append(part)
            if ".".join(folder) in self._folders and inside[: len(folder)] != folder:
                return f"{target}" in self._modules or len(target.split(".")) > len(folder) + 1
        return False

    def _names_of(self, folder: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = self._inside(node.module)
                for alias in node.names if base is not None else ():
                    yield alias.asname or alias.name, base
            for home, names in _lazy_table(node):
                base = self._absolute(folder, home)
                for name in names.split() if base is not None else ():
                    yield name, base

    def _targets(self, module: str, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (inside := self._inside(alias.name)) is not None:
                    yield inside
        elif isinstance(node, ast.ImportFrom):
            base = self._inside(node.module)
            for alias in node.names if base is not None else ():
                yield f"{base}.{alias.name}".lstrip(".")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                if (inside := self._inside(first.value)) is not None:
                    yield inside
        for home, names in _lazy_table(node):
            base = self._absolute(module, home)
            for name in names.split() if base is not None else ():
                yield f"{base}.{name}"

    def _inside(self, name: str | None) -> str | None:
        """A dotted name without the package's own; None for other packages."""
        if name == self._name:
            return ""
        prefix = f"{self._name}."
        return name.removeprefix(prefix) if name and name.startswith(prefix) else None

    def _absolute(self, folder: str, home: str) -> str | None:
        if not home.startswith("."):
            return self._inside(home)
        return home[1:] if folder == "__init__" else f"{folder}{home}"


def _lazy_table(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules and names of a call of `lazy_names`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_names":
        for argument in node.args[1:]:
            if isinstance(argument, ast.Dict):
                yield from ast.literal_eval(argument).items()


def _part(module: str) -> str:
    return module.split(".")[0]


def check_imports(package: Path, layers: Sequence[Sequence[str]]) -> Iterator[str]:
    """Say which imports point up, go past a folder's ``__init__``, or close a circle."""
    rank = {part: level for level, row in enumerate(layers) for part in row}
    imports = Imports(package)
    graph: dict[str, set[str]] = {}
    for module, target, line in imports:
        place = f"{module}, line {line}"
        source, part = _part(module), _part(target)
        if target in ("", module):
            continue
        if imports.is_private(module, target):
            yield f"{place}: takes {target}, which is private to its folder: import it from there"
        home = imports.home(target)
        if home is not None:
            part = _part(home)
            graph.setdefault(module, set()).add(home)
        if source != part and source in rank and part in rank and rank[part] >= rank[source]:
            yield f"{place}: {source} may not import {part}, which is not below it"
    for part in sorted({_part(module) for module in modules_of(package)} - rank.keys()):
        yield f"{part} is not in the table of layers (tools/check_layers.py)"
    for circle in circles(graph):
        yield f"a circle: {' -> '.join([*circle, circle[0]])}"


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """One circle for each group of modules that import each other."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph[start])))]
        path.append(start)
        while stack and start not in done:
            module, following = stack[-1]
            after = next(following, None)
            if after is None:
                done.add(module)
                stack.pop()
                path.pop()
            elif after in path:
                if after != module:
                    yield path[path.index(after) :]
            elif after not in done:
                path.append(after)
                stack.append((after, iter(sorted(graph.get(after, ())))))


def check_sizes(package: Path) -> Iterator[str]:
    """Say which folders and files are too large."""
    for folder in (package, *(path for path in sorted(package.rglob("*")) if path.is_dir())):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MOST_MODULES:
            yield f"{folder} has {len(modules)} modules, more than {MOST_MODULES}: make a folder"
    for path in sorted((*package.rglob("*.py"), *package.rglob("*.pyi"))):
        lines = len(path.read_text().splitlines())
        if lines > MOST_LINES:
            yield f"{path} has {lines} lines, more than {MOST_LINES}: split it"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is wrong; returns 1 if anything is."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description="Check the layers of the Python package.")
    parser.add_argument("--package", type=Path, default=here / "python" / "sharedvector")
    package = parser.parse_args(argv).package
    problems = [*check_imports(package, LAYERS), *check_sizes(package)]
    print("\n".join(problems) or "every import points down")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
