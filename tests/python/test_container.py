"""Memory limits of control groups, from trees that look like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedvector._container import memory_limit

V1_UNLIMITED = "9223372036854771712"


def tree(root: Path, groups: str, files: dict[str, str]) -> int | None:
    for name, text in files.items():
        path = root / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (root / "groups").write_text(groups)
    return memory_limit(str(root / "groups"), str(root / "mount"))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        # Version 2: the least on the way up.
        ("0::/a/b\n", {"a/b/memory.max": "300", "a/memory.max": "200"}, 200),
        ("0::/a/b\n", {"a/b/memory.max": "100", "a/memory.max": "max"}, 100),
        ("0::/a/b\n", {"a/b/memory.max": "max", "c/memory.max": "5"}, None),
        ("0::/\n", {"memory.max": "77"}, 77),
        # In a container: the host's path, of which only the mount is there.
        ("0::/kubepods/pod1\n", {"memory.max": "4096"}, 4096),
        ("0::/../outside\n", {"memory.max": "4096"}, 4096),
        # Version 1: an own mount for each controller.
        ("4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "900"}, 900),
        ("3:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": "800"}, 800),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": V1_UNLIMITED}, None),
        ("4:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "900"}, None),
        # Both at once.
        (
            "4:memory:/x\n0::/y\n",
            {"memory/x/memory.limit_in_bytes": "900", "y/memory.max": "800"},
            800,
        ),
        # What nobody expects.
        ("", {}, None),
        ("nonsense\n1:\n", {"memory.max": "junk"}, None),
    ],
)
def test_the_least_limit_binds(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    assert tree(tmp_path, groups, files) == expected


def test_no_control_groups(tmp_path: Path) -> None:
    assert memory_limit(str(tmp_path / "none"), str(tmp_path)) is None


def test_here() -> None:
    limit = memory_limit()
    assert limit is None or limit > 0
