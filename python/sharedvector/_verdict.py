"""When is a bootstrap hopeless? Judged from what the workers report."""

from __future__ import annotations

import signal

_MANY_ATTEMPTS = 16
_LONG_ENOUGH = 5.0  # seconds
_CRASHES = 3


def status_words(status: int) -> str:
    """Return an exit status as ``subprocess`` gives it in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


class Verdict:
    """Collects what went wrong while a pool is filled.

    Hopeless is a bootstrap without a single chunk when every source has been tried, or many of
    them for some seconds by all workers; one whose loader cannot be made; and one in which a
    worker crashes three times in a row while nobody stores anything.

    Args:
        source_size: how many sources there are.
        slot_count: slots to fill.
        workers: how many producer workers there are.
    """

    def __init__(self, source_size: int, slot_count: int, workers: int) -> None:
        self._source_size = source_size
        self._slot_count = slot_count
        self._workers = workers
        self._late_failures: set[int] = set()  # workers that failed again when it looked bad
        self._tried: set[int] = set()
        self._attempts = 0
        self._began: float | None = None
        self._first_error: tuple[int, str] | None = None
        self._crashes: dict[int, tuple[int, int]] = {}  # worker: crashes in a row, slots then
        self._doom: str | None = None

    def stored(self, worker: int) -> None:
        """A worker has stored a chunk."""
        self._crashes.pop(worker, None)

    def failed(self, worker: int, source: int, error: str, empty: bool, now: float) -> None:
        """A source gave nothing (``empty``) or could not be loaded or stored."""
        if self._looks_bad(now):
            self._late_failures.add(worker)
        self._tried.add(source)
        self._attempts += 1
        self._began = now if self._began is None else self._began
        if not empty:
            if self._first_error is None:
                self._first_error = (source, error)

    def crashed(self, worker: int, how: str, filled: int) -> None:
        """A worker process ended by itself with ``filled`` slots in the pool."""
        count, then = self._crashes.get(worker, (0, filled))
        count = count + 1 if then == filled else 1
        self._crashes[worker] = (count, filled)
        if count >= _CRASHES:
            self.doom(
                f"a producer worker ended {count} times in a row without storing a chunk "
                f"({how}); {self._filled(filled)}"
            )

    def doom(self, reason: str) -> None:
        """Something that no further try can change; the first reason stays."""
        if self._doom is None:
            self._doom = reason

    def fatal(self, filled: int, now: float) -> str | None:
        """Return why the pool cannot be filled, or None while there is hope."""
        if self._doom is not None or filled > 0 or self._began is None:
            return self._doom
        everything = len(self._tried) >= self._source_size
        # Bad sources may fail fast and good ones take long: wait for what is being loaded.
        if not everything and len(self._late_failures) < self._workers:
            return None
        sources = f"any of {self._source_size} sources"
        if not everything:
            sources = f"{len(self._tried)} of {self._source_size} sources tried"
        if self._first_error is None:
            why = "every source returned an empty list"
        else:
            source, error = self._first_error
            why = f"source {source}: {error}"
        return f"no chunk from {sources} ({why}); {self._filled(filled)}"

    def _looks_bad(self, now: float) -> bool:
        if self._began is None or self._attempts < _MANY_ATTEMPTS:
            return False
        return now - self._began >= _LONG_ENOUGH

    def _filled(self, filled: int) -> str:
        return f"{filled}/{self._slot_count} slots filled"
