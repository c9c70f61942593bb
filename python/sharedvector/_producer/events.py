"""What workers and supervisor say to those above them: one line of JSON per event, in a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import re

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from typing import Any

_LONGEST_TEXT = 1500  # characters: doubled by JSON's escapes, it still fits into PIPE_BUF
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def shorten(text: str) -> str:
    """Make a text plain ASCII and cut it in its middle, so that its event fits into one write."""
    text = text.encode("ascii", "backslashreplace").decode()
    text = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"


def encode_event(event: dict[str, Any]) -> bytes:
    """Return the line of an event, its "error" shortened: at most PIPE_BUF bytes.

    A pipe takes such a line whole or not at all, also from several writers at once.
    """
    if "error" in event:
        event = {**event, "error": shorten(event["error"])}
    return json.dumps(event).encode() + b"\n"


class EventReader:
    """Reads events from a pipe that does not block.

    Args:
        fd: read end of the pipe; stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial = b""

    def read(self) -> list[dict[str, Any]]:
        """Return what has come since; what is no event is left out."""
        events = []
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self._fd, 65536):
                *lines, self._partial = (self._partial + block).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):
                        event = json.loads(line)
                        if isinstance(event, dict) and "event" in event:
                            events.append(event)
        return events
