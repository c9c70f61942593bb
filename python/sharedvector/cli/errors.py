"""How the commands tell of an error."""

from __future__ import annotations

import sys

EXIT_FAILED = 1


def failed(text: str, program: str) -> int:
    """Tell of an error in one line on standard error; returns the exit status."""
    print(f"{program}: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_FAILED
