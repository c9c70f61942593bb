"""Interrupt a call at each of its lines in turn; test_interrupts.py runs it as a program.

A trace function raises where the handler of a signal could: at any line of the package that the
calling thread comes to. After each exception the call is made once more and has to succeed; then
nothing may be left.

Usage: interrupts.py VERB STEP NAME. Of the lines every STEP-th is tried, from the last one on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from pool_support import children, files, spec

import sharedvector
from sharedvector import ProducerService, ensure_pool, pool, share

PACKAGE = str(Path(sharedvector.__file__).parent)
LIMIT = 60.0


class Alarm(Exception):
    """What the handlers of time-out decorators raise."""


Place = tuple[str, int]


class Interrupter:
    """Notes the lines of the package that a call comes to, and raises at one of them.

    Args:
        target: where to raise; None: nowhere.
    """

    def __init__(self, target: Place | None = None) -> None:
        self.seen: dict[Place, None] = {}
        self._target = target

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None  # what a finaliser raises is printed and lost
        if event == "line":
            place = file, frame.f_lineno
            self.seen[place] = None
            if place == self._target:
                sys.settrace(None)
                raise Alarm
        return self._trace


class Verbs:
    """Calls by name. Each gets the interrupter to use around what is tried, or a dummy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _ensure(self) -> Any:
        return ensure_pool(self.name, 2, producer=spec(), ready_timeout=LIMIT)

    def ensure_pool(self, tried: Any) -> None:
        with tried:
            handle = self._ensure()
        assert handle.is_owner
        handle.close()

    def pool(self, tried: Any) -> None:
        with tried, pool(self.name, 2, producer=spec(), ready_timeout=LIMIT) as handle:
            assert handle.is_owner

    def with_ensure_pool(self, tried: Any) -> None:
        try:
            with tried, self._ensure() as handle:
                assert handle.is_owner
        except Alarm:
            # Between a call and its block nobody can tell that there will be one: it stays open.
            self._ensure().close()
            raise

    def close(self, tried: Any) -> None:
        handle = self._ensure()
        with tried:
            handle.close()

    def service(self, tried: Any) -> None:
        from pool_support import Constant

        service = ProducerService(self.name, Constant(), 8, 2, 4096, num_producers=1)
        try:
            with tried:
                service.start()
                service.stop()
        except Alarm:
            service.stop()
            raise

    def share(self, tried: Any) -> None:
        with tried, share(np.ones(5000), prefix=self.name) as shared:
            assert shared[10:20].array.sum() == 10

    def pool_loader(self, tried: Any) -> None:
        from sharedvector import PoolLoader

        with pool(self.name, 2, producer=spec(), ready_timeout=LIMIT) as handle:
            loader = PoolLoader(handle, batch_size=1, steps=3, rank=0, world_size=1)
            try:
                with tried:
                    assert len(list(loader)) == 3
            except Alarm:
                assert len(list(loader)) == 3
                raise


def left(name: str) -> list[str]:
    """Files and processes that are there when a call has ended, and go on being there."""
    deadline = time.monotonic() + LIMIT
    while found := files(name) + [f"process {pid}" for pid in children(os.getpid())]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


def try_at(place: Place, call: Callable[[Any], None], name: str) -> str | None:
    """What is wrong after an exception at a place; None: nothing."""
    try:
        with contextlib.suppress(Alarm):
            call(Interrupter(place))
        call(contextlib.nullcontext())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    found = left(name)
    return f"left: {found}" if found else None


def main(verb: str, step: int, name: str) -> Iterator[str]:
    call = getattr(Verbs(name), verb)
    call(contextlib.nullcontext())  # what is imported by the first call
    all_lines = Interrupter()
    call(all_lines)
    places = list(all_lines.seen)[::-1][::step]
    for place in places:
        wrong = try_at(place, call, name)
        if wrong is not None:
            yield f"{Path(place[0]).name}:{place[1]}: {wrong}"
    yield f"tried {len(places)}"


if __name__ == "__main__":
    for line in main(sys.argv[1], int(sys.argv[2]), sys.argv[3]):
        print(line, flush=True)
