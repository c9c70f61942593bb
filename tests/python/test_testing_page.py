"""The tests that docs/TESTING.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_on_the_page_exists() -> None:
    """A word of three parts or more is a test or a program of tests."""
    page = (ROOT / "docs" / "TESTING.md").read_text()
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", page))
    for row in re.findall(r"\| (?:unit|fault|torture)\.[^|]*: ([^|:]*) \|$", page, re.MULTILINE):
        named |= set(row.split(", "))
    assert len(named) > 60
    sources = [*(ROOT / "tests" / "c").rglob("*.c"), *(ROOT / "tests" / "python").glob("*.py")]
    defined = {path.stem for path in sources}
    for path in sources:
        defined |= set(re.findall(r"^(?:def )?([a-z0-9_]+)\(", path.read_text(), re.MULTILINE))
    missing = {name for name in named - defined if not name.startswith("svi_")}
    assert missing == set()
