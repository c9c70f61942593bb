"""How a person sees that a pool is being filled or waited for, or an array worked on."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from sharedvector._common import nap

logger = logging.getLogger("sharedvector")

_PATIENCE = 2.0  # seconds before anything is shown
_LINE_EVERY = 5.0
_WAIT_LINE_EVERY = 30.0
_SHORTEST_POLL = 0.001  # seconds; a poll interval of 0 must not take a whole core


class Progress:
    """Shows how many slots are filled, or slices done, once it takes longer than two seconds.

    A bar (tqdm) where standard error is a terminal; lines elsewhere, through the logger
    "sharedvector" at INFO if logging is set up, else on standard error.

    Args:
        name: of the pool, or of whatever `subject` says.
        total: slots to fill.
        level: nothing is shown above INFO.
        subject, unit, done: what has that name, what is counted, and what becomes of it.
        patience: seconds before anything is shown.
    """

    def __init__(
        self,
        name: str,
        total: int,
        level: int = logging.INFO,
        *,
        subject: str = "pool",
        unit: str = "slot",
        done: str = "filled",
        patience: float = _PATIENCE,
    ) -> None:
        self._name = name
        self._subject, self._unit, self._done = subject, unit, done
        self._patience = patience
        self._total = total
        self._quiet = level > logging.INFO
        self._began = time.monotonic()
        self._next_line = self._began + _PATIENCE
        self._bar: Any = None
        self._told = False

    def update(self, filled: int) -> None:
        """Show that ``filled`` slots are filled, if it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._began + self._patience:
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
        what = f"{self._subject} {self._name}"
        return tqdm(total=self._total, desc=what, unit=self._unit, leave=True)

    def _line(self, filled: int, now: float) -> None:
        text = (
            f"{self._subject} {self._name!r}: {filled}/{self._total} {self._unit}s {self._done} "
            f"after {now - self._began:.1f} s"
        )
        _say(logging.INFO, text)


class Waiting:
    """Waits for a pool that others make, and says so once it takes longer than two seconds.

    Args:
        name: of the pool.
        deadline: latest time to wait for, on ``time.monotonic()``'s clock.
        poll_interval: seconds between two looks.
        owned: whether somebody is making the pool; if not, the lines are warnings.
    """

    def __init__(
        self, name: str, deadline: float, poll_interval: float, owned: Callable[[], bool]
    ) -> None:
        self._name = name
        self._deadline = deadline
        self._poll_interval = max(poll_interval, _SHORTEST_POLL)
        self._owned = owned
        self._began = time.monotonic()
        self._next_line = self._began + _PATIENCE

    def sleep(self, reason: str) -> None:
        """Sleep one poll interval, not beyond the deadline; TimeoutError when that has come.

        Args:
            reason: why the pool is not ready.
        """
        now = time.monotonic()
        left = self._deadline - now
        if left <= 0:
            raise TimeoutError(f"pool {self._name!r} is not ready in time: {reason}")
        if now >= self._next_line:
            self._next_line = now + _WAIT_LINE_EVERY
            text = (
                f"waiting for pool {self._name!r}, for {now - self._began:.0f} s so far and at "
                f"most {left:.0f} s more: {reason}"
            )
            level = logging.INFO if self._owned() else logging.WARNING
            if level >= logger.level:
                _say(level, text)
        nap(min(self._poll_interval, left))


def _say(level: int, text: str) -> None:
    """Log a line if logging is set up, else write it to standard error."""
    if logger.hasHandlers():
        logger.log(level, text)
    elif sys.stderr is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        print(stamp, logging.getLevelName(level), "sharedvector:", text, file=sys.stderr)
