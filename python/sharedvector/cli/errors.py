"""How the commands tell of an error, and what they exit with."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

EXIT_FAILED = 1
EXIT_BUSY = 2  # another owner holds the pool; as in 0.1.0
EXIT_USAGE = 64  # a wrong call: EX_USAGE of sysexits.h, as 2 has a meaning


class Parser(argparse.ArgumentParser):
    """A parser whose wrong calls exit with EXIT_USAGE."""

    def error(self, message: str) -> NoReturn:
        """Tell how to call, and what was wrong, and exit."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def failed(text: str, program: str) -> int:
    """Tell of an error in one line on standard error; returns the exit status."""
    print(f"{program}: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_FAILED
