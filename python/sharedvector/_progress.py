"""How a person sees that a pool is being filled."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

logger = logging.getLogger("sharedvector")

_PATIENCE = 2.0  # seconds before anything is shown
_LINE_EVERY = 5.0


class Progress:
    """Shows how many slots are filled, once it takes longer than two seconds.

    A bar (tqdm) where standard error is a terminal; lines elsewhere, through the logger
    "sharedvector" at INFO if logging is set up, else on standard error.

    Args:
        name: of the pool.
        total: slots to fill.
        level: nothing is shown above INFO.
    """

    def __init__(self, name: str, total: int, level: int = logging.INFO) -> None:
        self._name = name
        self._total = total
        self._quiet = level > logging.INFO
        self._began = time.monotonic()
        self._next_line = self._began + _PATIENCE
        self._bar: Any = None
        self._told = False

    def update(self, filled: int) -> None:
        """Show that ``filled`` slots are filled, if it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._began + _PATIENCE:
            return
        if not self._told:
            self._told = True
            self._bar = self._make_bar()
        if self._bar is not None:
            self._bar.n = filled
            self._bar.refresh()
        elif now >= self._next_line:
            self._next_line = now + _LINE_EVERY
            self._line(filled, now)

    def close(self, filled: int) -> None:
        """Show the end, if anything was shown."""
        if self._bar is not None:
            self._bar.n = filled
            self._bar.refresh()
            self._bar.close()
        elif self._told:
            self._line(filled, time.monotonic())

    def _make_bar(self) -> Any:
        if sys.stderr is None or not sys.stderr.isatty():
            return None
        try:
            from tqdm import tqdm
        except ImportError:
            return None
        return tqdm(total=self._total, desc=f"pool {self._name}", unit="slot", leave=True)

    def _line(self, filled: int, now: float) -> None:
        text = (
            f"pool {self._name!r}: {filled}/{self._total} slots filled after "
            f"{now - self._began:.1f} s"
        )
        if logger.hasHandlers():
            logger.info(text)
        elif sys.stderr is not None:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), "INFO sharedvector:", text, file=sys.stderr)
