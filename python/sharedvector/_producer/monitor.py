"""When is a bootstrap hopeless? Judged from what the workers report."""

from __future__ import annotations

import signal

_MANY_ATTEMPTS = 16
_LONG_ENOUGH = 5.0  # seconds
_CRASHES = 3
_REFUSED = 6  # sources whose chunks do not fit the pool, when nothing else came: not by chance


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
    them for some seconds by all workers, or the first six had chunks of the wrong dtype or size
    for every worker; one whose loader cannot be made; and one in which a worker crashes, or
    cannot be started, three times in a row while nobody stores anything.

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
        self._refused: set[int] = set()
        self._refused_workers: set[int] = set()
        self._attempts = 0
        self._began: float | None = None
        self._first_error: tuple[int, str] | None = None
        self._empty_hint = ""
        self._crashes: dict[int, tuple[int, int]] = {}  # worker: crashes in a row, slots then
        self._doom: str | None = None

    def stored(self, worker: int) -> None:
        """A worker has stored a chunk."""
        self._crashes.pop(worker, None)

    def failed(
        self,
        worker: int,
        source: int,
        error: str,
        empty: bool,
        now: float,
        refused: bool = False,
    ) -> None:
        """A source gave nothing (``empty``), could not be loaded or stored, or its chunks are not
        what the pool is made for (``refused``).
        """
        if self._looks_bad(now):
            self._late_failures.add(worker)
        self._tried.add(source)
        self._attempts += 1
        self._began = now if self._began is None else self._began
        if refused:
            self._refused.add(source)
            self._refused_workers.add(worker)
        if empty:
            self._empty_hint = self._empty_hint or error
        elif self._first_error is None:
            self._first_error = (source, error)

    def crashed(self, worker: int, how: str, filled: int) -> None:
        """A worker process ended by itself, or could not be started (``how``), with ``filled``
        slots in the pool.
        """
        count, then = self._crashes.get(worker, (0, filled))
        count = count + 1 if then == filled else 1
        self._crashes[worker] = (count, filled)
        if count >= _CRASHES:
            self.doom(
                f"a producer worker failed {count} times in a row without storing a chunk "
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
        if not (everything or self._wrong_settings() or len(self._late_failures) >= self._workers):
            return None
        sources = f"any of {self._source_size} sources"
        if not everything:
            sources = f"{len(self._tried)} of {self._source_size} sources tried"
        if self._first_error is None:
            why = "every source returned an empty list"
            if self._empty_hint:
                why += f": {self._empty_hint}"
        else:
            source, error = self._first_error
            why = f"source {source}: {error}"
        return f"no chunk from {sources} ({why}); {self._filled(filled)}"

    def _wrong_settings(self) -> bool:
        """Whether every worker has met nothing but chunks that the pool is not made for."""
        if len(self._refused_workers) < self._workers or self._refused != self._tried:
            return False
        return len(self._refused) >= _REFUSED

    def _looks_bad(self, now: float) -> bool:
        if self._began is None or self._attempts < _MANY_ATTEMPTS:
            return False
        return now - self._began >= _LONG_ENOUGH

    def _filled(self, filled: int) -> str:
        return f"{filled}/{self._slot_count} slots filled"
