"""Events fit into one write to a pipe, and what is no event does no harm."""

from __future__ import annotations

import json
import os
import select
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedvector._producer.events import EventReader, encode_event, shorten, wait_ready


def test_a_short_text_stays_as_it_is() -> None:
    assert shorten("OSError: volume-003 is truncated") == "OSError: volume-003 is truncated"


def test_a_long_text_keeps_its_ends() -> None:
    text = shorten("begin " + "x" * 9000 + " end")
    assert len(text) < 1600
    assert text.startswith("begin x") and text.endswith("x end")


@pytest.mark.parametrize(
    "letter", ["\x01", "\0", "\x7f", "\n", '"', "\\", "ü", "\udc80", "\U0001f600", "a"]
)
def test_an_event_fits_into_one_atomic_write(letter: str) -> None:
    line = encode_event({"event": "failed", "source": 10**18, "error": letter * 9000, "worker": 99})
    assert len(line) <= select.PIPE_BUF
    assert line.count(b"\n") == 1 and json.loads(line)["source"] == 10**18


@given(st.text(st.characters(), max_size=3000))
def test_any_text_can_be_sent(text: str) -> None:
    line = encode_event({"event": "fatal", "error": text})
    assert len(line) <= select.PIPE_BUF
    assert json.loads(line) == {"event": "fatal", "error": shorten(text)}
    assert shorten(shorten(text)).isascii()


def test_a_huge_text_takes_no_time() -> None:
    began = time.process_time()
    text = shorten("\x01" * 8_000_000)
    assert time.process_time() - began < 1
    assert len(text) < 1600 and "characters) ..." in text


def test_what_has_no_end_is_not_kept() -> None:
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(read_end, False)
        reader = EventReader(read_end)
        for _ in range(100):
            os.write(write_end, b"x" * 60_000)
            assert reader.read() == []
        assert len(reader._partial) <= select.PIPE_BUF
        os.write(write_end, b'\n{"event": "stored"}\n' + b"[" * 50_000 + b"\n")
        assert reader.read() == [{"event": "stored"}]
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_wait_takes_any_descriptor() -> None:
    read_end, write_end = os.pipe()
    try:
        for fd, to_write in ((1500, False), (1501, True)):
            try:
                os.dup2(write_end if to_write else read_end, fd)
                assert wait_ready(fd, 0.01, to_write=to_write) == to_write
            finally:
                os.close(fd)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_the_reader_puts_lines_together_and_leaves_out_what_is_no_event() -> None:
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(read_end, False)
        reader = EventReader(read_end)
        assert reader.read() == []
        os.write(write_end, b'{"event": "stored", "wor')
        assert reader.read() == []
        os.write(
            write_end, b'ker": 1}\nhalf a li{"event": "failed"}\n[1]\n7\n{"worker": 2}\n\xff\n'
        )
        assert reader.read() == [{"event": "stored", "worker": 1}]
        os.write(write_end, encode_event({"event": "fatal", "error": "x"}))
        assert reader.read() == [{"event": "fatal", "error": "x"}]
    finally:
        os.close(read_end)
        os.close(write_end)
