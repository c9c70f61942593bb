"""Errors of loaders in words: bounded, once, with the line of the loader that raised them."""

from __future__ import annotations

import logging
import time
import types
from typing import Any

import pytest

from sharedvector._producer import failures
from sharedvector._producer.failures import FailureLog, describe, traceback_of

HUGE = 8_000_000


class Speechless(Exception):
    def __init__(self, what: BaseException) -> None:
        self.what = what

    def __str__(self) -> str:
        raise self.what


def caught(error: BaseException, depth: int = 0) -> BaseException:
    """An error that was raised, so many calls deep."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    try:
        fall(depth)
    except BaseException as found:
        return found
    raise AssertionError


def test_an_error_in_one_line() -> None:
    assert describe(OSError("two\nlines ")) == "OSError: two lines"
    assert describe(KeyError()) == "KeyError"


@pytest.mark.parametrize("what", [ValueError("no text"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_whose_text_cannot_be_made(what: BaseException) -> None:
    error = caught(Speechless(what))
    assert describe(error) == f"Speechless: (its text cannot be made: {type(what).__name__})"
    assert traceback_of(error)


@pytest.mark.parametrize("letter", ["x", "\x01", "\n", "\udc80", "\U0001f600"])
def test_a_text_of_any_length_is_cut_and_says_so(letter: str) -> None:
    error = caught(ValueError("begin " + letter * HUGE + " end"))
    began = time.process_time()
    text, trace = describe(error), traceback_of(error)
    assert time.process_time() - began < 5
    assert len(text) < 3000 and len(trace) < 9000
    assert text.startswith("ValueError: begin ") and text.endswith(" end")
    assert "characters) ..." in text and "characters) ..." in trace


def test_a_deep_traceback_is_cut() -> None:
    trace = traceback_of(caught(ValueError("deep"), 900))
    assert len(trace) < 9000 and trace.endswith("ValueError: deep")


def test_the_cause_is_told_too() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise OSError("outer") from error
    except OSError as error:
        trace = traceback_of(error)
    assert "KeyError: 'inner'" in trace and trace.endswith("OSError: outer")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A clock that the test moves: what is told depends on how long it takes."""
    clock = types.SimpleNamespace(now=7.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(failures, "time", clock)
    return clock


def test_many_bad_sources_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture, still: types.SimpleNamespace
) -> None:
    log = FailureLog()
    with caplog.at_level(logging.WARNING, "sharedvector"):
        for source in range(1000):
            log.tell(source, OSError(f"no {source}"), "loaded")
            log.tell(source, ValueError(f"kind {'abcdefgh'[source % 8]}"), "stored")
    texts = [record.getMessage() for record in caplog.records]
    assert 1 <= len(texts) <= 5
    assert sum("OSError" in text for text in texts) == 1, texts  # one reason, told once
    assert sum("ValueError" in text for text in texts) >= 2


def test_the_traceback_comes_once_for_each_line_that_raises(
    caplog: pytest.LogCaptureFixture, still: types.SimpleNamespace
) -> None:
    def load(source: int) -> Any:
        if source == 99:
            raise OSError("another line")
        raise OSError(f"volume {source}")

    log = FailureLog()
    with caplog.at_level(logging.WARNING, "sharedvector"):
        for source in (1, 2, 3, 99):
            still.now += 11.0 if source != 2 else 0.0
            try:
                load(source)
            except OSError as error:
                log.tell(source, error, "loaded")
    first, third, another = [record.getMessage() for record in caplog.records]
    assert "Traceback" in first and 'raise OSError(f"volume {source}")' in first
    assert (
        third == "source 3 could not be loaded: OSError: volume 3 (1 more failures were not logged)"
    )
    assert 'raise OSError("another line")' in another
