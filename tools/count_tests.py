"""Adds up JUnit files and prints one line, ``N passed, N failed[, N skipped]``.

Exit status 1 if a test failed, or if a file is missing or unreadable: then its runner died, which
counts as one failure.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree


def count(path: str) -> tuple[int, int, int]:
    """Returns (passed, failed, skipped) of one JUnit file."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"} or case.get("status") == "fail":
            failed += 1
        elif "skipped" in outcomes or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(paths: list[str]) -> int:
    totals = [0, 0, 0]
    for path in paths:
        try:
            counts = count(path)
        except (OSError, ElementTree.ParseError) as error:
            print(f"no results in {path}: {error}")
            counts = (0, 1, 0)
        totals = [total + part for total, part in zip(totals, counts, strict=True)]
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
