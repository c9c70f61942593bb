"""Errors of loaders in words: bounded, whatever the loader has raised, and not too many of them."""

from __future__ import annotations

import logging
import re
import time
import traceback
import types

logger = logging.getLogger("sharedvector")

_LONGEST_TEXT = 2000  # characters of one error's text
_LONGEST_TRACEBACK = 8000
_MOST_FRAMES = 30
_LOG_BURST = 5  # failed sources that are logged at once, then one per _LOG_INTERVAL
_LOG_INTERVAL = 10.0
_MOST_REASONS = 1000  # that are remembered


def describe(error: BaseException) -> str:
    """Return an error's type and text in one line of bounded length."""
    try:
        text = str(error)
        text = " ".join(cut(text, _LONGEST_TEXT).split())
    except (Exception, SystemExit, KeyboardInterrupt) as another:
        text = f"(its text cannot be made: {type(another).__name__})"
    return f"{type(error).__name__}: {text}".rstrip(": ")


def cut(text: str, longest: int) -> str:
    """Return a text of at most about ``longest`` characters, which says how many are missing."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"


def traceback_of(error: BaseException) -> str:
    """Return an error's traceback without the frames of the producer itself, of bounded length."""
    try:
        told = traceback.TracebackException(
            type(error), error, _from_loader(error.__traceback__), limit=-_MOST_FRAMES, compact=True
        )
        lines = [cut(line, _LONGEST_TEXT) for line in told.format()]
    except (Exception, SystemExit, KeyboardInterrupt) as another:
        return f"(its traceback cannot be made: {type(another).__name__})"
    return cut("".join(lines).rstrip(), _LONGEST_TRACEBACK)


def _from_loader(tb: types.TracebackType | None) -> types.TracebackType | None:
    """The part of a traceback that begins with the loader."""
    ours = tb
    while ours is not None and ours.tb_frame.f_globals.get("__package__") == __package__:
        ours = ours.tb_next
    return tb if ours is None else ours


def _place(error: BaseException) -> tuple[str, str, int]:
    """Which error it is: its type, and the line that raised it."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None:
        return type(error).__name__, "", 0
    return type(error).__name__, tb.tb_frame.f_code.co_filename, tb.tb_lineno


class FailureLog:
    """Tells of each failed source once, and not of all of them at once.

    Sources that fail for the same reason, numbers aside, wait for their turn. The first failure of
    a kind, that is of one line that raises one type of error, comes with its traceback.
    """

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._reasons: dict[str, float] = {}  # when each was told last
        self._traced: set[tuple[str, str, int]] = set()
        self._credit = float(_LOG_BURST)
        self._then = time.monotonic()
        self._silent = 0

    def tell(self, source: int, error: BaseException, what: str) -> None:
        """Log one failure at WARNING."""
        if source in self._told:
            return
        now = time.monotonic()
        self._credit = min(_LOG_BURST, self._credit + (now - self._then) / _LOG_INTERVAL)
        self._then = now
        text = describe(error)
        reason = re.sub(r"\d+", "#", text)
        if self._credit < 1 or now - self._reasons.get(reason, -_LOG_INTERVAL) < _LOG_INTERVAL:
            self._silent += 1
            return
        self._credit -= 1
        if len(self._reasons) >= _MOST_REASONS:
            self._reasons.clear()
        self._reasons[reason] = now
        self._told.add(source)
        more = f" ({self._silent} more failures were not logged)" if self._silent else ""
        self._silent = 0
        place = _place(error)
        trace = ""
        if place not in self._traced and error.__traceback__ is not None:
            trace = f"\n{traceback_of(error)}"
        self._traced.add(place)
        logger.warning("source %d could not be %s: %s%s%s", source, what, text, more, trace)
