"""What workers and supervisor say to those above them: one line of JSON per event, in a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select

TYPE_CHECKING = False  # importing it would take longer than all of this module
if TYPE_CHECKING:
    from typing import Any

_LONGEST_TEXT = 1500  # characters: doubled by JSON's escapes, it still fits into PIPE_BUF
_MOST_AT_ONCE = 1 << 20  # bytes that one look takes from a pipe, whoever writes into it
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def shorten(text: str) -> str:
    """Make a text plain ASCII and cut its middle out, so that its event fits into one write.

    The text says how much is missing. The time taken does not depend on the text's length.
    """
    text = _cut(text)  # before anything looks at each character of it
    text = text.encode("ascii", "backslashreplace").decode()
    text = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return _cut(text)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2 - 20
    return f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"


def encode_event(event: dict[str, Any]) -> bytes:
    """Return the line of an event, its "error" shortened: at most PIPE_BUF bytes.

    A pipe takes such a line whole or not at all, also from several writers at once.
    """
    if "error" in event:
        event = {**event, "error": shorten(event["error"])}
    return json.dumps(event).encode() + b"\n"


def wait_ready(fd: int, seconds: float, *, to_write: bool = False) -> bool:
    """Wait until a descriptor can be read (or written), whatever its number; False in vain.

    `select.select` takes no descriptors from 1024 on.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(max(0, int(seconds * 1000))))


class EventReader:
    """Reads events from a pipe that does not block.

    Args:
        fd: read end of the pipe; stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial = b""

    def read(self) -> list[dict[str, Any]]:
        """Return what has come since; what is no event is left out.

        At most a mebibyte is taken at a time, and kept is never more than one line can have.
        """
        events = []
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < _MOST_AT_ONCE and (block := os.read(self._fd, 65536)):
                taken += len(block)
                *lines, self._partial = (self._partial + block).split(b"\n")
                self._partial = self._partial[-select.PIPE_BUF :]
                for line in lines:
                    with contextlib.suppress(ValueError, RecursionError):
                        event = json.loads(line)
                        if isinstance(event, dict) and isinstance(event.get("event"), str):
                            events.append(event)
        return events
