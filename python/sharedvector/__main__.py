"""``python -m sharedvector``."""

from __future__ import annotations

import sys

from sharedvector.cli import main

if __name__ == "__main__":
    sys.exit(main())
