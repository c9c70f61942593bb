"""Says who holds the views that a pool's producers wait for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sharedvector import _core
from sharedvector.stats import view_holders
from sharedvector.vector import SharedVector

_PATIENCE = 5.0  # seconds of waiting before anything is said
_REPEAT = 60.0
_PAUSE = 2.5  # seconds without waiting that end it: twice what a producer takes to count it


class ViewWatch:
    """Logs the holders of views when producers have waited for them for some seconds, and then once
    a minute for as long as they wait.

    Args:
        vector: the pool.
        log: called for the logger when there is something to say.
    """

    def __init__(self, vector: SharedVector, log: Callable[[], logging.Logger]) -> None:
        self._vector = vector
        self._log = log
        self._waited = vector.counter_add(_core.COUNTER_HELD_MS, 0)
        self._began = self._latest = time.monotonic() - _PAUSE
        self._told = -_REPEAT

    def look(self) -> None:
        """See whether producers wait; to be called once a second or so."""
        now = time.monotonic()
        waited = self._vector.counter_add(_core.COUNTER_HELD_MS, 0)
        if waited == self._waited:
            return
        if now - self._latest > _PAUSE:
            self._began = now
        self._waited, self._latest = waited, now
        if now - self._began < _PATIENCE or now - self._told < _REPEAT:
            return
        self._told = now
        self._log().warning(
            "pool %r is not refreshed: for %.0f s views have been held of every chunk that could "
            "be replaced, or of every spare buffer; held by %s. Drop views that are not needed "
            "(a notebook keeps them in Out), copy what is kept for long, or give the pool more "
            "spare_buffers",
            self._vector.name,
            now - self._began,
            "; ".join(view_holders(self._vector)) or "nobody any more",
        )
